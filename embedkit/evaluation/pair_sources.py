"""Labelled pairs from rows, in the published layouts and with the usual column names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from embedkit.errors import DataError
from embedkit.evaluation.pairs import LabelledPairs
from embedkit.evaluation.rows import Row, read_lines

__all__ = ["FIRST", "LABEL", "SECOND", "collect_labelled", "read_headless"]

FIRST = ("sentence1", "text1", "question1", "question", "sent1", "#1 String")
SECOND = ("sentence2", "text2", "question2", "sentence", "sent2", "#2 String")
LABEL = ("label", "labels", "is_duplicate", "Quality")

_LABELS = {
    "1": True, "true": True, "entailment": True, "duplicate": True,
    "0": False, "false": False, "not_entailment": False, "not_duplicate": False,
}  # fmt: skip


def collect_labelled(name: str, rows: Iterable[Row]) -> LabelledPairs:
    """Collect labelled pairs from rows of two texts and a label; a row may hold whole columns, as in MTEB 1.

    Raises:
        DataError: a row is malformed, a label is unknown, or all pairs have the same label.
    """
    first, second, labels = list[str](), list[str](), list[bool]()
    for row in _single(rows):
        first.append(row.text(*FIRST))
        second.append(row.text(*SECOND))
        labels.append(_label(row))
    return LabelledPairs(name, first, second, np.array(labels, dtype=np.bool_))


def read_headless(path: Path) -> Iterator[Row]:
    """Yield rows of the partition of Quora's questions used in papers: label, question, question, id, no header.

    The published files contain truncated characters, which are replaced.

    Raises:
        DataError: the file is missing, or a line has too few fields.
    """
    for place, line in read_lines(path, errors="replace"):
        fields = line.split("\t")
        if len(fields) < 3:
            raise DataError(f"{place}: expected a label and two questions between TABs, got {line:.60}")
        yield Row(place, dict(zip(("label", "question1", "question2"), fields, strict=False)))


def _single(rows: Iterable[Row]) -> Iterator[Row]:
    for row in rows:
        if not isinstance(row.value(*LABEL), list):
            yield row
            continue
        columns = {
            name: row.value(*names) for name, names in (("text1", FIRST), ("text2", SECOND), ("label", LABEL))
        }
        if len({len(column) for column in columns.values()}) != 1:
            raise DataError(f"{row.place}: expected equal numbers of first texts, second texts and labels")
        for values in zip(*columns.values(), strict=True):
            yield Row(row.place, dict(zip(columns, values, strict=True)))


def _label(row: Row) -> bool:
    value = row.value(*LABEL)
    written = str(int(value)) if isinstance(value, bool | float) and value in (0, 1) else str(value)
    if written.strip().lower() not in _LABELS:
        raise DataError(f"{row.place}: expected a label among {', '.join(_LABELS)}, got {value!r:.40}")
    return _LABELS[written.strip().lower()]
