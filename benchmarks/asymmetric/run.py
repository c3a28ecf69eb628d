"""Different models for documents and queries: quality on SciFact, and the cost of a query.

    python benchmarks/asymmetric/run.py --data DIR --documents teacher.onnx models/mini.onnx tiny --queries ...

Builds a collection with each model of --documents, and searches it with each of --queries and with the model
itself. Reads DIR/retrieval/scifact, and writes results.json and results.md next to this file.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from embedkit import Collection, Encoder
from embedkit.errors import FingerprintError
from embedkit.evaluation.catalogue import load_task
from embedkit.evaluation.retrieval import RetrievalSet, ndcg, rank_documents, recall

HERE = Path(__file__).parent


def main() -> None:
    """Build, search, time, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the test sets")
    parser.add_argument("--documents", nargs="+", required=True, metavar="MODEL", help="bundles or bundled names")
    parser.add_argument("--queries", nargs="+", required=True, metavar="MODEL", help="bundles or bundled names")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    (retrieval,) = load_task("scifact", data=arguments.data).sets
    assert isinstance(retrieval, RetrievalSet)
    encoders = {
        source: Encoder.load(source, threads=arguments.threads)
        for source in dict.fromkeys([*arguments.documents, *arguments.queries])
    }
    rows = []
    for source in arguments.documents:
        with tempfile.TemporaryDirectory() as folder:
            rows += pairs(retrieval, Path(folder) / "idx", encoders, source, arguments.queries)
    results = {"threads": arguments.threads, "queries": len(retrieval.queries), "rows": rows}
    (HERE / "results.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    (HERE / "results.md").write_text(page(results), encoding="utf-8")
    print(page(results))


def pairs(
    retrieval: RetrievalSet, path: Path, encoders: dict[str, Encoder], source: str, queries: list[str]
) -> list[dict[str, Any]]:
    """Build one collection; search it with its own model and with each compatible one of ``queries``."""
    encoder = encoders[source]
    started = time.perf_counter()
    collection = Collection.build(list(retrieval.documents.items()), encoder=encoder, path=path, index="exact")
    build_s = time.perf_counter() - started
    documents, embeddings = collection.sample(len(collection))
    assert [document.id for document in documents] == list(retrieval.documents)
    rows = []
    for name in dict.fromkeys([source, *queries]):
        try:
            opened = Collection.open(path, encoder=encoder, queries=encoders[name])
        except FingerprintError as error:
            print(f"refused: {error}")
            continue
        texts = [query.text for query in retrieval.queries]
        found = opened.encode_queries(texts)
        rankings = list(rank_documents(found, embeddings, retrieval))
        encode_ms, search_ms = times(opened, texts)
        rows.append(
            {
                "documents": Path(source).stem,
                "queries": Path(name).stem,
                "build_s": build_s,
                "ndcg_at_10": float(np.mean([ndcg(ranking) for ranking in rankings])),
                "recall_at_100": float(np.mean([recall(ranking) for ranking in rankings])),
                "encode_ms": encode_ms,
                "search_ms": search_ms,
            }
        )
        print(rows[-1])
    return rows


def times(collection: Collection, texts: list[str]) -> tuple[float, float]:
    """Return medians over single queries: milliseconds to encode one, and for all stages together."""
    laps = [collection.search(text, k=10).latency_ms for text in texts]
    return statistics.median(lap["encode"] for lap in laps), statistics.median(sum(lap.values()) for lap in laps)


def page(results: dict[str, Any]) -> str:
    """Return the results page."""
    conditions = (
        f"SciFact: 5,183 documents, {results['queries']} queries of the test set. Index `exact`, models in int8, "
        f"{results['threads']} thread. Milliseconds are medians over single queries, on a machine with other work."
    )
    columns = [
        "documents by",
        "queries by",
        "nDCG@10 x 100",
        "recall@100 x 100",
        "encode, ms",
        "search, ms",
        "build, s",
    ]
    lines = [
        "# Documents by one model, queries by another",
        "",
        "`python benchmarks/asymmetric/run.py` generates this page.",
        conditions,
        "",
        f"| {' | '.join(columns)} |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for row in results["rows"]:
        figures = (100 * row["ndcg_at_10"], 100 * row["recall_at_100"], row["encode_ms"], row["search_ms"])
        cells = " | ".join(f"{figure:.2f}" for figure in figures)
        lines.append(f"| {row['documents']} | {row['queries']} | {cells} | {row['build_s']:.0f} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
