"""Evaluation tasks: a task knows its texts and turns their embeddings into results."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar, runtime_checkable

from embedkit.errors import DataError, InputError
from embedkit.evaluation.pool import EmbeddingPool, PairPool, Pool
from embedkit.evaluation.results import Evaluation, Result
from embedkit.evaluation.sources import Shelf
from embedkit.progress import Progress
from embedkit.protocols import PairScorer, TextEncoder
from embedkit.records import HubDataset
from embedkit.runtime.arguments import check_flag, shown

Conventions = tuple[str, ...]
"""Requested re-ranking conventions, ``"useb"`` or ``"mteb"``."""

_Set = TypeVar("_Set")


@runtime_checkable
class Task(Protocol):
    """A named evaluation whose data is loaded."""

    @property
    def name(self) -> str:
        """Name on the command line."""

    @property
    def needs_embeddings(self) -> bool:
        """Whether the task needs embeddings of texts, which cross-encoders do not provide."""

    def texts(self) -> Iterator[str]:
        """Yield every text to encode, including repeated ones."""

    def results(self, pool: Pool, /) -> list[Result]:
        """Compute the results from the model's outputs."""


@dataclass(frozen=True)
class Entry:
    """A named task, before its data is loaded.

    Attributes:
        what: short description of the set.
        size: its published size, as text.
        load: loads it from a shelf.
        hub: the pinned data set, None if it needs local files.
    """

    what: str
    size: str
    load: Callable[[Shelf, Conventions], Task]
    hub: HubDataset | None = None


def load_several(
    name: str, loaders: Mapping[str, Callable[[Shelf], _Set]], shelf: Shelf
) -> tuple[list[_Set], dict[str, str]]:
    """Load the available ones of several sets; return them, and why each of the others could not be loaded.

    Raises:
        DataError: none can be loaded.
    """
    sets, missing = list[_Set](), dict[str, str]()
    for each, load in loaders.items():
        try:
            sets.append(load(shelf))
        except DataError as error:
            missing[each] = str(error)
    if not sets:
        raise DataError(f"none of the {len(loaders)} sets of {name} can be loaded: " + "; ".join(missing.values()))
    return sets, missing


def evaluate(model: TextEncoder | PairScorer, task: Task, *, progress: bool | None = None) -> Evaluation:
    """Evaluate a model on a task: an encoder by its cosines, a cross-encoder by its scores.

    Each distinct text is encoded once, each distinct pair scored once.

    Args:
        model: an encoder or a cross-encoder.
        task: a task from :func:`embedkit.evaluation.catalogue.load_task`.
        progress: False is silent; None shows a bar on a terminal, or logs progress.

    Raises:
        InputError: an argument is something else.
    """
    if not isinstance(model, (TextEncoder, PairScorer)) or isinstance(model, type):
        raise InputError(f"model must be an encoder or a cross-encoder, not {shown(model)}")
    if not isinstance(task, Task):
        raise InputError(f"task must be a result of load_task, not {shown(task)}")
    if progress is not None:
        check_flag(progress, "progress")
    started = time.perf_counter()
    label = f"{model.name} on {task.name}"
    pool: Pool
    if isinstance(model, TextEncoder):
        pool = EmbeddingPool(model, task.texts(), label=label, progress=progress)
        results = task.results(pool)
    else:
        with Progress(label, unit="pairs", enabled=progress) as bar:
            pool = PairPool(model, bar)
            results = task.results(pool)
    return Evaluation(
        model=model.name,
        fingerprint=model.fingerprint,
        dimension=model.dimension if isinstance(model, TextEncoder) else None,
        max_length=model.max_length,
        task=task.name,
        texts=len(pool),
        seconds=time.perf_counter() - started,
        results=results,
    )
