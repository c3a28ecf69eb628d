"""Re-ranking: mean average precision (MAP) of candidates ordered by their cosine with a query.

Published figures differ in how they order candidates of equal cosine. Each convention is a :data:`Rule`:

- :func:`stable`: ties keep the original order of the candidates (USEB's AskUbuntu).
- :func:`trec_eval`: ties are ordered by descending id, and relevant documents that are not among the candidates
  count as not retrieved (USEB's SciDocs; MTEB 2 with ``cutoff=1000``).
- :func:`merged`: ties are one step of the precision-recall curve (scikit-learn, MTEB 1).

Sets are in one of MTEB's two forms, from files or from the hub: a row per query, ``query, positive[], negative[]``
(MTEB 1), or the tables of :class:`embedkit.evaluation.sources.Tables` (MTEB 2).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from embedkit.errors import DataError
from embedkit.evaluation.pairs import BoolArray, Thresholds
from embedkit.evaluation.results import Evidence, Result, build_result
from embedkit.evaluation.sources import Source, Tables, folder_rows, has_tables, read_rows
from embedkit.evaluation.tasks import Conventions, Pool, Task
from embedkit.protocols import FloatArray
from embedkit.records import HubDataset, Row


@dataclass(frozen=True)
class Query:
    """A query and its candidates.

    Attributes:
        text: the query.
        ids: C distinct ids of the candidates, in their original order.
        candidates: C texts.
        relevant: ``(C,)`` bool.
        missing: number of relevant documents that are not among the candidates.
    """

    text: str
    ids: list[str]
    candidates: list[str]
    relevant: BoolArray
    missing: int = 0


@dataclass(frozen=True)
class RerankingSet:
    """Queries that each have a relevant document.

    Attributes:
        name: name of the set in messages and reports.
        queries: the queries to score.
        skipped: reason -> number of skipped queries.
        notes: caveats for readers, one sentence each.

    Raises:
        DataError: no query remains.
    """

    name: str
    queries: list[Query]
    skipped: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.queries:
            skipped = "".join(f"; {count} {reason}" for reason, count in self.skipped.items())
            raise DataError(f"{self.name}: expected queries with candidates, found none{skipped}")

    def texts(self) -> Iterator[str]:
        """Yield every text to encode, including repeated ones."""
        for query in self.queries:
            yield query.text
            yield from query.candidates


Rule = Callable[[FloatArray, Query], float]
"""Computes the average precision in [0, 1] of a query's candidates from their scores ``(C,) float32``."""


def average_precisions(pool: Pool, queries: list[Query], rule: Rule) -> npt.NDArray[np.float64]:
    """Return the average precision of each query, ``(Q,) float64``; their mean is the MAP."""
    scores = (pool.similarities([query.text] * len(query.candidates), query.candidates) for query in queries)
    return np.array([rule(row, query) for row, query in zip(scores, queries, strict=True)])


def stable(scores: FloatArray, query: Query) -> float:
    """Ties keep the order of the candidates; relevant documents outside the candidates are ignored."""
    order = np.argsort(-scores, kind="stable")
    return _mean_precision(query.relevant[order], int(query.relevant.sum()))


def trec_eval(scores: FloatArray, query: Query, *, cutoff: int | None = None) -> float:
    """trec_eval's ``map``, or ``map_cut`` with a cutoff.

    Ties are ordered by descending id: among equal scores, a relevant document with a low id comes last.
    """
    order = sorted(range(len(scores)), key=lambda row: (scores[row], query.ids[row]), reverse=True)
    return _mean_precision(query.relevant[order[:cutoff]], int(query.relevant.sum()) + query.missing)


def trec_eval_1000(scores: FloatArray, query: Query) -> float:
    """MTEB 2's ``map_at_1000``: :func:`trec_eval` over the top thousand candidates."""
    return trec_eval(scores, query, cutoff=1000)


def merged(scores: FloatArray, query: Query) -> float:
    """scikit-learn's ``average_precision_score``: each distinct score is one threshold."""
    return Thresholds.of(scores, query.relevant).average_precision()


def _mean_precision(relevant: BoolArray, total: int) -> float:
    """Return the sum of the precisions at all relevant ranks, divided by ``total`` relevant documents."""
    ranks = np.flatnonzero(relevant) + 1
    return float(np.sum(np.arange(1, len(ranks) + 1) / ranks) / total)


NO_POSITIVE = "without a positive"
_NO_NEGATIVE = "without a negative"
_NO_CANDIDATE = "without candidates"


def load_lists(source: Source, *, name: str, split: str = "test") -> RerankingSet:
    """Load a set in MTEB 1's form: a file, a folder with a file for the split, or a hub data set.

    Raises:
        DataError: missing, empty or malformed; names the file and line.
    """
    if isinstance(source, HubDataset):
        return collect_lists(name, source.rows(split=split))
    return collect_lists(name, folder_rows(source, ("", "data"), split) if source.is_dir() else read_rows(source))


def load_tables(source: Source, *, name: str, split: str = "test") -> RerankingSet:
    """Load a set in MTEB 2's form: a folder or a hub data set.

    Raises:
        DataError: a table is missing, empty or malformed.
    """
    tables = Tables(source, split)
    corpus, texts, judgements = tables.documents(), tables.queries(), tables.judgements()
    queries, skipped = [], Counter[str]()
    for query_id, ids in tables.candidates(corpus, texts).items():
        wanted = {document for document, mark in judgements.get(query_id, {}).items() if mark > 0}
        if not wanted or not ids:
            skipped[_NO_CANDIDATE if wanted else NO_POSITIVE] += 1
            continue
        marks = np.array([each in wanted for each in ids])
        candidates = [corpus[each] for each in ids]
        queries.append(Query(texts[query_id], ids, candidates, marks, len(wanted) - int(marks.sum())))
    return RerankingSet(name, queries, dict(skipped), tables.notes)


def collect_lists(name: str, rows: Iterable[Row]) -> RerankingSet:
    """Collect a set from rows of ``query, positive[], negative[]``; as in MTEB, queries need at least one of each.

    Candidates get the ids that MTEB 2 assigns when it converts this form, because ids break ties.
    """
    queries, skipped = [], Counter[str]()
    for row in rows:
        text, positives, negatives = row.text("query"), row.texts("positive"), row.texts("negative")
        if not positives or not negatives:
            skipped[_NO_NEGATIVE if positives else NO_POSITIVE] += 1
            continue
        ids = [f"apositive_{i:05d}" for i in range(len(positives))]
        ids += [f"negative_{i:05d}" for i in range(len(negatives))]
        queries.append(Query(text, ids, [*positives, *negatives], np.arange(len(ids)) < len(positives)))
    return RerankingSet(name, queries, dict(skipped))


@dataclass(frozen=True)
class RankingTest:
    """Candidates ranked by one convention.

    Attributes:
        convention: ``"useb"`` or ``"mteb"``.
        sets: the headline is the unweighted mean of their MAPs.
        rules: measure -> scoring rule; the first is the headline.
        source: where the sets came from.
        expected: the published number of queries, None if unknown.
    """

    convention: str
    sets: list[RerankingSet]
    rules: dict[str, Rule]
    source: str
    expected: int | None = None

    def result(self, name: str, pool: Pool) -> Result:
        """Score every set by every rule."""
        precisions = {
            measure: [average_precisions(pool, each.queries, rule) for each in self.sets]
            for measure, rule in self.rules.items()
        }
        first = next(iter(precisions.values()))
        skipped = Counter[str]()
        for each in self.sets:
            skipped.update(each.skipped)
        return build_result(
            name,
            {m: float(np.mean([each.mean() for each in found])) for m, found in precisions.items()},
            convention=self.convention,
            sizes={"queries": sum(map(len, first))},
            published=None if self.expected is None else {"queries": self.expected},
            source=self.source,
            parts={
                each.name: (len(found), float(found.mean()))
                for each, found in zip(self.sets, first, strict=True)
                if len(self.sets) > 1
            },
            skipped=skipped,
            notes=[note for each in self.sets for note in each.notes],
            evidence=Evidence.of_sets(map(Evidence.of_rows, first)),
        )


@dataclass(frozen=True)
class RerankingTask:
    """Candidates of queries, ranked by one or more conventions."""

    needs_embeddings: ClassVar[bool] = False

    name: str
    tests: list[RankingTest]

    def texts(self) -> Iterator[str]:
        """Yield every text to encode, including repeated ones."""
        return chain.from_iterable(each.texts() for test in self.tests for each in test.sets)

    def results(self, pool: Pool) -> list[Result]:
        """Return a result for each convention."""
        return [test.result(self.name, pool) for test in self.tests]


Tests = Mapping[str, Callable[[], RankingTest]]
"""Convention -> loader of its test."""

LIST_RULES: dict[str, Rule] = {"map": merged, "map_at_1000": trec_eval_1000}
_TABLE_RULES: dict[str, Rule] = {"map_at_1000": trec_eval_1000}


def mteb_task(name: str, source: Source, conventions: Conventions) -> Task:
    """Return a task for a custom set in MTEB's form.

    Raises:
        DataError: it is malformed, or MTEB's convention was not requested.
    """
    return ranking_task(name, source, {"mteb": partial(mteb_test, name, source, None)}, conventions)


def ranking_task(name: str, source: Source, tests: Tests, conventions: Conventions) -> Task:
    """Load the requested tests and return a task of them."""
    wanted = [load() for convention, load in tests.items() if convention in conventions]
    if not wanted:
        raise DataError(f"{source} supports only the convention {' or '.join(tests)}")
    return RerankingTask(name, wanted)


def mteb_test(name: str, source: Source, expected: int | None) -> RankingTest:
    """Load lists, or tables with candidates, for MTEB's convention."""
    if has_tables(source):
        return RankingTest("mteb", [load_tables(source, name=name)], _TABLE_RULES, str(source), expected)
    return RankingTest("mteb", [load_lists(source, name=name)], LIST_RULES, str(source), expected)
