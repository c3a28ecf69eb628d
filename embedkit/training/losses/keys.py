"""Distributions over keys: a queue of past vectors and the vectors of the batch, K + B in all.

At K = 131,072, one float per key and sentence takes 67 MB, so few such matrices are made: the products of the
queries with queue and batch are written into one block of memory, all further operations are in place, and the
gradient is computed together with the loss. Only ``(B, D)`` is kept for the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor

__all__ = ["Keys", "Reference", "Shuffle", "cross_entropy", "own_cross_entropy", "reference", "similarity_logits"]

Shuffle = Callable[[Tensor, Tensor], Tensor]
"""Maps distributions ``(B, K + B)`` and the column of each sentence's own key ``(B,) int64`` to distributions."""


_BLOCK = 8


class Keys(NamedTuple):
    """Vectors that one view is scored against: past reference vectors and those of the batch, without gradient.

    Attributes:
        queue: ``(K, D) float32, unit rows``; K may be 0.
        batch: ``(B, D) float32, unit rows``; row i belongs to sentence i.
    """

    queue: Tensor
    batch: Tensor


class Reference(NamedTuple):
    """A target distribution, ``(B, K + B) float32``, and the mean entropy of its rows in nats."""

    probabilities: Tensor
    entropy: Tensor


def own_columns(keys: Keys) -> Tensor:
    """Return the column of each sentence's own key: ``(B,) int64``."""
    return len(keys.queue) + torch.arange(len(keys.batch), device=keys.batch.device)


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
def reference(references: Sequence[Keys], temperature: float, shuffle: Shuffle | None = None) -> Reference:
    """Return the average of the references' distributions, ``softmax(batch keys / temperature)`` of each.

    Each reference scores its own vectors of the batch against its own keys, so that widths may differ; row j is
    the same sentence in all keys. Probabilities are averaged, not cosines or vectors.

    Args:
        references: one or more.
        temperature: temperature of the softmax.
        shuffle: shuffles probabilities, except those of each sentence's own key.
    """
    if len(references) == 1 and shuffle is None:
        return _ranking(references[0], temperature)
    probabilities = reduce(Tensor.add_, (_ranking(keys, temperature).probabilities for keys in references))
    probabilities /= len(references)
    if shuffle is not None:
        probabilities = shuffle(probabilities, own_columns(references[0]))
    return Reference(probabilities, torch.special.entr(probabilities).sum(dim=1).mean())


def _ranking(keys: Keys, temperature: float) -> Reference:
    logits = similarity_logits(keys.batch, keys, temperature)
    # On a CPU, in blocks of rows that stay in cache from one operation to the next.
    entropies = [_normalise(rows) for rows in logits.split(_BLOCK if logits.device.type == "cpu" else len(logits))]
    return Reference(logits, torch.stack(entropies).sum() / len(logits))


def _normalise(logits: Tensor) -> Tensor:
    """Turn rows of logits into probabilities, in place; return the sum of the rows' entropies."""
    logits -= logits.amax(dim=1, keepdim=True)
    probabilities = logits.exp()
    total = probabilities.sum(dim=1, keepdim=True)
    probabilities /= total
    entropy = total.log().sum() - _sum_of_products(probabilities, logits)
    logits.copy_(probabilities)
    return entropy


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
