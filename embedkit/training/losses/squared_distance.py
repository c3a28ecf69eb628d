"""Squared distance: the student's embedding is drawn to the teacher's vector.

Source: the L2 (MSE) baseline of ConGen (Limkonchotiwat et al., Findings of EMNLP 2022) and of SCT
(Limkonchotiwat et al., TACL 2023).
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["squared_distance"]


def squared_distance(students: Tensor, teachers: Tensor) -> Tensor:
    """``mean_i |s_i - t_i|^2`` in float32: summed over dimensions, averaged over the batch.

    Args:
        students: ``(B, T) float``; of unit rows the result is ``2 - 2 cos``, in [0, 4].
        teachers: ``(B, T) float``; gets no gradient.
    """
    with torch.autocast(students.device.type, enabled=False):
        return (students.float() - teachers.detach().float()).square().sum(dim=1).mean()
