"""Queues of past vectors for one or several teachers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Generic, TypeVar, cast

from torch import Tensor, nn

from embedkit.training.components.cross_view_queues import CrossViewQueues
from embedkit.training.components.queue import VectorQueue

__all__ = ["TeacherQueues"]

Queues = TypeVar("Queues", VectorQueue, CrossViewQueues)


class TeacherQueues(nn.ModuleList, Generic[Queues]):
    """One entry per teacher: a queue, or the queues of two views.

    Entries may differ in width and are filled with the same sentences.

    Args:
        queues: the entry of each teacher.
    """

    def __init__(self, queues: Iterable[Queues]) -> None:
        super().__init__(queues)

    @property
    def each(self) -> list[Queues]:
        """The entries, in the order of the teachers."""
        return [cast(Queues, queues) for queues in self]

    def carry(self, teachers: Sequence[Sequence[Tensor]]) -> dict[str, Tensor]:
        """Return the tensors that :meth:`enqueue` needs, by name.

        Args:
            teachers: for each teacher, the vectors ``(B, T)`` of each view held by its queues.
        """
        return {
            f"teacher{place}.view{view}": vectors
            for place, teacher in enumerate(teachers)
            for view, vectors in enumerate(teacher)
        }

    def enqueue(self, carry: Mapping[str, Tensor]) -> None:
        """Add the vectors of a batch, as named by :meth:`carry`."""
        for place, queues in enumerate(self.each):
            own = f"teacher{place}."
            queues.enqueue(*(vectors for name, vectors in carry.items() if name.startswith(own)))
