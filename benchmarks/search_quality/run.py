"""The quality of the whole search: rankings by meaning, by keywords and by both, and re-ranked, for each encoder.

    python benchmarks/search_quality/run.py --data DATA --reranker reranker-tiny tiny static.onnx small.onnx ...

``DATA`` holds retrieval/{scifact,cacm,cranfield,medline} and own/stackfaq in BEIR's form. Documents are indexed
whole, without a title apart. A row is nDCG@10 x 100 on every set, the bytes of the models, and the milliseconds of
a processor for a query of SciFact: the median of queries that take turns over all rows, so that rows can be
compared; there, the embeddings of documents are random, which costs no time to compute and does not change that of
a search. Rows are added to results.json, and results.md and search_quality.svg are written from it. Embeddings and
re-rankers' scores are kept in a folder, so that a run continues where it was interrupted. Without an encoder, the
table and the chart are written again.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from embedkit import Collection, CrossEncoder, Encoder
from embedkit.protocols import FloatArray

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import charts  # noqa: E402 - beside the benchmarks; before pyplot, to choose the format
import sets  # noqa: E402
from matplotlib import pyplot as plt  # noqa: E402

MODES = ("dense", "lexical", "hybrid")
LABELS = {  # place beside the point, and side
    "tiny": ((-8, 0), "right"),
    "mini": ((-6, 6), "right"),
    "small": ((0, 9), "center"),
    "all-MiniLM-L6-v2": ((2, 9), "center"),
    "bge-small-en-v1.5": ((0, 9), "center"),
}
TIMED = 40  # queries of SciFact, one at a time

Rows = dict[tuple[str, str], dict[str, Any]]  # by encoder and search


def main() -> None:
    """Measure the encoders given, and write results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("encoders", nargs="*", help="bundles; none writes the table and the chart again")
    parser.add_argument("--data", type=Path, help="folder with the collections")
    parser.add_argument(
        "--reranker", action="append", default=[], help="a cross-encoder beside the search without"
    )
    parser.add_argument("--keep", type=Path, default=sets.KEPT, help="folder of what is kept")
    arguments = parser.parse_args()
    path = HERE / "results.json"
    kept: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    rows: Rows = {(row["encoder"], row["search"]): row for row in kept}
    encoders = [Encoder.load(source, threads=1) for source in arguments.encoders]
    rerankers = [CrossEncoder.load(source, threads=1) for source in arguments.reranker]
    for encoder in encoders:
        scorers = [sets.KeptScores(model, arguments.keep) for model in rerankers]
        for key, row in measure(encoder, arguments.data, scorers, arguments.keep).items():
            rows[key] = rows.get(key, {}) | row
        write(rows, path)
    if encoders:
        measure_time(rows, encoders, arguments.data, rerankers)
    write(rows, path)
    (HERE / "results.md").write_text(table(list(rows.values())), encoding="utf-8")
    draw(list(rows.values()), HERE / "search_quality.svg")


def write(rows: Rows, path: Path) -> None:
    """Keep the rows."""
    path.write_text(json.dumps(list(rows.values()), indent=1) + "\n", encoding="utf-8")


def searches(rerankers: Sequence[Any]) -> dict[str, dict[str, Any]]:
    """Return the options of each search."""
    plain: dict[str, dict[str, Any]] = {mode: {"mode": mode} for mode in MODES}
    return plain | {f"hybrid + {model.name}": {"rerank": model} for model in rerankers}


def measure(encoder: Encoder, data: Path, rerankers: Sequence[sets.KeptScores], keep: Path) -> Rows:
    """Return a row for each way to search with an encoder."""
    size = Path(encoder.source or "").stat().st_size
    label = sets.NAMES.get(encoder.name, encoder.name)
    rows: Rows = {}
    for search, options in searches(rerankers).items():
        more = Path(options["rerank"].source).stat().st_size if "rerank" in options else 0
        rows[label, search] = {"encoder": label, "search": search, "bytes": size + more, "ndcg": {}}
    for name, judged in sets.load(data, sets.TESTED):
        with tempfile.TemporaryDirectory() as folder:
            collection = build(judged.documents, encoder, Path(folder), keep)
            for row, options in zip(rows.values(), searches(rerankers).values(), strict=True):
                found = [[hit.id for hit in hits] for hits in collection.search(judged.queries, **options)]
                row["ndcg"][name] = round(float(np.mean(judged.gains(found))), 2)
        print(label, name, [row["ndcg"][name] for row in rows.values()], flush=True)
    return rows


def build(documents: Mapping[str, str], encoder: Encoder, folder: Path, keep: Path) -> Collection:
    """Index documents."""
    embeddings = sets.embeddings_of(list(documents.values()), encoder, keep)
    return Collection.build(
        documents.items(), encoder=encoder, embeddings=embeddings, path=folder / "idx", show_progress_bar=False
    )


class Timed:
    """An encoder that embeds queries as another one, and documents by random numbers."""

    def __init__(self, encoder: Encoder) -> None:
        self.name, self.dimension, self.max_length = encoder.name, encoder.dimension, encoder.max_length
        self.fingerprint, self.encode_query, self.encode = "0" * 64, encoder.encode_query, encoder.encode

    def encode_document(self, texts: Sequence[str], /, **_: Any) -> FloatArray:
        """Return random unit rows."""
        rows = np.random.default_rng(len(texts)).standard_normal((len(texts), self.dimension), np.float32)
        return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))


def measure_time(rows: Rows, encoders: Sequence[Encoder], data: Path, rerankers: Sequence[CrossEncoder]) -> None:
    """Set the time of the rows of these encoders, whose queries take turns."""
    _, task = next(sets.load(data, sets.CLASSIC))
    times: dict[tuple[str, str], list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        built = {
            sets.NAMES.get(encoder.name, encoder.name): Collection.build(
                task.documents.items(),
                encoder=Timed(encoder),
                path=Path(folder) / str(number),
                show_progress_bar=False,
            )
            for number, encoder in enumerate(encoders)
        }
        for query in task.queries[: TIMED + 1]:
            for (label, collection), (search, options) in itertools.product(
                built.items(), searches(rerankers).items()
            ):
                began = time.process_time()
                collection.search(query, **options)
                times.setdefault((label, search), []).append(1e3 * (time.process_time() - began))
    for key, taken in ((key, taken) for key, taken in times.items() if key in rows):
        rows[key]["ms"] = round(float(np.median(taken[1:])), 2)  # the first one reads files


def mean(row: dict[str, Any]) -> float:
    """Return the mean of the four classic collections."""
    return float(np.mean([row["ndcg"][name] for name in sets.CLASSIC]))


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the results as Markdown; the default is bold."""
    lines = [
        "# Quality of the whole search",
        "",
        "nDCG@10 x 100; the mean is that of the first four sets, and the default is bold. Milliseconds of a",
        "processor for a query over the 5,183 documents of SciFact, all encoders in turns, on one thread of a",
        "machine shared with other work. MB of the models. SciFact, CACM, Cranfield, Medline and another",
        "split of stackfaq were used to choose weights; `stackfaq` and `unseen` were not. Rows without",
        "milliseconds were not timed.",
        "",
        f"| encoder | search | {' | '.join(sets.TESTED)} | mean | ms | MB |",
        f"|---|---|{'---:|' * (len(sets.TESTED) + 3)}",
    ]
    for row in sorted(rows, key=lambda row: (row["bytes"], row["encoder"])):
        figures = " | ".join(f"{row['ndcg'][name]:.1f}" for name in sets.TESTED)
        search = f"**{row['search']}**" if row["search"] == "hybrid" else row["search"]
        costs = f"{row['ms']:.1f} | {row['bytes'] / 1e6:.1f}" if "ms" in row else f"| {row['bytes'] / 1e6:.1f}"
        lines.append(f"| {row['encoder']} | {search} | {figures} | {mean(row):.2f} | {costs} |")
    return "\n".join(lines) + "\n"


def draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw mean quality against the time of a query, with an arrow from each encoder alone to the default."""
    plt.rcParams.update(charts.STYLE)
    figure, axes = plt.subplots(figsize=(7, 4.6), layout="constrained")
    points = {(row["encoder"], row["search"]): (row["ms"], mean(row)) for row in rows if "ms" in row}
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
