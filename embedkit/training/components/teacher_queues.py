"""Past vectors of one or several teachers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Generic, TypeVar, cast

from torch import Tensor, nn

from embedkit.training.components.cross_view_queues import CrossViewQueues
from embedkit.training.components.queue import VectorQueue

__all__ = ["TeacherQueues"]

Queues = TypeVar("Queues", VectorQueue, CrossViewQueues)


class TeacherQueues(nn.ModuleList, Generic[Queues]):
    """What each teacher has for itself: one queue, or the queues of two views.

    They differ in width and are filled with the same sentences.

    Args:
        queues: of each teacher.
    """

    def __init__(self, queues: Iterable[Queues]) -> None:
        super().__init__(queues)

    @property
    def each(self) -> list[Queues]:
        """Those of each teacher."""
        return [cast(Queues, queues) for queues in self]

    def carry(self, teachers: Sequence[Sequence[Tensor]]) -> dict[str, Tensor]:
        """What :meth:`enqueue` needs of a batch.

        Args:
            teachers: for each teacher the vectors ``(B, T)`` of each view that its queues hold.
        """
        return {
            f"teacher{place}.view{view}": vectors
            for place, teacher in enumerate(teachers)
            for view, vectors in enumerate(teacher)
        }

    def enqueue(self, carry: Mapping[str, Tensor]) -> None:
        """Add the vectors of a batch."""
        for place, queues in enumerate(self.each):
            own = f"teacher{place}."
            queues.enqueue(*(vectors for name, vectors in carry.items() if name.startswith(own)))
