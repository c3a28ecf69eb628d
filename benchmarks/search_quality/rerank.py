"""What re-rankers gain at each weight, on development sets; `blend` got its default from these figures.

    python benchmarks/search_quality/rerank.py --data DATA --encoder tiny --encoder small.onnx reranker-tiny ...

``DATA`` holds retrieval/{scifact,cacm,cranfield,medline}, own/stackfaq and rerank/*-dev.jsonl. The best results
of a hybrid search of each encoder are scored once and blended with every weight; in the rows "in full", a sure
answer adds as much to the candidates of a large encoder as to those of a small one. Figures are nDCG@10 x 100; in
TrecQA and SemEval, the passages of all queries are searched together. Writes rerank.json and rerank.md beside this
file. ``--made ASKED/development`` adds the sets that recipes/development.py made, by up to 150 queries of each,
and writes development.json and development.md instead.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from embedkit import Collection, CrossEncoder, Encoder
from embedkit.serving.retrieval.fusion import ANSWER, answer_weight, blend
from embedkit.serving.retrieval.search import RERANKED
from embedkit.serving.retrieval.store.exact import Ranking

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import sets  # noqa: E402 - beside this file

NONE, FULL, DEFAULT = "without a re-ranker", "in full", "by default"
Named = TypeVar("Named", Encoder, sets.KeptScores)
WEIGHTS = {"weight 1": 1.0, "weight 0.4": 0.4, FULL: None, DEFAULT: None}


def main() -> None:
    """Measure, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rerankers", nargs="+")
    parser.add_argument("--encoder", action="append", required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--made", type=Path, help="folder of sets made by recipes/development.py")
    parser.add_argument("--keep", type=Path, default=sets.KEPT)
    arguments = parser.parse_args()
    models = [CrossEncoder.load(name, threads=1) for name in arguments.rerankers]
    scorers = labelled(arguments.rerankers, [sets.KeptScores(model, arguments.keep) for model in models])
    encoders = labelled(arguments.encoder, [Encoder.load(source, threads=1) for source in arguments.encoder])
    rows: dict[str, dict[str, float]] = {}
    for label, encoder in encoders.items():
        for name, judged in itertools.chain(
            sets.load(arguments.data, sets.CHOSEN),
            sets.load_answers(arguments.data),
            sets.load_made(arguments.made),
        ):
            for row, value in measure(judged, encoder, scorers, arguments.keep).items():
                rows.setdefault(f"`{label}`, {row}", {})[name] = round(value, 2)
            print(label, name, [figures[name] for figures in rows.values() if name in figures], flush=True)
    results = HERE / ("development" if arguments.made else "rerank")
    results.with_suffix(".json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    results.with_suffix(".md").write_text(table(rows), encoding="utf-8")


def labelled(sources: Sequence[str], models: Sequence[Named]) -> dict[str, Named]:
    """Return models by their names, or by what they were loaded from where two have one name."""
    names = [sets.NAMES.get(model.name, model.name) for model in models]
    return dict(zip(names if len({*names}) == len(names) else sources, models, strict=True))


def measure(
    judged: sets.Judged, encoder: Encoder, scorers: Mapping[str, sets.KeptScores], keep: Path
) -> dict[str, float]:
    """Return the mean nDCG@10 x 100 without a re-ranker, and with each at each weight."""
    keys, texts = list(judged.documents), list(judged.documents.values())
    with tempfile.TemporaryDirectory() as folder:
        collection = Collection.build(
            texts,
            encoder=encoder,
            embeddings=sets.embeddings_of(texts, encoder, keep),
            path=Path(folder) / "idx",
            show_progress_bar=False,
        )
        hit_lists = collection.search(judged.queries, k=RERANKED)
    orders = {NONE: [[int(hit.id) for hit in hits] for hits in hit_lists]}
    for name, model in scorers.items():
        answers = {FULL: ANSWER, DEFAULT: answer_weight(encoder, model)}
        for query, hits in zip(judged.queries, hit_lists, strict=True):
            before = Ranking(np.float32([hit.score for hit in hits]), np.array([int(hit.id) for hit in hits]))
            scores = model.predict([(query, hit.text) for hit in hits])
            for label, weight in WEIGHTS.items():
                blended = blend(before, scores, weight, trusted=False, answer=answers.get(label, ANSWER))
                orders.setdefault(f"`{name}`, {label}", []).append(blended.rows.tolist())
    return {
        row: float(np.mean(judged.gains([[keys[place] for place in order] for order in found])))
        for row, found in orders.items()
    }


def table(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the results as Markdown."""
    names = list(next(iter(rows.values())))
    lines = [f"| | {' | '.join(names)} |", f"|---|{'---:|' * len(names)}"]
    lines += [f"| {row} | {' | '.join(f'{of[name]:.1f}' for name in names)} |" for row, of in rows.items()]
    gains = ["| | mean of the first four | least gain | TrecQA |", "|---|---:|---:|---:|"]
    for row, of in rows.items():
        encoder, _, label = row.partition(", ")
        if label.endswith((FULL, DEFAULT)):
            gained = {name: of[name] - rows[f"{encoder}, {NONE}"][name] for name in names}
            of_four = np.mean([gained[name] for name in sets.CLASSIC])
            gains.append(
                f"| {row} | {of_four:+.2f} | {min(gained.values()):+.2f} | {gained['TrecQA, dev']:+.2f} |"
            )
    return "# Gains of re-rankers on development sets\n\n" + "\n".join([*gains, "", *lines]) + "\n"


if __name__ == "__main__":
    main()
