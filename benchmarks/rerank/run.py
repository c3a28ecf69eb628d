"""What re-ranking gives and costs.

    python benchmarks/rerank/run.py --data DIR --reranker reranker-tiny.onnx --reranker teacher-int8.onnx

Ranks the retrieval sets under DIR/retrieval (nDCG@10) by an encoder, by BM25 and by both, each alone and with its
best hundred re-ranked by every cross-encoder, and the re-ranking sets under DIR/rerank (MAP) by each model alone.
"Half" gives the re-ranker half of the weight (``rerank_weight=0.5``), and the search, or the encoder, the other.
Times 100 candidates of 100 words, alternately by all models. Writes NAME.json and NAME.md next to this file.

A large cross-encoder takes hours for all pairs. ``--queries 50`` ranks every set by 50 queries, spread evenly over
the set and the same for all ways; ``--candidates 50`` re-ranks fewer. Both are stated in the results. A later run
with the same numbers and ``--results NAME`` adds its models.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from embedkit import Collection, CrossEncoder, Encoder
from embedkit.evaluation.reranking import Query, RerankingSet, average_precisions, load_lists, merged
from embedkit.evaluation.retrieval import Judged, RetrievalSet, load_retrieval, ndcg
from embedkit.evaluation.retrieval import Ranking as Judgement
from embedkit.evaluation.tasks import EmbeddingPool, PairPool, Pool
from embedkit.progress import Progress
from embedkit.protocols import FloatArray
from embedkit.serving.retrieval.exact_index import Ranking
from embedkit.serving.retrieval.search import Fusion

HERE = Path(__file__).parent
TIMED, THREADS, ROUNDS = 100, 2, 5
WEIGHTS = {"": 1.0, "half ": 0.5}
WORDS = "the model reads a query and one of the passages that an index found for it"
FUSIONS: dict[str, Any] = {
    "encoder": None,
    "BM25": Fusion(method="weighted", dense_weight=0.0),
    "hybrid": "rrf",
}


def main() -> None:
    """Measure everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, type=Path, help="folder with retrieval/ and rerank/")
    parser.add_argument("--encoder", default="tiny", help="bundle of the first stage")
    parser.add_argument(
        "--reranker", action="append", default=[], help="bundle of a cross-encoder; may be repeated"
    )
    parser.add_argument("--queries", type=int, help="queries of each set; default: all")
    parser.add_argument("--candidates", type=int, default=100, help="documents to re-rank; default: 100")
    parser.add_argument("--results", default="results", metavar="NAME", help="name of the files to write")
    arguments = parser.parse_args()
    path = HERE / f"{arguments.results}.json"
    encoder = Encoder.load(arguments.encoder, threads=THREADS)
    rerankers = [CrossEncoder.load(source, threads=THREADS) for source in arguments.reranker]
    found = earlier(path, arguments.queries, arguments.candidates)
    for folder in sorted(path for path in (arguments.data / "retrieval").iterdir() if path.is_dir()):
        task = load_retrieval(folder, name=folder.name)
        task = dataclasses.replace(task, queries=spread(task.queries, arguments.queries))
        found["queries"][folder.name] = len(task.queries)
        figures = found["retrieval"].setdefault(folder.name, {})
        figures |= retrieve(task, encoder, rerankers, arguments.candidates)
        write(path, found)
    for file in sorted((arguments.data / "rerank").glob("*.jsonl")):
        lists = load_lists(file, name=file.stem)
        lists = dataclasses.replace(lists, queries=spread(lists.queries, arguments.queries))
        found["queries"][file.stem] = len(lists.queries)
        figures = found["reranking"].setdefault(file.stem, {})
        figures |= rank(lists, encoder, rerankers)
        write(path, found)
    found["ms"] = time_candidates(rerankers)
    write(path, found)


def earlier(path: Path, queries: int | None, candidates: int) -> dict[str, Any]:
    """Return the results of earlier runs with the same numbers, or empty ones."""
    asked = {"asked": queries, "candidates": candidates}
    if path.exists():
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if asked.items() <= found.items():
            return found
    return {**asked, "queries": {}, "retrieval": {}, "reranking": {}, "ms": {}}


def spread(queries: Sequence[Any], count: int | None) -> list[Any]:
    """Return ``count`` of the queries, evenly spaced, or all."""
    if count is None or count >= len(queries):
        return list(queries)
    return [queries[place] for place in np.linspace(0, len(queries) - 1, count).round().astype(int)]


class Remembering:
    """A cross-encoder that scores each pair once: the candidates of three searches overlap."""

    def __init__(self, model: CrossEncoder, label: str) -> None:
        self.name, self.fingerprint, self.max_length = model.name, model.fingerprint, model.max_length
        self._pool = PairPool(model, Progress(label, None, unit="pairs"))

    def predict(self, pairs: Sequence[tuple[str, str]], /) -> FloatArray:
        """Score pairs: ``(N,) float32``."""
        return self._pool.similarities([first for first, _ in pairs], [second for _, second in pairs])


def retrieve(
    task: RetrievalSet, encoder: Encoder, rerankers: Sequence[CrossEncoder], candidates: int
) -> dict[str, float]:
    """Return nDCG@10 of each way to search, alone and re-ranked."""
    documents = [{"id": key, "text": text} for key, text in task.documents.items()]
    scorers = [Remembering(model, f"{task.name}, {model.name}") for model in rerankers]
    figures = {}
    with tempfile.TemporaryDirectory() as folder:
        collection = Collection.build(
            documents, encoder=encoder, path=Path(folder) / "index", lexical=True, skip_empty=True
        )
        for name, hybrid in FUSIONS.items():
            ways: dict[str, dict[str, Any]] = {name: {}}
            for model in scorers:
                for label, weight in WEIGHTS.items():
                    ways[f"{name} + {label}{model.name}"] = {"rerank": model, "rerank_weight": weight}
            for way, options in ways.items():
                gains = []
                for query in task.queries:
                    hits = collection.search(
                        query.text, k=candidates, hybrid=hybrid, candidates=candidates, **options
                    )
                    gains.append(measure(query, [hit.id for hit in hits]))
                figures[way] = float(np.mean(gains))
    return figures


def measure(query: Judged, ids: Iterable[str]) -> float:
    """Return nDCG@10 of ranked documents."""
    ranked = [query.relevance.get(each, 0.0) for each in ids if each != query.hidden]
    wanted = sorted((grade for grade in query.relevance.values() if grade > 0), reverse=True)
    return ndcg(Judgement(np.array(ranked, dtype=np.float64), np.array(wanted, dtype=np.float64)))


def rank(task: RerankingSet, encoder: Encoder, rerankers: Sequence[CrossEncoder]) -> dict[str, float]:
    """Return the MAP of each model on given candidates."""
    pool = EmbeddingPool(encoder, task.texts(), label=task.name)
    figures = {encoder.name: float(average_precisions(pool, task.queries, merged).mean())}
    for model in rerankers:
        with Progress(f"{task.name}, {model.name}", None, unit="pairs") as bar:
            pairs = PairPool(model, bar)
            for label, weight in WEIGHTS.items():
                blended = [
                    merged(blend(weight, *(of_query(each, query) for each in (pairs, pool))), query)
                    for query in task.queries
                ]
                figures[f"{label}{model.name}"] = float(np.mean(blended))
    return figures


def of_query(pool: Pool, query: Query) -> FloatArray:
    """Score the candidates of a query: ``(C,) float32``."""
    return pool.similarities([query.text] * len(query.candidates), query.candidates)


def blend(weight: float, *scores: FloatArray) -> FloatArray:
    """Add a re-ranker's scores to an encoder's as a search with ``rerank_weight`` does: ``(C,) float32``."""
    orders = [np.argsort(-each, kind="stable") for each in scores]
    rankings = [Ranking(each[order], order) for each, order in zip(scores, orders, strict=True)]
    found = Fusion(method="weighted", dense_weight=weight).fuse(*rankings)
    return found.scores[np.argsort(found.rows)]


def time_candidates(models: Sequence[CrossEncoder]) -> dict[str, float]:
    """Return each model's median milliseconds of processor time for 100 candidates of 100 words."""
    generator = np.random.default_rng(0)
    texts = [" ".join(generator.choice(WORDS.split(), 100)) for _ in range(TIMED)]
    seconds: dict[str, list[float]] = {model.name: [] for model in models}
    for _ in range(ROUNDS):
        for model in models:
            began = time.process_time()
            model.rank("what does a cross-encoder read", texts, show_progress_bar=False)
            seconds[model.name].append(time.process_time() - began)
    return {name: 1000 * statistics.median(each[1:]) for name, each in seconds.items()}


def write(path: Path, found: dict[str, Any]) -> None:
    """Write the results as JSON and as a table."""
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    lines = [
        "# Re-ranking",
        "",
        f"Written by `benchmarks/rerank/run.py`. Searches re-rank their best {found['candidates']} documents. "
        "Times are milliseconds of processor time for 100 passages of 100 words. Queries: "
        + ", ".join(f"{name} {count}" for name, count in found["queries"].items())
        + ".",
        "",
    ]
    for kind, measured in (("retrieval", "nDCG@10"), ("reranking", "MAP")):
        sets = found[kind]
        if sets:
            lines += [f"| {measured} | {' | '.join(sets)} |", f"|---|{'---:|' * len(sets)}"]
            ways = dict.fromkeys(way for figures in sets.values() for way in figures)
            lines += [
                f"| {way} | {' | '.join(f'{100 * figures[way]:.1f}' for figures in sets.values())} |"
                for way in ways
            ]
            lines.append("")
    lines += [f"- {name}: {value:.1f} ms" for name, value in found["ms"].items()]
    path.with_suffix(".md").write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
