"""Similarity distillation: a student learns the similarities that its teachers find between sentences of a batch.

Source: DistillCSE (Xu et al., Findings of EMNLP 2023), equation 2; averaged over anchors and without the
diagonal, as in the authors' code.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["average_cosines", "cosines_with_others", "similarity_distillation_loss"]


def cosines_with_others(embeddings: Tensor) -> Tensor:
    """Return the cosines of each row with every *other* row, in batch order: ``(N, D) -> (N, N - 1) float32``.

    Removing the diagonal, rather than setting it to minus infinity, avoids 0 times infinity.
    """
    with torch.autocast(embeddings.device.type, enabled=False):
        rows = functional.normalize(embeddings.float(), dim=1)
        cosines = rows @ rows.T
    count = len(cosines)
    # After the first diagonal element, every (N + 1)-th element is on the diagonal.
    return cosines.flatten()[1:].view(count - 1, count + 1)[:, :-1].reshape(count, count - 1)


@torch.no_grad()
def average_cosines(teachers: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """Return the weighted average of several teachers' cosines: ``(N, N - 1) float32``.

    Averaging cosines differs from the cosine of averaged embeddings, and works for teachers of different widths.

    Args:
        teachers: each ``(N, T) float``.
        weights: one per teacher, summing to 1.
    """
    weighted = [weight * cosines_with_others(rows) for rows, weight in zip(teachers, weights, strict=True)]
    return torch.stack(weighted).sum(dim=0)


def similarity_distillation_loss(
    students: Tensor, teachers: Tensor, *, temperature: float, teacher_temperature: float
) -> Tensor:
    """Return ``-mean_i sum_j q_ij log p_ij``, q = softmax(teachers / teacher_temperature), p the student's.

    Args:
        students: cosines with others, ``(N, C) float32``.
        teachers: the same for the teachers, possibly shuffled; they get no gradient.
        temperature: temperature of the student's distributions.
        teacher_temperature: temperature of the teachers' distributions.

    Returns:
        a scalar, summed over the others and averaged over anchors; 0 if there are no others.
    """
    targets = (teachers.detach() / teacher_temperature).softmax(dim=1)
    return -(targets * (students / temperature).log_softmax(dim=1)).sum(dim=1).mean()
