"""Parts of methods: queues of past vectors, and a head for training only."""

from __future__ import annotations

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
