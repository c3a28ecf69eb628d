"""A queue of past vectors: a ring buffer that is never re-allocated."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["VectorQueue"]


class VectorQueue(nn.Module):
    """The newest K vectors, first in, first out.

    It starts with Gaussian rows of unit length, which are flushed after K / B steps. The order of
    ``rows`` is the ring's; :meth:`ordered` gives them oldest first. Both buffers travel with the checkpoint.

    Args:
        size: K; 0 is a queue that stays empty.
        dimension: D.
        seed: of the first rows.

    Attributes:
        rows: ``(K, D) float32, unit rows``.
        pointer: where the next vector goes, int64 scalar.
    """

    rows: Tensor
    pointer: Tensor

    def __init__(self, size: int, dimension: int, *, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        rows = functional.normalize(torch.randn(size, dimension, generator=generator), dim=1)
        self.register_buffer("rows", rows)
        self.register_buffer("pointer", torch.zeros((), dtype=torch.int64))

    def __len__(self) -> int:
        return len(self.rows)

    @torch.no_grad()
    def enqueue(self, vectors: Tensor) -> None:
        """Replace the oldest rows by ``vectors`` (B, D); of more than K only the newest K stay."""
        size = len(self)
        vectors = vectors[-size:] if size else vectors[:0]
        start = int(self.pointer)
        head = min(len(vectors), size - start)
        self.rows[start : start + head] = vectors[:head]
        self.rows[: len(vectors) - head] = vectors[head:]
        if size:
            self.pointer.fill_((start + len(vectors)) % size)

    def ordered(self) -> Tensor:
        """All rows, oldest first: ``(K, D)``."""
        return torch.roll(self.rows, -int(self.pointer), dims=0)
