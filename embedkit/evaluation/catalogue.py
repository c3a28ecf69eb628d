"""Evaluation tasks by name, and custom sets, recognised by their columns."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TypeGuard

from embedkit.atomic import expanded
from embedkit.errors import DataError, InputError, did_you_mean
from embedkit.evaluation import pairs, sts
from embedkit.evaluation.pairs import PAIR_TASKS, TRIPLET_COLUMNS, collect_labelled, collect_triplets
from embedkit.evaluation.reranking import RERANKING_TASKS, load_mteb
from embedkit.evaluation.retrieval import JUDGED_COLUMNS, RETRIEVAL_TASKS, collect_judgements, load_retrieval
from embedkit.evaluation.sources import (
    DataLocation,
    Source,
    has_tables,
    has_top_ranked,
    locate,
    of_split,
    plain_stem,
    plain_suffix,
    read_rows,
)
from embedkit.evaluation.sts import STS_TASKS, collect_pairs
from embedkit.evaluation.tasks import Conventions, EvaluationSet, Published, PublishedAverage, Task, by_convention
from embedkit.evaluation.transfer import TRANSFER_TASKS
from embedkit.records import HubDataset, Row
from embedkit.runtime.arguments import check_choice, check_path, check_text

_CONVENTIONS = ("useb", "mteb")

TASKS: dict[str, Published | PublishedAverage] = {
    **STS_TASKS,
    **RERANKING_TASKS,
    **RETRIEVAL_TASKS,
    **PAIR_TASKS,
    **TRANSFER_TASKS,
}
"""Task by name."""


def load_task(
    name: str | os.PathLike[str],
    *,
    data: str | os.PathLike[str] | None = None,
    convention: str | None = None,
    split: str = "test",
) -> Task:
    """Load the data of a task.

    Args:
        name: a name in :data:`TASKS`, optionally with ``@revision`` to override the pinned revision of the hub's
            data set; or a custom set, given as file, folder or hub id and recognised by its columns.
        data: the folder that contains named sets; if None, they are loaded from the hub.
        convention: re-ranking convention, ``"useb"`` or ``"mteb"``; None is every convention that the data
            supports.
        split: split of a custom set: the rows whose column ``split`` names it, or the judgements to use.

    Raises:
        DataError: the data is missing or malformed, or does not support the convention.
        InputError: the task or convention does not exist.
        MissingExtraError: the hub or a Parquet file without the extra ``bench``.
    """
    if convention is not None:
        check_choice(convention, _CONVENTIONS, "convention")
    check_text(split, "split")
    name, conventions = check_path(name, "name"), _CONVENTIONS if convention is None else (convention,)
    folder = None if data is None else expanded(check_path(data, "data"))
    if folder is not None and not folder.is_dir():
        raise DataError(f"the data folder {folder} does not exist")
    known, _, revision = name.partition("@")
    if known not in TASKS:
        return _load_own(_find_own(name, folder), conventions, split)
    if revision and (folder is not None or TASKS[known].hub is None):
        raise InputError(
            f"{name}: a revision applies to a single data set on the hub, not to a folder or several sets"
        )
    return TASKS[known].load(known, DataLocation(folder, revision or None), conventions)


def _find_own(name: str, folder: Path | None) -> Source:
    """Locate a path, a file in the data folder (with or without ``.jsonl``) or a hub id."""
    if folder is not None and not expanded(name).exists():
        try:
            return DataLocation(folder).find(name, f"{name}.jsonl")
        except DataError:
            pass  # it may be a hub id
    if "/" not in name and not Path(name).exists() and not plain_suffix(Path(name)):
        hint = did_you_mean(name, TASKS, "name a file or a hub id, or a task of `embedkit evaluate --list`")
        raise InputError(f"unknown task {name!r}; {hint}")
    return locate(name)


def _load_own(source: Source, conventions: Conventions, split: str) -> Task:
    name = source.id if isinstance(source, HubDataset) else plain_stem(source)
    if _is_judgements(source):
        name = f"{source.parents[1].name}-{name}"
    read = _read_own(name, source, split)
    sets = by_convention({read.convention: lambda: read}, conventions, source) if read.convention else [read]
    return Task(name, [replace(one, source=str(source)) for one in sets])


def _read_own(name: str, source: Source, split: str) -> EvaluationSet:
    """Read a set; the first row of a file determines its form."""
    if _is_judgements(source):
        return load_retrieval(source, name=name)
    if has_tables(source) and not has_top_ranked(source):
        return load_retrieval(source, name=name, split=split)
    if has_tables(source) or (isinstance(source, Path) and source.is_dir()):
        return load_mteb(source, name=name, split=split)
    read = source.rows(split=split) if isinstance(source, HubDataset) else read_rows(source, headless=True)
    rows = of_split(read, split)
    first = next(rows, None)
    if first is None:
        raise DataError(f"{source}: expected rows, found none")
    if (form := _form(first)) == "re-ranking":
        return load_mteb(source, name=name, split=split)
    return _COLLECT[form](name, chain([first], rows))


def _form(row: Row) -> str:
    """Return the form of a set, determined by the columns of its first row."""
    form = next((form for form, columns in _FORMS.items() if all(_has(row, names) for names in columns)), None)
    if form is None:
        expected = "; ".join(
            f"{', '.join(' or '.join(names[:2]) for names in columns)} ({form})"
            for form, columns in _FORMS.items()
        )
        raise DataError(
            f"{row.place}: found the columns {', '.join(map(str, row.fields)):.200}; expected {expected}"
        )
    if form == "triplets" and isinstance(row.fields["positive"], list):
        return "re-ranking"
    return form


def _has(row: Row, names: tuple[str, ...]) -> bool:
    return any(name in row.fields for name in names)


_FORMS = {
    "scored pairs": sts.COLUMNS,
    "labelled pairs": pairs.COLUMNS,
    "triplets": TRIPLET_COLUMNS,
    "judged documents": JUDGED_COLUMNS,
}
"""Form -> the accepted names of each column; lists in ``positive`` make it re-ranking."""

_COLLECT: dict[str, Callable[[str, Iterable[Row]], EvaluationSet]] = {
    "scored pairs": collect_pairs,
    "labelled pairs": collect_labelled,
    "triplets": collect_triplets,
    "judged documents": collect_judgements,
}


def _is_judgements(source: Source) -> TypeGuard[Path]:
    """Whether the source is one split of a corpus's judgements, for example ``FOLDER/qrels/dev.tsv``."""
    return (
        isinstance(source, Path)
        and source.is_file()
        and source.parent.name == "qrels"
        and has_tables(source.parents[1])
    )
