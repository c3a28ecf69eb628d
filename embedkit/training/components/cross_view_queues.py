"""The two queues of cross-view training, and their ablations."""

from __future__ import annotations

from typing import Literal, cast

from torch import Tensor, nn

from embedkit.training.components.queue import VectorQueue

__all__ = ["CrossViewQueues", "QueueKind"]

QueueKind = Literal["two", "one", "frozen", "none"]


class CrossViewQueues(nn.Module):
    """D1 and D2, which hold the reference vectors of view 1 and view 2.

    Args:
        size: K, number of vectors in a queue.
        dimension: D.
        kind: ``"two"`` is SCT; ``"one"`` is a shared queue that takes view 1 only; ``"frozen"`` queues keep
            their random rows; ``"none"`` scores against the batch only.
        seed: seed of the random rows.
    """

    def __init__(self, size: int, dimension: int, *, kind: QueueKind, seed: int) -> None:
        super().__init__()
        size = 0 if kind == "none" else size
        count = 1 if kind == "one" else 2
        self.frozen = kind == "frozen"
        queues = [VectorQueue(size, dimension, seed=2 * seed + number) for number in range(count)]
        self.queues = nn.ModuleList(queues)

    @property
    def rows(self) -> tuple[Tensor, Tensor]:
        """D1 and D2, each ``(K, D), unit rows``."""
        return self._each[0].rows, self._each[-1].rows

    @property
    def _each(self) -> list[VectorQueue]:
        return [cast(VectorQueue, queue) for queue in self.queues]

    def enqueue(self, *views: Tensor) -> None:
        """Add the reference vectors ``(B, D)`` of each view."""
        if self.frozen:
            return
        for queue, vectors in zip(self._each, views, strict=False):
            queue.enqueue(vectors)
