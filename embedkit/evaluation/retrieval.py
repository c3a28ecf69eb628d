"""Retrieval: exact search of a corpus for the documents nearest to each query, and the quality of the ranking.

Measures are those of trec_eval (``ndcg_cut``, ``recall``, ``map_cut``) as BEIR and MTEB report them, and MTEB's
reciprocal rank. As in all of these, equal scores are ordered by descending document id. Sets are in BEIR's form,
from a folder or from the hub.
"""

from __future__ import annotations

import functools
import hashlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt

from embedkit.errors import DataError, InputError
from embedkit.evaluation.reranking import mean_precision
from embedkit.evaluation.results import Evaluation, Resampler, Result
from embedkit.evaluation.sources import Source, Tables, by_query, plain_stem, unique
from embedkit.evaluation.tasks import EvaluationSet, Pool, Published, RoleText, Task, cosines
from embedkit.protocols import FloatArray
from embedkit.records import HubDataset, Row

_DEPTH = 1000
"""Number of documents to rank for each query, as in BEIR and MTEB."""

_BLOCK_BYTES = 64 * 2**20
"""Maximum size of the scores of a block of queries."""

_ROUNDING = 1e-5
"""An upper bound on the error of float32 products of unit rows."""

Float64Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class JudgedQuery:
    """A query and the relevance judgements of documents.

    Attributes:
        relevance: document id -> grade; above 0 is relevant.
        hidden: id of the document that is the query itself and is therefore not ranked.
    """

    text: str
    relevance: dict[str, float]
    hidden: str | None = None


@dataclass(frozen=True)
class RetrievalSet(EvaluationSet):
    """A corpus, and queries that each have a relevant document.

    Attributes:
        documents: text by id.

    Raises:
        DataError: there are no documents, or no query remains.
    """

    needs_embeddings: ClassVar[bool] = True

    documents: dict[str, str]
    queries: list[JudgedQuery]

    def __post_init__(self) -> None:
        if not self.documents or not self.queries:
            skipped = "".join(f"; {count} {reason}" for reason, count in self.skipped.items())
            raise DataError(
                f"{self.name}: expected documents and queries with a relevant one, "
                f"found {len(self.documents)} and {len(self.queries)}{skipped}"
            )

    def texts(self) -> Iterator[RoleText]:
        """Yield every text to encode, including repeated ones."""
        yield from (("document", text) for text in self.documents.values())
        yield from (("query", query.text) for query in self.queries)

    def result(self, pool: Pool) -> Result:
        """Return all measures of exact search."""
        queries = pool.embeddings([query.text for query in self.queries], "query")
        documents = pool.embeddings(list(self.documents.values()), "document")
        return self.measured(list(rank_documents(queries, documents, self)), MEASURES, documents=len(documents))

    def measured(self, rankings: Sequence[Ranking], measures: Mapping[str, Measure], *, documents: int) -> Result:
        """Return the measures of rankings of the queries, the first of which is the headline."""
        scores = {name: np.array([measure(ranking) for ranking in rankings]) for name, measure in measures.items()}
        hidden = sum(query.hidden is not None for query in self.queries)
        notes = [f"searched among {documents:,} documents"]
        if hidden:
            notes.append(f"{hidden:,} queries are themselves documents, which are excluded from their own ranking")
        return self._result(
            {name: float(values.mean()) for name, values in scores.items()},
            {"queries": len(rankings), "documents": documents},
            Resampler.of_rows(next(iter(scores.values()))),
            notes=notes,
        )


@dataclass(frozen=True)
class Ranking:
    """The grades of one query's ranked documents.

    Attributes:
        gains: ``(R,) float64``, best document first; 0 for irrelevant documents.
        wanted: ``(W,) float64``, descending grades of all relevant documents, retrieved or not.
    """

    gains: Float64Array
    wanted: Float64Array


Measure = Callable[[Ranking], float]


def ndcg(ranking: Ranking, *, cutoff: int = 10) -> float:
    """trec_eval's ``ndcg_cut``: discounted gain, grade / log2(rank + 1), relative to that of the ideal ranking."""
    return _discounted(ranking.gains[:cutoff]) / _discounted(ranking.wanted[:cutoff])


def recall(ranking: Ranking, *, cutoff: int = 100) -> float:
    """trec_eval's ``recall``: the share of relevant documents that are retrieved."""
    return float(np.count_nonzero(ranking.gains[:cutoff]) / len(ranking.wanted))


def average_precision(ranking: Ranking, *, cutoff: int = _DEPTH) -> float:
    """trec_eval's ``map_cut``: the sum of precisions at relevant documents, divided by their number."""
    return mean_precision(ranking.gains[:cutoff], len(ranking.wanted))


def reciprocal_rank(ranking: Ranking, *, cutoff: int = 10) -> float:
    """MTEB's ``mrr``: the inverse rank of the first relevant document, 0 if it is beyond the cutoff."""
    ranks = np.flatnonzero(ranking.gains[:cutoff])
    return float(1 / (ranks[0] + 1)) if len(ranks) else 0.0


JUDGED_COLUMNS = (("query",), ("document",), ("score",))
"""Names of each column of judged documents."""

MEASURES: dict[str, Measure] = {
    "ndcg_at_10": ndcg,
    "recall_at_1": functools.partial(recall, cutoff=1),
    "recall_at_10": functools.partial(recall, cutoff=10),
    "recall_at_100": recall,
    "mrr_at_10": reciprocal_rank,
    "map_at_1000": average_precision,
}
"""Measures by name; the first one is the headline."""

_OF_HUNDRED: Final = {name: measure for name, measure in MEASURES.items() if name != "map_at_1000"}


def rank_documents(
    queries: FloatArray, documents: FloatArray, retrieval: RetrievalSet, *, depth: int = _DEPTH
) -> Iterator[Ranking]:
    """Rank the corpus for each query, exactly, by cosine.

    Scores are first computed for blocks of queries in float32; candidates for the top ranks are then scored again
    as in :func:`embedkit.evaluation.tasks.cosines`, so that equal texts tie wherever they are. ``queries`` are
    ``(Q, D) float32`` and ``documents`` ``(N, D) float32``, in the order of the set.
    """
    ids = list(retrieval.documents)
    rows = {name: row for row, name in enumerate(ids)}
    order_of_ids = np.argsort(np.argsort(np.array(ids, dtype=object)))
    units = _unit_rows(documents)
    block = max(1, _BLOCK_BYTES // (4 * len(ids)))
    for start in range(0, len(queries), block):
        scores = _unit_rows(queries[start : start + block]) @ units.T
        judged = retrieval.queries[start : start + block]
        for row, query, embedding in zip(scores, judged, queries[start : start + block], strict=True):
            if query.hidden is not None:
                row[rows[query.hidden]] = -np.inf
            near = _near_the_best(row, depth)
            exact = cosines(np.broadcast_to(embedding, (len(near), len(embedding))), documents[near])
            best = near[np.lexsort((order_of_ids[near], exact))[::-1][:depth]]
            yield _ranking(query, [ids[row] for row in best])


def _near_the_best(scores: FloatArray, depth: int) -> npt.NDArray[np.intp]:
    """Return the rows that can be among the best ``depth`` despite rounding errors, except the hidden one."""
    least = -np.inf if depth >= len(scores) else np.partition(scores, -depth)[-depth] - _ROUNDING
    return np.flatnonzero((scores >= least) & np.isfinite(scores))


def _ranking(query: JudgedQuery, ranked: list[str]) -> Ranking:
    gains = np.array([max(query.relevance.get(document, 0.0), 0.0) for document in ranked], dtype=np.float64)
    wanted = sorted((grade for grade in query.relevance.values() if grade > 0), reverse=True)
    return Ranking(gains, np.array(wanted, dtype=np.float64))


def _discounted(gains: Float64Array) -> float:
    return float(np.sum(gains / np.log2(np.arange(2, len(gains) + 2))))


def _unit_rows(embeddings: FloatArray) -> FloatArray:
    """Normalise rows; invalid ones become zero, like their cosines."""
    wide = embeddings.astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        rows = wide / np.linalg.norm(wide, axis=1, keepdims=True)
    return np.where(np.isfinite(rows).all(axis=1, keepdims=True), rows, 0.0).astype(np.float32)


_NO_RELEVANT = "without a relevant document"
_NO_TEXT = "that are judged but have no text"


def load_retrieval(source: Source, *, name: str, split: str = "test") -> RetrievalSet:
    """Load a corpus, its queries and the judgements of one split, by default the test set.

    Only judged queries are scored. As in trec_eval, a relevant document that is missing in the corpus counts as
    not retrieved; a note counts these. The source is a folder of ``corpus.jsonl``, ``queries.jsonl`` and
    ``qrels/SPLIT.tsv``, also as Parquet and in the layout of the hub; one of the files in ``qrels``, whose name is
    then the split; or a hub data set.

    Raises:
        DataError: a table is missing, empty or malformed, or the corpus has none of the relevant documents.
    """
    if isinstance(source, Path) and source.is_file():
        source, split = source.parent.parent, plain_stem(source)
    tables = Tables(source, split)
    return _collect(name, tables.documents(), tables.queries(), tables.judgements(), tables.notes)


def collect_judgements(name: str, rows: Iterable[Row]) -> RetrievalSet:
    """Collect a set from rows of ``query, document, score``; the corpus consists of all documents in them.

    Raises:
        DataError: a row is malformed, or a document is judged twice and differently.
    """
    items = ((row.place, (row.text("query"), row.text("document")), row.number("score")) for row in rows)
    notes: list[str] = []
    judgements = by_query(unique(items, "judgement", notes))
    documents = {document: document for marks in judgements.values() for document in marks}
    return _collect(name, documents, {query: query for query in judgements}, judgements, notes)


def _collect(
    name: str,
    documents: dict[str, str],
    texts: Mapping[str, str],
    judgements: Mapping[str, dict[str, float]],
    notes: list[str],
) -> RetrievalSet:
    queries, skipped = [], Counter[str]()
    for query, relevance in judgements.items():
        if query not in texts:
            skipped[_NO_TEXT] += 1
        elif not any(grade > 0 for grade in relevance.values()):
            skipped[_NO_RELEVANT] += 1
        else:
            hidden = _is_source(query, texts[query], relevance, documents)
            queries.append(JudgedQuery(texts[query], relevance, query if hidden else None))
    wanted = [name for query in queries for name, grade in query.relevance.items() if grade > 0]
    missing = [name for name in wanted if name not in documents]
    if wanted and len(missing) == len(wanted):
        raise DataError(
            f"{name}: the corpus has none of the {len(wanted):,} relevant documents, such as {missing[0]!r}; "
            f"its ids are like {next(iter(documents), '')!r}"
        )
    if missing:
        notes.append(
            f"the corpus lacks {len(missing):,} of {len(wanted):,} relevant documents, for example "
            f"{missing[0]!r}; they count as not retrieved"
        )
    return RetrievalSet(name, documents, queries, skipped=dict(skipped), notes=notes)


def _is_source(query: str, text: str, relevance: Mapping[str, float], documents: Mapping[str, str]) -> bool:
    """Whether the query was taken from the document with the same id, which contains it and is not relevant.

    BEIR excludes every document with the query's id, MTEB does so for some sets. Where the ids of queries and
    documents are unrelated, none should be excluded.
    """
    return relevance.get(query, 0.0) <= 0 and bool(text.strip()) and text.strip() in documents.get(query, "")


def _corpus(what: str, folders: tuple[str, ...], hub: HubDataset, queries: int, documents: int) -> Published:
    sizes = {"queries": queries, "documents": documents}
    return Published(what, folders, hub, sizes, lambda name, source: load_retrieval(source, name=name))


RETRIEVAL_TASKS: dict[str, Published] = {
    "scifact": _corpus(
        "retrieval of abstracts for scientific claims",
        ("scifact",), HubDataset("mteb/scifact", "d56462d0e63a25450459c4f213e49ffdb866f7f9"), 300, 5183,
    ),
    "nfcorpus": _corpus(
        "retrieval of medical abstracts",
        ("nfcorpus",), HubDataset("mteb/nfcorpus", "ec0fa4fe99da2ff19ca1214b7966684033a58814"), 323, 3633,
    ),
    "arguana": _corpus(
        "retrieval of counter-arguments",
        ("arguana",), HubDataset("mteb/arguana", "c22ab2a51041ffd869aaddef7af8d8215647e41a"), 1406, 8674,
    ),
    "scidocs-retrieval": _corpus(
        "retrieval of cited papers",
        ("scidocs-retrieval", "scidocs-beir"),
        HubDataset("mteb/scidocs", "f8c2fcf00f625baaa80f62ec5bd9e1fff3b8ae88"), 1000, 25657,
    ),
}  # fmt: skip


DEPTH: Final = 100
"""Number of results of each query."""


def evaluate_search(collection: Any, task: Task, options: dict[str, Any]) -> Evaluation:
    """Search a :class:`~embedkit.Collection` for the queries of a task, and measure the results.

    This is the quality of the search that users get: windows, both rankings, filters and a re-ranker.
    ``options`` are those of :meth:`Collection.search`.

    The ids of the collection's documents must be those of the task. A window ``ID#NUMBER`` counts as its document,
    which is ranked where its best window is.

    Raises:
        InputError: a set of the task is not retrieval, or no judged document is in the collection.
    """
    began = time.perf_counter()
    results = []
    for judged in task.sets:
        if not isinstance(judged, RetrievalSet):
            raise InputError(f"{task.name} is not a retrieval task, the only kind for a collection")
        texts = [query.text for query in judged.queries]
        all_hits = collection.search(texts, k=DEPTH, **options)
        rankings = [_judge_hits(query, hits, judged) for query, hits in zip(judged.queries, all_hits, strict=True)]
        if not any(ranking.gains.any() for ranking in rankings):
            raise InputError(
                f"{judged.name}: no relevant document was found; build the collection from its corpus, by its ids"
            )
        results.append(judged.measured(rankings, _OF_HUNDRED, documents=len(collection)))
    info = collection.manifest
    return Evaluation(
        model=f"search in {Path(collection.path).name}",
        fingerprint=hashlib.sha256(f"{collection.path} {info.fingerprint}".encode()).hexdigest(),  # of a search
        dimension=info.dimension,
        max_length=collection.max_length,
        task=task.name,
        texts=sum(len(judged.queries) for judged in task.sets if isinstance(judged, RetrievalSet)),
        seconds=time.perf_counter() - began,
        results=results,
    )


def _judge_hits(query: JudgedQuery, hits: Iterable[Any], judged: RetrievalSet) -> Ranking:
    ids = dict.fromkeys(_document_ids(hits, judged))
    gains = [query.relevance.get(id_, 0.0) for id_ in ids if id_ != query.hidden]
    wanted = sorted((grade for grade in query.relevance.values() if grade > 0), reverse=True)
    return Ranking(np.array(gains, dtype=np.float64), np.array(wanted, dtype=np.float64))


def _document_ids(hits: Iterable[Any], judged: RetrievalSet) -> Iterator[str]:
    for hit in hits:
        yield hit.id if hit.id in judged.documents else hit.id.rpartition("#")[0] or hit.id
