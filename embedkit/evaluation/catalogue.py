"""Evaluation tasks by name, and custom sets."""

from __future__ import annotations

import difflib
from pathlib import Path

from embedkit.errors import DataError, InputError
from embedkit.evaluation.own_sets import find_own, load_own
from embedkit.evaluation.published.pairs import PAIR_TASKS
from embedkit.evaluation.published.reranking import RERANKING_TASKS
from embedkit.evaluation.published.retrieval import RETRIEVAL_TASKS
from embedkit.evaluation.published.sts import STS_TASKS
from embedkit.evaluation.published.transfer import TRANSFER_TASKS
from embedkit.evaluation.senteval_text import as_senteval
from embedkit.evaluation.shelf import Entry, Shelf
from embedkit.evaluation.tasks import Task

__all__ = ["CONVENTIONS", "TASKS", "TEXTS", "load_task"]

CONVENTIONS = ("useb", "mteb")
TEXTS = ("raw", "senteval")

TASKS: dict[str, Entry] = {**STS_TASKS, **RERANKING_TASKS, **RETRIEVAL_TASKS, **PAIR_TASKS, **TRANSFER_TASKS}
"""Task by name."""


def load_task(
    name: str, *, data: str | Path | None = None, convention: str | None = None, text: str = "raw"
) -> Task:
    """Load the data of a task.

    Args:
        name: a name in :data:`TASKS`, optionally with ``@revision`` to override the pinned revision of the hub's
            data set; or a custom set, given as file, folder or hub id and recognised by its columns.
        data: the folder that contains named sets; if None, they are loaded from the hub.
        convention: re-ranking convention, ``"useb"`` or ``"mteb"``; None is every convention that the data
            supports.
        text: ``"raw"``, unchanged, or ``"senteval"``, tokenized and lower-cased (STS sets only).

    Raises:
        DataError: the data is missing or malformed, or does not support the convention.
        InputError: the task, convention or text does not exist.
        MissingExtraError: the hub or a Parquet file without the extra ``bench``.
    """
    if convention is not None and convention not in CONVENTIONS:
        raise InputError(f"expected one of the conventions {', '.join(CONVENTIONS)}, got {convention!r}")
    if text not in TEXTS:
        raise InputError(f"expected the text {' or '.join(TEXTS)}, got {text!r}")
    task = _load(name, data, convention)
    return as_senteval(task) if text == "senteval" else task


def _load(name: str, data: str | Path | None, convention: str | None) -> Task:
    folder = None if data is None else Path(data).expanduser()
    if folder is not None and not folder.is_dir():
        raise DataError(f"the data folder {folder} does not exist")
    conventions = CONVENTIONS if convention is None else (convention,)
    known, _, revision = name.partition("@")
    if known in TASKS:
        return _load_known(known, revision, folder, conventions)
    source = find_own(name, folder)
    if source is None:
        near = difflib.get_close_matches(name, TASKS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"the tasks are {', '.join(TASKS)}, a file or a hub id"
        raise InputError(f"unknown task {name!r}; {hint}")
    return load_own(source, conventions)


def _load_known(name: str, revision: str, folder: Path | None, conventions: tuple[str, ...]) -> Task:
    entry = TASKS[name]
    if revision and (folder is not None or entry.hub is None):
        raise InputError(
            f"{name}@{revision}: a revision applies to a single data set on the hub, not to a folder or several "
            "sets"
        )
    return entry.load(Shelf(folder, revision or None), conventions)
