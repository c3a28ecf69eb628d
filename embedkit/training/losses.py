"""Losses that several methods share: distributions over keys, shuffled targets, InfoNCE and squared distance."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

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

    ``shuffle`` shuffles probabilities, except those of each sentence's own key.
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


Grouping = Callable[[Tensor], Tensor]
"""Maps rows of descending scores, ``(N, C) float``, to the group of each rank, ``(N, C) int64`` from 0."""


@torch.no_grad()
def shuffle_within_groups(scores: Tensor, grouping: Grouping) -> Tensor:
    """Randomly permute the scores ``(N, C)`` of each row among ranks of the same group, without gradient.

    Rows are shuffled independently by torch's generator, differently at each call. Each row keeps its values; only
    their columns change. Groups must not decrease with rank.
    """
    ranked, columns = scores.sort(dim=1, descending=True)
    # Sorting a random order stably by group is uniform within groups, however many there are;
    # adding a random fraction to the group's number would run out of bits.
    chance = torch.rand_like(ranked).argsort(dim=1)
    order = chance.gather(1, grouping(ranked).gather(1, chance).argsort(dim=1, stable=True))
    return torch.empty_like(ranked).scatter_(1, columns.gather(1, order), ranked)


@torch.no_grad()
def shuffle_probabilities(probabilities: Tensor, own: Tensor, *, mass: float, ranks: int) -> Tensor:
    """Group-P shuffling of a distribution over many keys, one of which is the sentence's own and stays unchanged.

    The own key is excluded, as DistillCSE excludes the diagonal: it holds most of a sharp distribution, and
    moving its probability would teach that a sentence resembles another more than itself. Of the others, the
    ``ranks`` most probable are shuffled in groups that each hold a share ``mass`` of their probability; the rest
    stay in place, because sorting a long queue would cost far more than it changes.

    Args:
        probabilities: ``(B, C) float``, rows summing to 1.
        own: ``(B,) int64``, the column of each row's own key.
        mass: p, the share of a group, in (0, 1].
        ranks: n, number of other keys to shuffle; all of them if there are fewer.

    Returns:
        ``(B, C)``, with the same row sums, without gradient.
    """
    others = probabilities.scatter(1, own[:, None], -1.0)
    highest, columns = others.topk(min(ranks, others.shape[1] - 1), dim=1)
    shuffled = shuffle_within_groups(highest, lambda ranked: group_of_mass(ranked.log(), mass))
    return probabilities.scatter(1, columns, shuffled)


def group_shuffle(mass: float | None, ranks: int) -> Callable[[Tensor, Tensor], Tensor] | None:
    """Return :func:`shuffle_probabilities` with its settings bound, or None if ``mass`` is None."""
    return None if mass is None else partial(shuffle_probabilities, mass=mass, ranks=ranks)


def group_of_mass(ranked: Tensor, mass: float) -> Tensor:
    """Group-P: groups of equal probability under ``softmax(scores)`` at temperature 1.

    With U_r the cumulative probability up to and including rank r, rank r belongs to group
    ``floor(U_r / mass)``: a rank that reaches a limit belongs to the next group, and a heavy rank can leave
    groups empty. The last group takes the remainder.

    Args:
        ranked: ``(N, C) float``, each row in descending order.
        mass: p, the probability of a group, in (0, 1].
    """
    count = math.ceil(1 / mass - 1e-9)  # 1 / p groups, rounded up; the tolerance gives 49 for p = 1/49
    reached = ranked.softmax(dim=1).cumsum(dim=1)
    return (reached / mass).floor().long().clamp(max=count - 1)


def group_window(ranked: Tensor, start: int, stop: int) -> Tensor:
    """Return one group of the ranks from ``start`` up to ``stop`` (exclusive), from 0; other ranks stay alone."""
    ranks = torch.arange(ranked.shape[1], device=ranked.device)
    inside = (ranks >= start) & (ranks < stop)
    return torch.where(inside, start, ranks).expand(ranked.shape)


def group_of_length(ranked: Tensor, length: int) -> Tensor:
    """Return groups of ``length`` ranks each; the last takes the remainder."""
    return (torch.arange(ranked.shape[1], device=ranked.device) // length).expand(ranked.shape)


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
