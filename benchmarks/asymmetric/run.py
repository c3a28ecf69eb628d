"""Different models for documents and queries: quality on the retrieval sets, and the cost of a query.

    python benchmarks/asymmetric/run.py --data DIR --joined models/space.npz bge-small.onnx minilm.onnx \
        --documents models/small.onnx tiny --queries tiny models/static.onnx

Searches the documents of each model of --documents with the queries of each of --queries and with its own; pairs
that do not share a space are left out. --joined adds the teachers of the family as one model. Reads SciFact and
the other sets of DIR/retrieval, and writes results.json and results.md next to this file. Nothing is chosen here.
With --cache, embeddings are kept in a folder, which benchmarks/quality shares.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from embedkit import Encoder, JoinedEncoder
from embedkit.errors import FingerprintError
from embedkit.evaluation.catalogue import load_task
from embedkit.evaluation.retrieval import RetrievalSet, ndcg, rank_documents, recall
from embedkit.evaluation.tasks import EmbeddingCache, Task
from embedkit.protocols import TextEncoder
from embedkit.serving.retrieval.models import agreement

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "quality"))
from embedding_cache import CachedEncoder  # noqa: E402 - beside another benchmark

TASKS = ("scifact", "retrieval/cranfield", "retrieval/cacm", "retrieval/medline")
JOINED = "joined teachers"
SENTENCES = ("Bees dance to show the way.", "The invoice is due in May.", "Rain falls on the old town.")
TIMED = 100  # queries of SciFact, encoded one at a time


def main() -> None:
    """Embed, search, time, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the test sets")
    parser.add_argument("--documents", nargs="+", required=True, metavar="MODEL", help="bundles or bundled names")
    parser.add_argument("--queries", nargs="+", required=True, metavar="MODEL", help="bundles or bundled names")
    parser.add_argument("--joined", nargs="+", metavar="FILE", help="the space, then the bundle of each teacher")
    parser.add_argument("--cache", type=Path, metavar="DIR", help="existing folder in which embeddings are kept")
    arguments = parser.parse_args()
    tasks = [load_task(name, data=arguments.data) for name in TASKS]
    models, documents = load(arguments)
    pairs = [
        (one, other)
        for one in documents
        for other in dict.fromkeys([one, *(Path(source).stem for source in arguments.queries)])
        if share_space(models[one], models[other])
    ]
    rows: list[dict[str, Any]] = [{"documents": one, "queries": other, "sets": {}} for one, other in pairs]
    for task in tasks:
        print(task.name, flush=True)
        for row, figures in zip(rows, search(task, pairs, models), strict=True):
            row["sets"][task.sets[0].name] = figures
    asked = [query.text for query in retrieval_set(tasks[0]).queries[:TIMED]]
    milliseconds = {
        name: query_ms(models[name].plain, asked) for name in dict.fromkeys(other for _, other in pairs)
    }
    for row in rows:
        row["query_ms"] = milliseconds[row["queries"]]
    (HERE / "results.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    (HERE / "results.md").write_text(page(rows), encoding="utf-8")
    print(page(rows))


class Model(NamedTuple):
    """A model, and the same with its embeddings of many texts kept in a folder."""

    plain: TextEncoder
    kept: TextEncoder


def load(arguments: argparse.Namespace) -> tuple[dict[str, Model], list[str]]:
    """Load all models by name, and return the names of those that embed documents."""

    def one(source: str) -> Model:
        encoder = Encoder.load(source, threads=1)
        return Model(encoder, CachedEncoder(encoder, arguments.cache) if arguments.cache else encoder)

    sources = dict.fromkeys([*arguments.documents, *arguments.queries])
    models = {Path(source).stem: one(source) for source in sources}
    documents = [Path(source).stem for source in arguments.documents]
    if arguments.joined:
        space, *teachers = arguments.joined
        parts = [one(teacher) for teacher in teachers]
        models[JOINED] = Model(*(JoinedEncoder(each, space) for each in zip(*parts, strict=True)))
        documents.insert(0, JOINED)
    return models, documents


def share_space(documents: Model, queries: Model) -> bool:
    """Whether a collection would accept the pair, by their embeddings of some sentences."""
    try:
        agreement(queries.plain, SENTENCES, documents.plain.encode(SENTENCES), documents.plain.name)
    except FingerprintError as error:
        print(f"refused: {error}")
        return False
    return True


def retrieval_set(task: Task) -> RetrievalSet:
    """Return the only set of a task."""
    (found,) = task.sets
    assert isinstance(found, RetrievalSet)
    return found


def search(task: Task, pairs: list[tuple[str, str]], models: dict[str, Model]) -> Iterator[dict[str, float]]:
    """Yield the figures of each pair on one set."""
    found = retrieval_set(task)
    pools = {
        name: EmbeddingCache(models[name].kept, task.texts(), label=name)
        for name in dict.fromkeys(itertools.chain.from_iterable(pairs))
    }
    for one, other in pairs:
        queries = pools[other].embeddings([query.text for query in found.queries], "query")
        documents = pools[one].embeddings(list(found.documents.values()), "document")
        rankings = list(rank_documents(queries, documents, found))
        yield {
            "ndcg_at_10": float(np.mean([ndcg(ranking) for ranking in rankings])),
            "recall_at_100": float(np.mean([recall(ranking) for ranking in rankings])),
        }


def query_ms(encoder: TextEncoder, texts: list[str]) -> float:
    """Return the median processor time of encoding one query, in milliseconds."""
    times = []
    for text in texts:
        started = time.process_time()
        encoder.encode([text])
        times.append(1000 * (time.process_time() - started))
    return statistics.median(times)


def page(rows: list[dict[str, Any]]) -> str:
    """Return the results page."""
    names = list(rows[0]["sets"])
    columns = ["documents by", "queries by", *names, "mean", "recall@100, SciFact", "a query, ms"]
    lines = [
        "# Documents by one model, queries by another",
        "",
        "`python benchmarks/asymmetric/run.py` generates this page. nDCG@10 x 100 of exact search, models in",
        f"int8, and the median processor time of encoding one of {TIMED} queries of SciFact on one thread.",
        "",
        f"| {' | '.join(columns)} |",
        "|---|---|" + "---:|" * (len(columns) - 2),
    ]
    for row in rows:
        scores = [100 * row["sets"][name]["ndcg_at_10"] for name in names]
        figures = [*scores, float(np.mean(scores)), 100 * row["sets"]["scifact"]["recall_at_100"], row["query_ms"]]
        cells = " | ".join(f"{figure:.2f}" for figure in figures)
        lines.append(f"| {row['documents']} | {row['queries']} | {cells} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
