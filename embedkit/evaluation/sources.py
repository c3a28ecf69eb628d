"""Locations of evaluation sets, and scored pairs in all supported forms."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from embedkit.errors import DataError
from embedkit.evaluation.hub import HubDataset
from embedkit.evaluation.rows import RECORD_SUFFIXES, Row, plain_suffix, read_rows, read_table
from embedkit.evaluation.sts import ScoredPairs

__all__ = ["FIRST", "SCORE", "SECOND", "any_rows", "collect_pairs", "load_scored_pairs", "locate"]

FIRST = ("sentence1", "sentence_A")
SECOND = ("sentence2", "sentence_B")
SCORE = ("score", "relatedness_score", "similarity_score")
_STSB = ["genre", "file", "year", "id", "score", "sentence1", "sentence2"]

_FILE_SUFFIXES = (".csv", ".gz", ".jsonl", ".parquet", ".tsv", ".txt", ".xz")


def locate(source: str | Path | HubDataset, *, revision: str | None = None) -> Path | HubDataset:
    """Distinguish a path from a hub id: anything that exists locally or looks like a file is a path.

    Args:
        source: a path, a hub data set, ``org/name`` or ``hf://org/name[@revision][:split]``.
        revision: default revision of a hub id.

    Raises:
        DataError: the file does not exist, and it is not a hub id.
    """
    if isinstance(source, HubDataset):
        return source
    if not str(source).startswith("hf://"):
        path = Path(source).expanduser()
        if path.exists():
            return path
        if isinstance(source, Path) or path.suffix in _FILE_SUFFIXES:
            raise DataError(f"there is no file or folder {path}")
    found = HubDataset.parse(str(source))
    return HubDataset(found.id, found.revision or revision, found.split)


def load_scored_pairs(
    source: str | Path | HubDataset, *, name: str | None = None, split: str = "test", revision: str | None = None
) -> ScoredPairs:
    """Load pairs of sentences with a score each.

    Files: STS-B as published (TAB; score in field 5, sentences in fields 6 and 7; no header), SICK (TAB
    with a header), TSV or CSV of ``sentence1, sentence2, score`` with or without a header, JSONL or
    Parquet with these columns. Text files may be ``.gz`` or ``.xz``. Hub: data sets with these columns.

    Args:
        source: a path, a hub data set, ``org/name`` or ``hf://org/name[@revision][:split]``.
        name: name of the set; by default that of the file or hub data set.
        split: default split of a hub id.
        revision: default revision of a hub id.

    Raises:
        DataError: missing, empty or malformed; names the file and line.
        MissingExtraError: a hub id or a Parquet file without the extra ``bench``.
    """
    found = locate(source, revision=revision)
    if isinstance(found, HubDataset):
        return collect_pairs(name or found.id, found.rows(split=split))
    return collect_pairs(name or found.name.partition(".")[0], any_rows(found))


def any_rows(path: Path) -> Iterator[Row]:
    """Yield the rows of a file of any form; tables without a header are assumed to be scored pairs.

    Raises:
        DataError: missing or malformed; names the line.
        MissingExtraError: a Parquet file without pyarrow.
    """
    if path.is_dir():
        raise DataError(f"expected a file, but {path} is a folder")
    return read_rows(path) if plain_suffix(path) in RECORD_SUFFIXES else _table_rows(path)


def collect_pairs(name: str, rows: Iterable[Row]) -> ScoredPairs:
    """Collect scored pairs from rows with two sentences and a score under their usual names."""
    triples = [(row.text(*FIRST), row.text(*SECOND), row.number(*SCORE)) for row in rows]
    scores = np.array([score for _, _, score in triples], dtype=np.float64)
    return ScoredPairs(name, [first for first, _, _ in triples], [second for _, second, _ in triples], scores)


def _table_rows(path: Path) -> Iterator[Row]:
    """Yield rows of a table with or without a header; extra fields are ignored (in STS-B, sources)."""
    columns: list[str] | None = None
    for place, fields in read_table(path):
        if columns is None:
            columns = _columns_without_header(fields)
            if columns is None:
                columns = fields
                continue
        if len(fields) < len(columns):
            raise DataError(f"{place}: expected {len(columns)} fields, got {len(fields)}")
        yield Row(place, dict(zip(columns, fields, strict=False)))


def _columns_without_header(fields: list[str]) -> list[str] | None:
    """Return the columns of a table without a header, recognised by the position of a number in the first line."""
    if len(fields) >= 7 and _is_number(fields[4]):
        return _STSB
    if len(fields) == 3 and _is_number(fields[2]):
        return ["sentence1", "sentence2", "score"]
    return None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
