"""Retrieval as a task."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from embedkit.evaluation.evidence import Mean
from embedkit.evaluation.pool import Pool
from embedkit.evaluation.results import Result
from embedkit.evaluation.retrieval import MEASURES, RetrievalSet, rank_documents

__all__ = ["RetrievalTask"]


@dataclass(frozen=True)
class RetrievalTask:
    """A corpus searched by queries.

    Attributes:
        name: name of the task.
        retrieval: corpus, queries and judgements.
        source: where they came from.
        expected: published numbers of queries and documents, None if unknown.
    """

    needs_embeddings: ClassVar[bool] = True

    name: str
    retrieval: RetrievalSet
    source: str
    expected: tuple[int, int] | None = None

    def texts(self) -> Iterator[str]:
        """Return every text to encode, including repeated ones."""
        return self.retrieval.texts()

    def results(self, pool: Pool) -> list[Result]:
        """Return one result with all measures."""
        queries = pool.embeddings([query.text for query in self.retrieval.queries])
        documents = pool.embeddings(list(self.retrieval.documents.values()))
        rankings = list(rank_documents(queries, documents, self.retrieval))
        scores = {name: np.array([rule(each) for each in rankings]) for name, rule in MEASURES.items()}
        measures = {name: float(each.mean()) for name, each in scores.items()}
        headline = next(iter(MEASURES))
        rows = (len(self.retrieval.queries), len(self.retrieval.documents))
        complete = None if self.expected is None else rows == self.expected
        return [
            Result(
                name=self.name,
                measure=headline,
                value=measures[headline],
                measures={**measures},
                rows=rows[0],
                unit="queries",
                source=self.source,
                expected=None if self.expected is None else self.expected[0],
                complete=complete,
                skipped=self.retrieval.skipped,
                notes=self._notes(rows, complete=complete),
                evidence=Mean(scores[headline]),
            )
        ]

    def _notes(self, rows: tuple[int, int], *, complete: bool | None) -> list[str]:
        notes = [f"searched among {rows[1]:,} documents"]
        hidden = sum(query.hidden is not None for query in self.retrieval.queries)
        if hidden:
            notes.append(f"{hidden:,} queries are themselves documents, which are excluded from their own ranking")
        if self.expected is not None and not complete:
            found, published = (
                f"{queries:,} queries and {documents:,} documents" for queries, documents in (rows, self.expected)
            )
            notes.append(f"{found}; the published set has {published}")
        return notes
