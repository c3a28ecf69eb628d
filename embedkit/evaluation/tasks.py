"""Evaluation tasks: a task knows its texts and turns their embeddings into results."""

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
        """Name on the command line."""

    @property
    def needs_embeddings(self) -> bool:
        """Whether the task needs embeddings of texts, which cross-encoders do not provide."""

    def texts(self) -> Iterator[str]:
        """Yield every text to encode, including repeated ones."""

    def results(self, pool: Pool, /) -> list[Result]:
        """Compute the results from the model's outputs."""


def evaluate(model: TextEncoder | PairScorer, task: Task, *, progress: bool | None = None) -> Evaluation:
    """Evaluate a model on a task: an encoder by its cosines, a cross-encoder by its scores.

    Each distinct text is encoded once, each distinct pair scored once.

    Args:
        model: an encoder or a cross-encoder.
        task: a task from :func:`embedkit.evaluation.catalogue.load_task`.
        progress: False is silent; None shows a bar on a terminal, or logs progress.
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
