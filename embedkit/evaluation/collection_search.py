"""The quality of the search that users of a collection get: windows, both rankings, filters and a re-ranker."""

from __future__ import annotations

import functools
import hashlib
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np

from embedkit.errors import InputError
from embedkit.evaluation.results import Evaluation
from embedkit.evaluation.retrieval import (
    JudgedQuery,
    Measure,
    Ranking,
    RetrievalSet,
    ndcg,
    recall,
    reciprocal_rank,
)
from embedkit.evaluation.tasks import Task

DEPTH: Final = 100
"""Number of results of each query."""

MEASURES: Final[dict[str, Measure]] = {
    "ndcg_at_10": ndcg,
    "recall_at_1": functools.partial(recall, cutoff=1),
    "recall_at_10": functools.partial(recall, cutoff=10),
    "recall_at_100": recall,
    "mrr_at_10": reciprocal_rank,
}


class Found(Protocol):
    """A result of a search."""

    @property
    def id(self) -> str:
        """The document's id, or its window's."""


class Searched(Protocol):
    """The part of :class:`embedkit.Collection` that is judged, in a layer above this one."""

    @property
    def path(self) -> Path | str:
        """Its folder or address."""

    @property
    def manifest(self) -> Any:
        """Its content and models."""

    @property
    def max_length(self) -> int:
        """Number of tokens to which its model of queries cuts texts."""

    def __len__(self) -> int:
        """Number of documents."""

    @property
    def search(self) -> Callable[..., Any]:
        """Return the results of several queries, each a list of :class:`Found`, best first."""


def evaluate_search(collection: Searched, task: Task, options: dict[str, Any]) -> Evaluation:
    """Search for the queries of a task with options of :meth:`Collection.search`, and judge the results.

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
        rankings = [_ranking(query, hits, judged) for query, hits in zip(judged.queries, all_hits, strict=True)]
        if not any(ranking.gains.any() for ranking in rankings):
            raise InputError(
                f"{judged.name}: no relevant document was found; build the collection from its corpus, by its ids"
            )
        results.append(judged.measured(rankings, MEASURES, documents=len(collection)))
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


def _ranking(query: JudgedQuery, hits: Iterable[Found], judged: RetrievalSet) -> Ranking:
    ids = dict.fromkeys(_document_ids(hits, judged))
    gains = [query.relevance.get(id_, 0.0) for id_ in ids if id_ != query.hidden]
    wanted = sorted((grade for grade in query.relevance.values() if grade > 0), reverse=True)
    return Ranking(np.array(gains, dtype=np.float64), np.array(wanted, dtype=np.float64))


def _document_ids(hits: Iterable[Found], judged: RetrievalSet) -> Iterator[str]:
    for hit in hits:
        yield hit.id if hit.id in judged.documents else hit.id.rpartition("#")[0] or hit.id
