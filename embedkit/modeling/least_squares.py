"""Linear maps fitted by ridge regression."""

from __future__ import annotations

import torch
from torch import Tensor

_RIDGE = 1e-4  # as a multiple of the inputs' mean variance


def fit_affine(inputs: Tensor, targets: Tensor, *, ridge: float = _RIDGE) -> tuple[Tensor, Tensor]:
    """Fit the affine map from ``(N, I)`` to ``(N, O)``; return weight ``(O, I)`` and bias ``(O,)``.

    Both are float32, in the layout of :class:`torch.nn.Linear`; sums are computed in float64. ``ridge`` is the
    penalty on squared weights, as a multiple of the inputs' mean variance.
    """
    mean, target_mean = inputs.mean(dim=0, dtype=torch.float64), targets.mean(dim=0, dtype=torch.float64)
    centred = (inputs - mean.float()).double()
    gram = centred.T @ centred
    gram.diagonal().add_(ridge * gram.diagonal().mean().clamp(min=1e-12))
    weight = torch.linalg.solve(gram, centred.T @ (targets - target_mean.float()).double()).T
    return weight.float(), (target_mean - weight @ mean).float()


def fit_scale(inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Fit scale and shift of each column: ``(N, H)`` twice to two of ``(H,) float32``."""
    mean, target_mean = inputs.mean(dim=0), targets.mean(dim=0)
    centred = inputs - mean
    scale = (centred * (targets - target_mean)).sum(dim=0) / centred.square().sum(dim=0).clamp(min=1e-12)
    return scale, target_mean - scale * mean
