"""Shuffling inside groups of ranks: a teacher's scores keep their rough order and lose their fine one.

Source: DistillCSE (Xu et al., Findings of EMNLP 2023), section on group-P shuffling and equation 5; the
groups of fixed length and the window of ranks are options of the authors' code.
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
"""Rows of scores in descending order, ``(N, C) float``, to the group of each rank, ``(N, C) int64`` from 0."""


@torch.no_grad()
def shuffle_within_groups(scores: Tensor, grouping: Grouping) -> Tensor:
    """Exchange the scores of each row at random among ranks of the same group.

    Rows are shuffled independently, anew at each call, by torch's generator. Each row keeps its values;
    only their columns change.

    Args:
        scores: ``(N, C) float``.
        grouping: says which ranks belong together; groups must not decrease with rank.

    Returns:
        ``(N, C)``, without gradient.
    """
    ranked, columns = scores.sort(dim=1, descending=True)
    # Sorting a random order stably by group is uniform inside groups, however many there are;
    # adding a random fraction to the group's number would run out of bits.
    chance = torch.rand_like(ranked).argsort(dim=1)
    order = chance.gather(1, grouping(ranked).gather(1, chance).argsort(dim=1, stable=True))
    return torch.empty_like(ranked).scatter_(1, columns.gather(1, order), ranked)


@torch.no_grad()
def shuffle_probabilities(probabilities: Tensor, own: Tensor, *, mass: float, ranks: int) -> Tensor:
    """Group-P on a distribution over many keys, of which one is the sentence's own and keeps its probability.

    The own key is left out, as DistillCSE leaves out the diagonal: it holds most of a sharp distribution, and
    exchanging it would teach that a sentence resembles another more than itself. Of the others the ``ranks`` most
    probable are shuffled in groups that hold each a share ``mass`` of their probability; the rest stay where they
    are, because sorting a long queue would cost far more than it changes.

    Args:
        probabilities: ``(B, C) float``, rows of sum 1.
        own: ``(B,) int64``, the column of each row's own key.
        mass: p, the share of a group, in (0, 1].
        ranks: n, how many of the other keys are shuffled; all of them if there are fewer.

    Returns:
        ``(B, C)``, of the same sums, without gradient.
    """
    others = probabilities.scatter(1, own[:, None], -1.0)
    highest, columns = others.topk(min(ranks, others.shape[1] - 1), dim=1)
    shuffled = shuffle_within_groups(highest, lambda ranked: group_of_mass(ranked.log(), mass))
    return probabilities.scatter(1, columns, shuffled)


def group_shuffle(mass: float | None, ranks: int) -> Callable[[Tensor, Tensor], Tensor] | None:
    """:func:`shuffle_probabilities` with its settings; None where there is no mass."""
    return None if mass is None else partial(shuffle_probabilities, mass=mass, ranks=ranks)


def group_of_mass(ranked: Tensor, mass: float) -> Tensor:
    """Group-P: groups of equal probability under ``softmax(scores)`` at temperature 1.

    With U_r the probability of rank r and all ranks before it, rank r belongs to group
    ``floor(U_r / mass)``: who reaches a limit is in the next group, and a heavy rank can leave groups
    empty. The last group takes whatever is left.

    Args:
        ranked: ``(N, C) float``, each row in descending order.
        mass: p, the probability of a group, in (0, 1].
    """
    count = math.ceil(1 / mass - 1e-9)  # 1 / p groups, one more if they do not fill up; 1/49 has 49
    reached = ranked.softmax(dim=1).cumsum(dim=1)
    return (reached / mass).floor().long().clamp(max=count - 1)


def group_window(ranked: Tensor, start: int, stop: int) -> Tensor:
    """One group of the ranks from ``start`` to before ``stop``, counted from 0; every other rank alone."""
    ranks = torch.arange(ranked.shape[1], device=ranked.device)
    inside = (ranks >= start) & (ranks < stop)
    return torch.where(inside, start, ranks).expand(ranked.shape)


def group_of_length(ranked: Tensor, length: int) -> Tensor:
    """Groups of ``length`` ranks each; the last has what is left."""
    return (torch.arange(ranked.shape[1], device=ranked.device) // length).expand(ranked.shape)
