"""Parts of methods: queues of past vectors, an average of the weights, and a head for training only."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Generic, Literal, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from embedkit.modeling.encoder import DenseHead, SentenceEncoder
from embedkit.modeling.seeding import seeded


class VectorQueue(nn.Module):
    """The newest K vectors, first in, first out.

    The queue starts with Gaussian rows of unit length, which are flushed after K / B steps. Both
    buffers are saved with the checkpoint. A queue of size 0 stays empty.

    Attributes:
        rows: ``(K, D) float32, unit rows``, in ring order.
        pointer: position of the oldest vector, which the next one replaces, int64 scalar.
    """

    rows: Tensor
    pointer: Tensor

    def __init__(self, size: int, dimension: int, *, seed: int) -> None:
        super().__init__()
        with seeded(seed):
            rows = torch.randn(size, dimension)
        self.register_buffer("rows", functional.normalize(rows, dim=1))
        self.register_buffer("pointer", torch.zeros((), dtype=torch.int64))

    def __len__(self) -> int:
        return len(self.rows)

    @torch.no_grad()
    def enqueue(self, vectors: Tensor) -> None:
        """Replace the oldest rows by ``vectors`` (B, D); if B > K, only the last K are kept."""
        size = len(self)
        vectors = vectors[-size:] if size else vectors[:0]
        start = int(self.pointer)
        head = min(len(vectors), size - start)
        self.rows[start : start + head] = vectors[:head]
        self.rows[: len(vectors) - head] = vectors[head:]
        if size:
            self.pointer.fill_((start + len(vectors)) % size)


QueueKind = Literal["two", "one", "frozen", "none"]


class CrossViewQueues(nn.Module):
    """D1 and D2, which hold the reference vectors of view 1 and view 2.

    ``"two"`` queues are SCT's; ``"one"`` is a shared queue that takes view 1 only; ``"frozen"`` queues keep their
    random rows; ``"none"`` scores against the batch only.
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


Queues = TypeVar("Queues", VectorQueue, CrossViewQueues)


class TeacherQueues(nn.ModuleList, Generic[Queues]):
    """One entry per teacher: a queue, or the queues of two views.

    Entries may differ in width and are filled with the same sentences.
    """

    def __init__(self, queues: Iterable[Queues]) -> None:
        super().__init__(queues)

    @property
    def each(self) -> list[Queues]:
        """The entries, in the order of the teachers."""
        return [cast(Queues, queues) for queues in self]

    def carry(self, teachers: Sequence[Sequence[Tensor]]) -> dict[str, Tensor]:
        """Name the tensors that :meth:`enqueue` needs: each teacher's vectors ``(B, T)`` of each view."""
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


Network = TypeVar("Network", bound=nn.Module)


class MovingAverage(nn.Module, Generic[Network]):
    """An exponential moving average of a network's parameters, which get no gradients.

    It starts equal to the network. ``momentum`` is the weight of the old average in an update: 1 never moves, 0
    copies.
    """

    network: Network

    def __init__(self, network: Network, *, momentum: float) -> None:
        super().__init__()
        self.momentum = momentum
        self.network = copy.deepcopy(network).requires_grad_(False)

    @torch.no_grad()
    def update(self, source: Network) -> None:
        """Move towards ``source``: average = momentum * average + (1 - momentum) * source."""
        for average, current in zip(self.network.parameters(), source.parameters(), strict=True):
            average.lerp_(current, 1 - self.momentum)


_BERT_SCALE = 0.02  # standard deviation of BERT's initialisation


def training_head(encoder: SentenceEncoder, *, seed: int) -> DenseHead:
    """Return SimCSE's head, Linear(H -> H) and tanh with BERT's initialisation, as in the authors' code.

    It is not part of the encoder and therefore not exported.
    """
    with seeded(seed):
        head = DenseHead(encoder.pooled_width, encoder.pooled_width)
        nn.init.normal_(head.linear.weight, std=_BERT_SCALE)
    nn.init.zeros_(head.linear.bias)
    return head
