"""Re-ranking sets in MTEB's two forms, from files or from the hub.

MTEB 1: a row per query, ``query, positive[], negative[]``. MTEB 2: four tables, ``corpus`` (``_id, title,
text``), ``queries`` (``_id, text``), ``qrels`` (``query-id, corpus-id, score``; on the hub often called
``default`` and kept in ``data/``) and ``top_ranked`` (``query-id, corpus-ids[]``).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from embedkit.errors import DataError
from embedkit.evaluation.hub import HubDataset
from embedkit.evaluation.reranking import Query, RerankingSet
from embedkit.evaluation.rows import Row, read_rows

__all__ = ["NO_POSITIVE", "collect_lists", "collect_tables", "has_tables", "load_lists", "load_tables"]

NO_POSITIVE = "without a positive"
_NO_NEGATIVE = "without a negative"
_NO_CANDIDATE = "without candidates"

_CORPUS = ("corpus",)
_QUERIES = ("queries", "query")
_QRELS = ("qrels", "default", "data")
_TOP_RANKED = ("top_ranked",)

Tables = Callable[[Sequence[str]], Iterable[Row]]
"""The rows of a table, called with the names that it may go by."""


def has_tables(source: Path | HubDataset) -> bool:
    """Whether a folder or hub data set is in MTEB 2's form."""
    if isinstance(source, HubDataset):
        return "corpus" in source.configurations()
    return source.is_dir() and any(source.glob("corpus*"))


def load_lists(source: Path | HubDataset, *, name: str, split: str = "test") -> RerankingSet:
    """Load a set in MTEB 1's form: a file, a folder that holds one for the split, or a hub data set.

    Raises:
        DataError: missing, empty or malformed; says which file and line.
    """
    if isinstance(source, HubDataset):
        return collect_lists(name, source.rows(split=split))
    return collect_lists(name, _folder_rows(source, ("", "data"), split) if source.is_dir() else read_rows(source))


def load_tables(source: Path | HubDataset, *, name: str, split: str = "test") -> RerankingSet:
    """Load a set in MTEB 2's form: a folder or a hub data set.

    Raises:
        DataError: a table is missing, empty or malformed.
    """
    if isinstance(source, Path):
        return collect_tables(name, lambda names: _folder_rows(source, names, split))
    configurations = source.configurations()

    def rows(names: Sequence[str]) -> Iterable[Row]:
        found = next((each for each in names if each in configurations), None)
        if found is None:
            raise DataError(f"{source}: expected a table {names[0]}, it has {', '.join(configurations)}")
        return source.rows(configuration=found, split=split)

    return collect_tables(name, rows)


def collect_lists(name: str, rows: Iterable[Row]) -> RerankingSet:
    """A set from rows of ``query, positive[], negative[]``; as in MTEB, a query needs one of each.

    Candidates get ids as MTEB 2 makes them when it converts this form: they decide its ties.
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


def collect_tables(name: str, tables: Tables) -> RerankingSet:
    """A set from the four tables of MTEB 2's form."""
    corpus = {row.identifier("_id", "id"): _document(row) for row in tables(_CORPUS)}
    texts = {row.identifier("_id", "id"): row.text("text") for row in tables(_QUERIES)}
    relevant = defaultdict[str, set[str]](set)
    for row in tables(_QRELS):
        if row.number("score") > 0:
            relevant[row.identifier("query-id")].add(row.identifier("corpus-id"))
    queries, skipped = [], Counter[str]()
    for row in tables(_TOP_RANKED):
        query_id, ids = row.identifier("query-id"), list(dict.fromkeys(row.texts("corpus-ids")))
        unknown = next((each for each in ids if each not in corpus), None)
        if query_id not in texts or unknown is not None:
            raise DataError(f"{row.place}: query {query_id!r} or document {unknown!r} is in no table")
        wanted = relevant[query_id]
        if not wanted or not ids:
            skipped[_NO_CANDIDATE if wanted else NO_POSITIVE] += 1
            continue
        marks = np.array([each in wanted for each in ids])
        candidates = [corpus[each] for each in ids]
        queries.append(Query(texts[query_id], ids, candidates, marks, len(wanted) - int(marks.sum())))
    return RerankingSet(name, queries, dict(skipped))


def _document(row: Row) -> str:
    """Title and text in one, as MTEB joins them."""
    title = row.fields.get("title") or ""
    return f"{title} {row.text('text')}".strip()


def _folder_rows(folder: Path, names: Sequence[str], split: str) -> Iterator[Row]:
    """Rows of the files of one table: ``NAME/SPLIT*`` in the hub's layout, ``NAME.*`` in BEIR's."""
    for name in names:
        patterns = [f"{name}/{split}*", f"{name}.*"] if name else [f"{split}*"]
        files = next(filter(None, (sorted(folder.glob(pattern)) for pattern in patterns)), [])
        if files:
            return (row for file in files for row in read_rows(file))
    raise DataError(f"{folder}: expected {names[0] or '.'}/{split}.jsonl or .parquet, found no such file")
