"""Shared by methods: losses over distributions and keys, queues of past vectors, and a head for training."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from embedkit.modeling.encoder import DenseHead, SentenceEncoder
from embedkit.modeling.pretrained import seeded

_BLOCK = 8


class Keys(NamedTuple):
    """Vectors that one view is scored against: past reference vectors and those of the batch, without gradient.

    Attributes:
        queue: ``(K, D) float32, unit rows``; K may be 0.
        batch: ``(B, D) float32, unit rows``; row i belongs to sentence i.
    """

    queue: Tensor
    batch: Tensor


class Distribution(NamedTuple):
    """A target distribution, ``(B, K + B) float32``, and the mean entropy of its rows in nats."""

    probabilities: Tensor
    entropy: Tensor


@torch.no_grad()
def similarity_logits(queries: Tensor, keys: Keys, temperature: float) -> Tensor:
    """Return cosines of unit rows divided by temperature: ``(B, K + B) float32``, without gradient.

    The result is float32 regardless of autocast: at K = 131,072 and temperature 0.01, logits reach 100, which
    half precision cannot resolve.
    """
    size = len(keys.queue)
    logits = queries.new_empty(len(queries), size + len(keys.batch), dtype=torch.float32)
    with torch.autocast(queries.device.type, enabled=False):
        scaled = queries.float() / temperature
        torch.mm(scaled, keys.queue.T, out=logits[:, :size])
        torch.mm(scaled, keys.batch.float().T, out=logits[:, size:])
    return logits


@torch.no_grad()
def target_distribution(keys: Keys, temperature: float) -> Distribution:
    """Return ``softmax(batch keys / temperature)`` of the keys' own vectors of the batch."""
    logits, entropies = similarity_logits(keys.batch, keys, temperature), []
    # On a CPU, in blocks of rows that stay in cache from one operation to the next; in place.
    for rows in logits.split(_BLOCK if logits.device.type == "cpu" else len(logits)):
        rows.sub_(rows.amax(dim=1, keepdim=True))
        probabilities = rows.exp()
        total = probabilities.sum(dim=1, keepdim=True)
        probabilities /= total
        entropies.append(total.log().sum() - _sum_of_products(probabilities, rows))
        rows.copy_(probabilities)
    return Distribution(logits, torch.stack(entropies).sum() / len(logits))


def cross_entropy(queries: Tensor, keys: Keys, probabilities: Tensor, *, temperature: float) -> Tensor:
    """Return ``-sum_j p_j log softmax_j(queries keys / temperature)``, averaged over the batch.

    Args:
        queries: ``(B, D) float, unit rows``.
        keys: the keys to score against.
        probabilities: p, ``(B, K + B) float32``, each row summing to 1.
        temperature: temperature of the softmax.
    """
    loss: Tensor = _CrossEntropy.apply(queries, keys, probabilities, temperature)  # type: ignore[no-untyped-call]
    return loss


def own_cross_entropy(queries: Tensor, keys: Keys, *, temperature: float) -> Tensor:
    """:func:`cross_entropy` with all probability on the sentence's own key in the batch."""
    loss: Tensor = _CrossEntropy.apply(queries, keys, None, temperature)  # type: ignore[no-untyped-call]
    return loss


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, queries: Tensor, keys: Keys, target: Tensor | None, temperature: float) -> Tensor:
        size, count = len(keys.queue), len(queries)
        logits = similarity_logits(queries, keys, temperature)
        logits -= logits.amax(dim=1, keepdim=True)
        own = logits[:, size:].diagonal()
        hit = own.mean() if target is None else _sum_of_products(target, logits) / count
        total = logits.exp_().sum(dim=1, keepdim=True)
        loss = total.log().mean() - hit
        if context.needs_input_grad[0]:
            # Division by the total comes later, when only D numbers per row are left.
            slopes = logits
            if target is None:
                own -= total.squeeze(1)
            else:
                slopes.addcmul_(target, total, value=-1)
            with torch.autocast(queries.device.type, enabled=False):
                gradient = torch.mm(slopes[:, :size], keys.queue).addmm_(slopes[:, size:], keys.batch.float())
            gradient /= total * temperature * count
            context.save_for_backward(gradient.to(queries.dtype))
        return loss

    @staticmethod
    def backward(context: Any, outer: Tensor) -> tuple[Tensor, None, None, None]:
        (gradient,) = context.saved_tensors
        return outer * gradient, None, None, None


def _sum_of_products(first: Tensor, second: Tensor) -> Tensor:
    """Return ``sum_ij first_ij second_ij`` without an intermediate matrix."""
    with torch.autocast(first.device.type, enabled=False):
        return torch.dot(first.flatten(), second.flatten())


def info_nce(anchors: Tensor, positives: Tensor, *, temperature: float) -> Tensor:
    """Return ``-mean_i log softmax_j(cos(a_i, p_j) / temperature)`` at j = i, computed in float32.

    Rows ``(B, D)`` may have any norm; positive i belongs to anchor i, all others are its negatives.
    """
    with torch.autocast(anchors.device.type, enabled=False):
        first, second = (functional.normalize(rows.float(), dim=1) for rows in (anchors, positives))
        logits = first @ second.T / temperature
        return functional.cross_entropy(logits, torch.arange(len(logits), device=logits.device))


def without_diagonal(square: Tensor) -> Tensor:
    """Remove the diagonal: ``(N, N)`` to ``(N, N - 1)``."""
    count = len(square)
    # After the first diagonal element, every (N + 1)-th element is on the diagonal.
    return square.flatten()[1:].view(count - 1, count + 1)[:, :-1].reshape(count, count - 1)


def squared_distance(students: Tensor, teachers: Tensor) -> Tensor:
    """Return ``mean_i |s_i - t_i|^2`` of ``(B, T)`` in float32; teachers get no gradient.

    For unit rows this is ``2 - 2 cos``, in [0, 4].
    """
    with torch.autocast(students.device.type, enabled=False):
        return (students.float() - teachers.detach().float()).square().sum(dim=1).mean()


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
