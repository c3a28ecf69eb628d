"""What re-rankers gain at each weight, on development sets; `blend` got its default from these figures.

    python benchmarks/search_quality/rerank.py --data DATA --encoder tiny reranker-tiny models/reranker-small.onnx

``DATA`` holds retrieval/{scifact,cacm,cranfield,medline}, own/stackfaq and rerank/*-dev.jsonl. The first 30
results of a hybrid search are scored once and blended with every weight. Figures are nDCG@10 x 100; in TrecQA and
SemEval, the passages of all queries are searched together. Writes rerank.json and rerank.md beside this file.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from embedkit import Collection, CrossEncoder, Encoder
from embedkit.evaluation.retrieval import Ranking, load_retrieval, ndcg
from embedkit.serving.retrieval.fusion import blend
from embedkit.serving.retrieval.options import RERANKED
from embedkit.serving.retrieval.store.exact import Ranking as Scored

HERE = Path(__file__).parent
BEIR = {
    "SciFact": ("retrieval/scifact", "test"),
    "CACM": ("retrieval/cacm", "test"),
    "Cranfield": ("retrieval/cranfield", "test"),
    "Medline": ("retrieval/medline", "test"),
    "stackfaq, dev": ("own/stackfaq", "dev"),
}
ANSWERS = {"TrecQA, dev": "rerank/trecqa-dev.jsonl", "SemEval, dev": "rerank/semeval2016-cqa-dev.jsonl"}
WEIGHTS = {"weight 1": 1.0, "weight 0.4": 0.4, "by default": None}

Queries = list[tuple[str, Mapping[str, float]]]


def main() -> None:
    """Measure, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rerankers", nargs="+")
    parser.add_argument("--encoder", default="tiny")
    parser.add_argument("--data", type=Path, required=True)
    arguments = parser.parse_args()
    encoder = Encoder.load(arguments.encoder, threads=1)
    models = [CrossEncoder.load(name, threads=1) for name in arguments.rerankers]
    rows: dict[str, dict[str, float]] = {}
    for name, documents, queries in sets(arguments.data):
        for row, value in measure(documents, queries, encoder, models).items():
            rows.setdefault(row, {})[name] = round(value, 2)
        print(name, {row: figures[name] for row, figures in rows.items()}, flush=True)
    (HERE / "rerank.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    (HERE / "rerank.md").write_text(table(rows), encoding="utf-8")


def sets(data: Path) -> Iterator[tuple[str, dict[str, str], Queries]]:
    """Yield each set's name, its documents by id, and its queries with the grades of relevant documents."""
    for name, (place, split) in BEIR.items():
        task = load_retrieval(data / place, name=name, split=split)
        documents = {key: text for key, text in task.documents.items() if text.strip()}
        yield name, documents, [(query.text, query.relevance) for query in task.queries]
    for name, place in ANSWERS.items():
        records = [json.loads(line) for line in (data / place).read_text(encoding="utf-8").splitlines()]
        texts = dict.fromkeys(text for record in records for text in (*record["positive"], *record["negative"]))
        yield (
            name,
            {text: text for text in texts},
            [(record["query"], dict.fromkeys(record["positive"], 1.0)) for record in records],
        )


def measure(
    documents: dict[str, str], queries: Queries, encoder: Encoder, models: list[CrossEncoder]
) -> dict[str, float]:
    """Return the mean nDCG@10 x 100 without a re-ranker, and with each at each weight."""
    keys, texts = list(documents), list(documents.values())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "idx"
        collection = Collection.build(texts, encoder=encoder, path=path, show_progress_bar=False)
        hit_lists = collection.search([text for text, _ in queries], k=RERANKED)
    orders = {"without a re-ranker": [[int(hit.id) for hit in hits] for hits in hit_lists]}
    for model in models:
        for (query, _), hits in zip(queries, hit_lists, strict=True):
            before = Scored(np.float32([hit.score for hit in hits]), np.array([int(hit.id) for hit in hits]))
            scores = model.predict([(query, hit.text) for hit in hits])
            for label, weight in WEIGHTS.items():
                blended = blend(before, scores, weight, trusted=False)
                orders.setdefault(f"`{model.name}`, {label}", []).append(blended.rows.tolist())
    return {
        row: 100
        * float(np.mean([gain(keys, order, grades) for order, (_, grades) in zip(found, queries, strict=True)]))
        for row, found in orders.items()
    }


def gain(keys: list[str], order: list[int], grades: Mapping[str, float]) -> float:
    """Return nDCG@10 of one query."""
    wanted = sorted((grade for grade in grades.values() if grade > 0), reverse=True)
    return ndcg(Ranking(np.array([grades.get(keys[row], 0.0) for row in order]), np.array(wanted)))


def table(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the results as Markdown."""
    names = list(next(iter(rows.values())))
    lines = [f"| | {' | '.join(names)} |", f"|---|{'---:|' * len(names)}"]
    lines += [f"| {row} | {' | '.join(f'{of[name]:.1f}' for name in names)} |" for row, of in rows.items()]
    return "# Gains of re-rankers on development sets\n\n" + "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
