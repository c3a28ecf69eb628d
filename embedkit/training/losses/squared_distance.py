"""Squared distance between the student's embedding and the teacher's vector.

Source: the L2 (MSE) baseline of ConGen (Limkonchotiwat et al., Findings of EMNLP 2022) and of SCT
(Limkonchotiwat et al., TACL 2023).
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["squared_distance"]


def squared_distance(students: Tensor, teachers: Tensor) -> Tensor:
    """Return ``mean_i |s_i - t_i|^2`` in float32: summed over dimensions, averaged over the batch.

    Args:
        students: ``(B, T) float``; for unit rows the result is ``2 - 2 cos``, in [0, 4].
        teachers: ``(B, T) float``; they get no gradient.
    """
    with torch.autocast(students.device.type, enabled=False):
        return (students.float() - teachers.detach().float()).square().sum(dim=1).mean()
