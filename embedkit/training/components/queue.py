"""A queue of past vectors: a ring buffer that is never reallocated."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from embedkit.modeling.seeding import seeded

__all__ = ["VectorQueue"]


class VectorQueue(nn.Module):
    """The newest K vectors, first in, first out.

    The queue starts with Gaussian rows of unit length, which are flushed after K / B steps. ``rows`` is in ring
    order; :meth:`ordered` returns the oldest first. Both buffers are saved with the checkpoint.

    Args:
        size: K; a queue of size 0 stays empty.
        dimension: D.
        seed: seed of the initial rows.

    Attributes:
        rows: ``(K, D) float32, unit rows``.
        pointer: position of the next vector, int64 scalar.
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

    def ordered(self) -> Tensor:
        """Return all rows, oldest first: ``(K, D)``."""
        return torch.roll(self.rows, -int(self.pointer), dims=0)
