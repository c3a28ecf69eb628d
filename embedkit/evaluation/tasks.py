"""Evaluation by name: a task knows its texts and turns their embeddings into results."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Protocol

from embedkit.evaluation.pool import EmbeddingPool, PairPool, Pool
from embedkit.evaluation.results import Evaluation, Result
from embedkit.progress import Progress
from embedkit.protocols import PairScorer, TextEncoder

__all__ = ["Task", "evaluate"]


class Task(Protocol):
    """A named evaluation whose data is loaded."""

    @property
    def name(self) -> str:
        """What the command line calls it."""

    @property
    def needs_embeddings(self) -> bool:
        """Whether it asks for embeddings of texts, which a cross-encoder does not have."""

    def texts(self) -> Iterator[str]:
        """Every text to embed, repeated ones included."""

    def results(self, pool: Pool, /) -> list[Result]:
        """Score what the model finds alike."""


def evaluate(model: TextEncoder | PairScorer, task: Task, *, progress: bool | None = None) -> Evaluation:
    """Evaluate a model on a task: an encoder by its cosines, a cross-encoder by its scores.

    Each distinct text is encoded once, each distinct pair scored once.

    Args:
        model: an encoder or a cross-encoder.
        task: from :func:`embedkit.evaluation.catalogue.load_task`.
        progress: False is silent; None shows it on a terminal, or logs it.
    """
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
