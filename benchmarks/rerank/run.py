"""What re-ranking gives and costs.

    python benchmarks/rerank/run.py --data DIR --reranker reranker-tiny
    python benchmarks/rerank/run.py --data DIR --reranker reranker-tiny --teacher teacher-int8.onnx \
        --candidates 50 --search encoder --results teacher

Ranks the retrieval sets under DIR/retrieval (nDCG@10) by an encoder, by BM25 and by both, each alone and with its
best hundred re-ranked by every cross-encoder, and the re-ranking sets under DIR/rerank (MAP) by each model alone.
"Half" gives the re-ranker half of the weight (``rerank_weight=0.5``), and the search, or the encoder, the other.
Gains over the search, or the encoder, alone have 95 % intervals over 1,000 samples of the queries. ``--teacher``
is one more cross-encoder, to whose gain those of the others are compared. Times 100 candidates of 100 words on one
thread and on two, alternately by all models. Writes NAME.json and NAME.md next to this file.

A large cross-encoder takes hours for all pairs. ``--queries 60`` ranks every set by 60 queries, spread evenly over
the set and the same for all ways; ``--candidates 50`` re-ranks fewer, ``--search encoder`` what one search found.
The first two are stated in the results. A later run with the same numbers and ``--results NAME`` continues one
that was stopped, and adds its models: it measures the times, and otherwise only what NAME.json lacks.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from embedkit import Collection, CrossEncoder, Encoder
from embedkit.evaluation.reranking import Query, RerankingSet, average_precisions, load_lists, merged
from embedkit.evaluation.results import Difference, Resampler, Samples
from embedkit.evaluation.retrieval import JudgedQuery, RetrievalSet, load_retrieval, ndcg
from embedkit.evaluation.retrieval import Ranking as Judgement
from embedkit.evaluation.tasks import EmbeddingCache, PairPool, Pool
from embedkit.progress import Progress
from embedkit.protocols import FloatArray
from embedkit.serving.retrieval.fusion import blend as blend_with
from embedkit.serving.retrieval.store.exact import Ranking

HERE = Path(__file__).parent
TIMED, ROUNDS, THREADS = 100, 8, (1, 2)
SAVED = 10  # results are written after so many queries
WEIGHTS = {"": 1.0, "half ": 0.5}
WORDS = "the model reads a query and one of the passages that an index found for it"
PLUS = " + "
MODES = {"encoder": "dense", "BM25": "lexical", "hybrid": "hybrid"}

Sets = Mapping[str, Mapping[str, list[float]]]
"""Set -> way -> a figure of each query."""


def main() -> None:
    """Measure everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, type=Path, help="folder with retrieval/ and rerank/")
    parser.add_argument("--encoder", default="tiny", help="bundle of the first stage")
    parser.add_argument(
        "--reranker", action="append", default=[], help="bundle of a cross-encoder; may be repeated"
    )
    parser.add_argument("--teacher", help="bundle of the cross-encoder that the others learned from")
    parser.add_argument(
        "--search", action="append", choices=list(MODES), help="first stage; may be repeated; default: all"
    )
    parser.add_argument("--queries", type=int, help="queries of each set; default: all")
    parser.add_argument("--candidates", type=int, default=100, help="documents to re-rank; default: 100")
    parser.add_argument("--threads", type=int, default=2, help="threads of the models; default: 2")
    parser.add_argument("--results", default="results", metavar="NAME", help="name of the files to write")
    arguments = parser.parse_args()
    path = HERE / f"{arguments.results}.json"
    encoder = Encoder.load(arguments.encoder, threads=arguments.threads)
    sources = [*arguments.reranker, *filter(None, [arguments.teacher])]
    rerankers = [CrossEncoder.load(source, threads=arguments.threads) for source in sources]
    searches = arguments.search or list(MODES)
    found = earlier(path, arguments.queries, arguments.candidates)
    if arguments.teacher:
        found["teacher"] = rerankers[-1].name
    for folder in sorted(path for path in (arguments.data / "retrieval").iterdir() if path.is_dir()):
        task = load_retrieval(folder, name=folder.name)
        task = dataclasses.replace(task, queries=spread(task.queries, arguments.queries))
        found["queries"][folder.name] = len(task.queries)
        figures = found["retrieval"].setdefault(folder.name, {})
        for _ in retrieve(task, encoder, rerankers, searches, arguments.candidates, figures):
            write(path, found)
    for file in sorted((arguments.data / "rerank").glob("*.jsonl")):
        lists = load_lists(file, name=file.stem)
        lists = dataclasses.replace(lists, queries=spread(lists.queries, arguments.queries))
        found["queries"][file.stem] = len(lists.queries)
        figures = found["reranking"].setdefault(file.stem, {})
        figures |= rank(lists, encoder, [each for each in rerankers if way_of(encoder, each) not in figures])
        write(path, found)
    found["ms"] = time_candidates(sources)
    write(path, found)


def earlier(path: Path, queries: int | None, candidates: int) -> dict[str, Any]:
    """Return the results of earlier runs with the same numbers, or empty ones."""
    asked = {"asked": queries, "candidates": candidates}
    if path.exists():
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if asked.items() <= found.items():
            return found
    return {**asked, "queries": {}, "retrieval": {}, "reranking": {}, "ms": {}, "teacher": None}


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
    task: RetrievalSet,
    encoder: Encoder,
    rerankers: Sequence[CrossEncoder],
    searches: Sequence[str],
    candidates: int,
    figures: dict[str, list[float]],
) -> Iterator[None]:
    """Add each query's nDCG@10 by each way to search, alone and re-ranked, to ``figures``.

    Yields every few queries; figures that a stopped run has left are continued.
    """
    ways: dict[str, dict[str, Any]] = {}
    scorers = [Remembering(model, f"{task.name}, {model.name}") for model in rerankers]
    for name in searches:
        ways[name] = {"mode": MODES[name]}
        for model in scorers:
            for label, weight in WEIGHTS.items():
                ways[f"{name}{PLUS}{label}{model.name}"] = {
                    "mode": MODES[name],
                    "rerank": model,
                    "rerank_weight": weight,
                }
    if all(len(figures.get(way, ())) == len(task.queries) for way in ways):
        return
    documents = [{"id": key, "text": text} for key, text in task.documents.items()]
    with tempfile.TemporaryDirectory() as folder:
        collection = Collection.build(
            documents, encoder=encoder, path=Path(folder) / "index", lexical=True, skip_empty=True
        )
        for done, query in enumerate(task.queries):
            for way, options in ways.items():
                measured = figures.setdefault(way, [])
                if len(measured) == done:
                    hits = collection.search(query.text, k=candidates, candidates=candidates, **options)
                    measured.append(round(measure(query, [hit.id for hit in hits]), 4))
            if done % SAVED == 0:
                yield
    yield


def measure(query: JudgedQuery, ids: Iterable[str]) -> float:
    """Return nDCG@10 of ranked documents."""
    ranked = [query.relevance.get(each, 0.0) for each in ids if each != query.hidden]
    wanted = sorted((grade for grade in query.relevance.values() if grade > 0), reverse=True)
    return ndcg(Judgement(np.array(ranked, dtype=np.float64), np.array(wanted, dtype=np.float64)))


def rounded(figures: Iterable[float]) -> list[float]:
    """Return a query's figures as they are stored."""
    return [round(float(figure), 4) for figure in figures]


def rank(task: RerankingSet, encoder: Encoder, rerankers: Sequence[CrossEncoder]) -> dict[str, list[float]]:
    """Return each query's average precision by the encoder on given candidates, alone and re-ranked."""
    pool = EmbeddingCache(encoder, task.texts(), label=task.name)
    figures = {encoder.name: rounded(average_precisions(pool, task.queries, merged))}
    for model in rerankers:
        with Progress(f"{task.name}, {model.name}", None, unit="pairs") as bar:
            pairs = PairPool(model, bar)
            for label, weight in WEIGHTS.items():
                blended = [
                    merged(blend(weight, *(of_query(each, query) for each in (pairs, pool))), query)
                    for query in task.queries
                ]
                figures[way_of(encoder, model, label)] = rounded(blended)
    return figures


def way_of(encoder: Encoder, model: CrossEncoder, label: str = "") -> str:
    """Return the name under which a model's figures on re-ranking sets are stored."""
    return f"{encoder.name}{PLUS}{label}{model.name}"


def of_query(pool: Pool, query: Query) -> FloatArray:
    """Score the candidates of a query: ``(C,) float32``."""
    texts = [query.text] * len(query.candidates)
    return pool.similarities(texts, query.candidates, roles=("query", "document"))


def blend(weight: float, *scores: FloatArray) -> FloatArray:
    """Add a re-ranker's scores to an encoder's as a search with ``rerank_weight`` does: ``(C,) float32``."""
    reranked, before = scores
    found = blend_with(Ranking(before, np.arange(len(before))), reranked, weight, trusted=False)
    return found.scores[np.argsort(found.rows)]


def time_candidates(sources: Sequence[str]) -> dict[str, dict[str, dict[str, float]]]:
    """Return median milliseconds for 100 candidates of 100 words: model -> threads -> of processors, by the clock.

    All models on all numbers of threads take turns, so that other load on the machine affects all of them.
    """
    generator = np.random.default_rng(0)
    texts = [" ".join(generator.choice(WORDS.split(), 100)) for _ in range(TIMED)]
    clocks = {"processor": time.process_time, "clock": time.perf_counter}
    models = [(threads, CrossEncoder.load(source, threads=threads)) for source in sources for threads in THREADS]
    seconds: list[list[list[float]]] = [[] for _ in models]
    for _ in range(ROUNDS):
        for (_, model), rounds in zip(models, seconds, strict=True):
            began = [clock() for clock in clocks.values()]
            model.rank("what does a cross-encoder read", texts, show_progress_bar=False)
            rounds.append([clock() - start for clock, start in zip(clocks.values(), began, strict=True)])
    found: dict[str, dict[str, dict[str, float]]] = {}
    for (threads, model), rounds in zip(models, seconds, strict=True):
        medians = (1000 * np.median(rounds[1:], axis=0)).round(1).tolist()
        found.setdefault(model.name, {})[str(threads)] = dict(zip(clocks, medians, strict=True))
    return found


def write(path: Path, found: dict[str, Any]) -> None:
    """Write the results as JSON and as tables."""
    path.write_text(json.dumps(found) + "\n", encoding="utf-8")
    lines = [
        "# Re-ranking",
        "",
        f"Written by `benchmarks/rerank/run.py`. Searches re-rank their best {found['candidates']} documents. "
        "Gains are over the search, or the encoder, alone. Queries: "
        + ", ".join(f"{name} {count}" for name, count in found["queries"].items())
        + ".",
        "",
    ]
    standard = found["teacher"] or (next(iter(found["ms"])) if len(found["ms"]) > 1 else None)
    for kind, measured in (("retrieval", "nDCG@10"), ("reranking", "MAP")):
        sets = {
            name: {way: rows for way, rows in figures.items() if len(rows) == found["queries"][name]}
            for name, figures in found[kind].items()
        }
        if sets:
            lines += [*table(measured, sets), ""]
            if standard:
                lines += [*compare(measured, sets, standard), ""]
    if found["ms"]:
        lines += [
            f"Milliseconds for {TIMED} passages of 100 words (medians of {ROUNDS - 1} rounds, all in turns):",
            "",
            "| | threads | processor time | clock |",
            "|---|---:|---:|---:|",
            *(
                f"| {name} | {threads} | {ms['processor']:.1f} | {ms['clock']:.1f} |"
                for name, both in found["ms"].items()
                for threads, ms in both.items()
            ),
        ]
    path.with_suffix(".md").write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")


def table(measured: str, sets: Sets) -> list[str]:
    """Return a table: the mean of each way on each set, their mean, and the gain of re-ranking."""
    lines = [f"| {measured} | {' | '.join(sets)} | mean | gain |", f"|---|{'---:|' * (len(sets) + 2)}"]
    for way in complete_ways(sets):
        cells = [f"{100 * np.mean(figures[way]):.1f}" for figures in sets.values()]
        own, search = sample(sets, way), way.partition(PLUS)[0]
        gain = "" if way == search else shown(own.less(sample(sets, search)))
        lines.append(f"| {way} | {' | '.join(cells)} | {100 * own.value:.1f} | {gain} |")
    return lines


def compare(measured: str, sets: Sets, standard: str) -> list[str]:
    """Return a table: by how much each model's gain differs from that of one of them, and its share of that gain.

    That model is the teacher, or without one the first. There is no share where the interval of its gain includes
    losses.
    """
    lines = [f"| {measured} | less {standard} | share of its gain |", "|---|---:|---:|"]
    ways = complete_ways(sets)
    for way in ways:
        search, _, model = way.partition(PLUS)
        other = search + PLUS + ("half " if model.startswith("half ") else "") + standard
        if not model or way == other or other not in ways:
            continue
        plain, own, theirs = (sample(sets, each) for each in (search, way, other))
        low = theirs.less(plain).interval.low
        share = ""
        if low is not None and low > 0:
            kept = (own.figures - plain.figures) / (theirs.figures - plain.figures)
            ends = np.quantile(kept, [0.025, 0.975])
            value = (own.value - plain.value) / (theirs.value - plain.value)
            share = f"{100 * value:.0f} % [{100 * ends[0]:.0f}, {100 * ends[1]:.0f}]"
        lines.append(f"| {way} | {shown(own.less(theirs))} | {share} |")
    return lines


def complete_ways(sets: Sets) -> list[str]:
    """Return the ways that were measured on all sets."""
    several = list(sets.values())
    return [way for way in several[0] if all(way in figures for figures in several)]


def sample(sets: Sets, way: str) -> Samples:
    """Return the mean over sets on samples of their queries, the same for all ways."""
    rows = (np.array(figures[way], dtype=np.float64) for figures in sets.values())
    return Samples.of(Resampler.of_sets(map(Resampler.of_rows, rows)))


def shown(difference: Difference) -> str:
    """Return a difference x 100 with its interval."""
    value, ends = difference.value or 0.0, difference.interval
    return f"{100 * value:+.1f} [{100 * (ends.low or 0.0):+.1f}, {100 * (ends.high or 0.0):+.1f}]"


if __name__ == "__main__":
    main()
