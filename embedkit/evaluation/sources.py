"""Evaluation sets in any of their published forms, from a file or from the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from embedkit.errors import DataError
from embedkit.evaluation.records import HubDataset, Record, read_json_lines, read_parquet, read_table
from embedkit.evaluation.sts import ScoredPairs

__all__ = ["load_scored_pairs", "locate"]

_FIRST = ("sentence1", "sentence_A", "text1")
_SECOND = ("sentence2", "sentence_B", "text2")
_SCORE = ("score", "relatedness_score", "label")

_SUFFIXES = (".jsonl", ".json", ".tsv", ".csv", ".txt", ".parquet")


def locate(source: str | Path) -> Path | HubDataset:
    """Decide whether a set is a path or a hub id; what exists on disk is never looked for on the hub.

    Raises:
        DataError: neither.
    """
    text = str(source)
    if isinstance(source, Path) or not text.startswith("hf://"):
        path = Path(source)
        if path.exists():
            return path
        plain = path.with_suffix("") if path.suffix in (".gz", ".xz") else path
        if isinstance(source, Path) or plain.suffix in _SUFFIXES or text.startswith((".", "/", "~")):
            raise DataError(f"no file or folder {path}")
    return HubDataset.parse(text)


def load_scored_pairs(
    source: str | Path, *, split: str = "test", revision: str | None = None, name: str | None = None
) -> ScoredPairs:
    """Load pairs of sentences with a score each.

    Files: STS-B as published (TAB, score in column 5, sentences in columns 6 and 7, no header), SICK
    (TAB with a header), TSV or CSV of ``sentence1, sentence2, score`` with or without a header, and
    JSONL or Parquet with these columns; text files also as ``.gz`` or ``.xz``. Hub: ``org/name`` or
    ``hf://org/name[@revision][:split]``.

    Args:
        source: a path or a hub id.
        split: the hub split where ``source`` names none.
        revision: the hub revision where ``source`` names none.
        name: what the set is called; the file's stem or hub id if not given.

    Raises:
        DataError: missing, empty or malformed; names the file and line.
        MissingExtraError: a hub id or Parquet without the extra ``bench``.
    """
    found = locate(source)
    if isinstance(found, Path):
        return collect_pairs(name or found.name.partition(".")[0], _file_records(found))
    pinned = HubDataset(found.id, found.revision or revision, found.split)
    return collect_pairs(name or found.id, pinned.records(split=split))


def collect_pairs(name: str, records: Iterable[Record]) -> ScoredPairs:
    """Scored pairs from rows that have two sentences and a score under one of their usual names."""
    first, second, scores = [], [], []
    for record in records:
        first.append(record.text(*_FIRST))
        second.append(record.text(*_SECOND))
        scores.append(record.number(*_SCORE))
    return ScoredPairs(name, first, second, np.asarray(scores, dtype=np.float64))


def _file_records(path: Path) -> Iterator[Record]:
    if path.is_dir():
        raise DataError(f"expected a file of scored pairs, {path} is a folder")
    plain = path.with_suffix("") if path.suffix in (".gz", ".xz") else path
    if plain.suffix in (".jsonl", ".json"):
        return read_json_lines(path)
    return read_parquet(path) if plain.suffix == ".parquet" else _table_records(path)


def _table_records(path: Path) -> Iterator[Record]:
    rows = read_table(path)
    first = next(rows, None)
    if first is None:
        return
    columns = _columns(*first)
    if columns is None:  # the first line is the header
        columns = first[1]
    else:
        yield _record(*first, columns)
    for place, fields in rows:
        if fields and fields != [""]:
            yield _record(place, fields, columns)


def _columns(place: str, fields: list[str]) -> list[str] | None:
    """Names of the columns of a table without a header, told by where its first row has a number."""
    if len(fields) >= 7 and _is_number(fields[4]):
        return ["genre", "file", "year", "id", "score", "sentence1", "sentence2"]
    if len(fields) == 3 and _is_number(fields[2]):
        return ["sentence1", "sentence2", "score"]
    Record(place, dict.fromkeys(fields)).value(*_SCORE)
    return None


def _record(place: str, fields: list[str], columns: list[str]) -> Record:
    """Fields behind the named ones are passed over: STS-B has its sources there in some rows."""
    if len(fields) < len(columns):
        raise DataError(f"{place}: expected {len(columns)} columns, got {len(fields)}")
    return Record(place, dict(zip(columns, fields, strict=False)))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
