"""Shuffling within groups of ranks: a teacher's scores keep their coarse order and lose their fine order.

Source: DistillCSE (Xu et al., Findings of EMNLP 2023), section on group-P shuffling and equation 5; groups of
fixed length and the window of ranks are options of the authors' code.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

__all__ = [
    "Grouping",
    "group_of_length",
    "group_of_mass",
    "group_shuffle",
    "group_window",
    "shuffle_probabilities",
    "shuffle_within_groups",
]

Grouping = Callable[[Tensor], Tensor]
"""Maps rows of descending scores, ``(N, C) float``, to the group of each rank, ``(N, C) int64`` from 0."""


@torch.no_grad()
def shuffle_within_groups(scores: Tensor, grouping: Grouping) -> Tensor:
    """Randomly permute the scores of each row among ranks of the same group.

    Rows are shuffled independently by torch's generator, differently at each call. Each row keeps its values;
    only their columns change.

    Args:
        scores: ``(N, C) float``.
        grouping: assigns ranks to groups; groups must not decrease with rank.

    Returns:
        ``(N, C)``, without gradient.
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
