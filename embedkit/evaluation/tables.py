"""Sets of several tables, in BEIR's and MTEB 2's form, from a folder or from the hub.

``corpus`` (``_id, title, text``), ``queries`` (``_id, text``), ``qrels`` (``query-id, corpus-id, score``; on
the hub often called ``default`` and stored in ``data/``) and, for re-ranking, ``top_ranked`` (``query-id,
corpus-ids[]``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from embedkit.errors import DataError
from embedkit.evaluation.hub import HubDataset
from embedkit.evaluation.rows import Row, read_rows

__all__ = ["Tables", "folder_rows", "has_tables", "has_top_ranked"]

_CORPUS = ("corpus",)
_QUERIES = ("queries", "query")
_QRELS = ("qrels", "default", "data")
_TOP_RANKED = ("top_ranked",)


def has_tables(source: Path | HubDataset) -> bool:
    """Whether a folder or hub data set has this form."""
    if isinstance(source, HubDataset):
        return "corpus" in source.configurations()
    return source.is_dir() and any(source.glob("corpus*"))


def has_top_ranked(source: Path | HubDataset) -> bool:
    """Whether a set in this form has candidates to re-rank; otherwise it is a retrieval set."""
    if isinstance(source, HubDataset):
        return "top_ranked" in source.configurations()
    return any(source.glob("top_ranked*"))


@dataclass(frozen=True)
class Tables:
    """The rows of each table.

    Attributes:
        source: a folder or a hub data set.
        split: split of the judgements; several splits may share corpus and queries.
    """

    source: Path | HubDataset
    split: str = "test"

    def documents(self) -> dict[str, str]:
        """Return text by id, with title and text joined as in BEIR and MTEB.

        Raises:
            DataError: the table is missing or malformed.
        """
        return {row.identifier("_id", "id"): _document(row) for row in self._rows(_CORPUS)}

    def queries(self) -> dict[str, str]:
        """Return text by id.

        Raises:
            DataError: the table is missing or malformed.
        """
        return {row.identifier("_id", "id"): row.text("text") for row in self._rows(_QUERIES)}

    def judgements(self) -> dict[str, dict[str, float]]:
        """Return relevance by query id and document id.

        Raises:
            DataError: the table is missing or malformed.
        """
        found: dict[str, dict[str, float]] = {}
        for row in self._rows(_QRELS):
            marks = found.setdefault(row.identifier("query-id"), {})
            marks[row.identifier("corpus-id")] = row.number("score")
        return found

    def top_ranked(self) -> Iterator[Row]:
        """Yield the candidates of each query.

        Raises:
            DataError: the table is missing.
        """
        return self._rows(_TOP_RANKED)

    def _rows(self, names: Sequence[str]) -> Iterator[Row]:
        if isinstance(self.source, Path):
            return folder_rows(self.source, names, self.split)
        configurations = self.source.configurations()
        found = next((each for each in names if each in configurations), None)
        if found is None:
            expected = f"{self.source}: expected a table {names[0]}"
            raise DataError(f"{expected}, but it has {', '.join(configurations)}")
        return self.source.rows(configuration=found, split=self.split)


def folder_rows(folder: Path, names: Sequence[str], split: str) -> Iterator[Row]:
    """Yield the rows of one table's files: ``NAME/SPLIT*`` in the hub's layout, ``NAME.*`` in BEIR's.

    Raises:
        DataError: there is no such file.
    """
    for name in names:
        patterns = [f"{name}/{split}*", f"{name}.*"] if name else [f"{split}*"]
        files = next(filter(None, (sorted(folder.glob(pattern)) for pattern in patterns)), [])
        if files:
            return (row for file in files for row in read_rows(file))
    others = sorted(path.name for name in names if name for path in folder.glob(f"{name}/*"))
    there = f"; {names[0]}/ has {', '.join(others)}: name one of them" if others else ""
    raise DataError(f"{folder}: expected {names[0] or '.'}/{split}.jsonl or .parquet, found no such file{there}")


def _document(row: Row) -> str:
    """Join title and text."""
    title = row.fields.get("title") or ""
    return f"{title} {row.text('text')}".strip()
