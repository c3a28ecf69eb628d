"""Re-ranking sets in MTEB's two forms, from files or from the hub.

MTEB 1: a row per query, ``query, positive[], negative[]``. MTEB 2: the tables of
:mod:`embedkit.evaluation.tables`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from embedkit.errors import DataError
from embedkit.evaluation.hub import HubDataset
from embedkit.evaluation.reranking import Query, RerankingSet
from embedkit.evaluation.rows import Row, read_rows
from embedkit.evaluation.tables import Tables, folder_rows

__all__ = ["NO_POSITIVE", "collect_lists", "load_lists", "load_tables"]

NO_POSITIVE = "without a positive"
_NO_NEGATIVE = "without a negative"
_NO_CANDIDATE = "without candidates"


def load_lists(source: Path | HubDataset, *, name: str, split: str = "test") -> RerankingSet:
    """Load a set in MTEB 1's form: a file, a folder with a file for the split, or a hub data set.

    Raises:
        DataError: missing, empty or malformed; names the file and line.
    """
    if isinstance(source, HubDataset):
        return collect_lists(name, source.rows(split=split))
    return collect_lists(name, folder_rows(source, ("", "data"), split) if source.is_dir() else read_rows(source))


def load_tables(source: Path | HubDataset, *, name: str, split: str = "test") -> RerankingSet:
    """Load a set in MTEB 2's form: a folder or a hub data set.

    Raises:
        DataError: a table is missing, empty or malformed.
    """
    tables = Tables(source, split)
    corpus, texts, judgements = tables.documents(), tables.queries(), tables.judgements()
    queries, skipped = [], Counter[str]()
    for row in tables.top_ranked():
        query_id, ids = row.identifier("query-id"), list(dict.fromkeys(row.texts("corpus-ids")))
        unknown = next((each for each in ids if each not in corpus), None)
        if query_id not in texts or unknown is not None:
            raise DataError(f"{row.place}: query {query_id!r} or document {unknown!r} is missing in its table")
        wanted = {document for document, mark in judgements.get(query_id, {}).items() if mark > 0}
        if not wanted or not ids:
            skipped[_NO_CANDIDATE if wanted else NO_POSITIVE] += 1
            continue
        marks = np.array([each in wanted for each in ids])
        candidates = [corpus[each] for each in ids]
        queries.append(Query(texts[query_id], ids, candidates, marks, len(wanted) - int(marks.sum())))
    return RerankingSet(name, queries, dict(skipped))


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
