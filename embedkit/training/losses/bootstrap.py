"""Bootstrapping: predict the other view's target embedding; there are no negatives.

Source: BSL (Zhang et al., ACL 2021), equations 1 and 2, after BYOL (Grill et al., NeurIPS 2020).
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["Scale", "bootstrap_loss"]

Scale = Literal["paper", "code"]


def bootstrap_loss(
    predictions: tuple[Tensor, Tensor], targets: tuple[Tensor, Tensor], *, scale: Scale = "paper"
) -> Tensor:
    """Pull each view's prediction towards the target embedding of the other view, by cosine.

    Args:
        predictions: z1, z2 of the online network, each ``(B, D) float``.
        targets: h1, h2 of the target network, each ``(B, D) float``; they get no gradient.
        scale: ``"paper"`` is ``- cos(z1, h2) / 2 - cos(z2, h1) / 2``; ``"code"`` is
            ``(2 - 2 cos(z1, h2)) + (2 - 2 cos(z2, h1))``: the same optimum, four times the gradient.

    Returns:
        a scalar, averaged over the batch, in [-1, 1] or [0, 8].
    """
    mean = (_cosine(predictions[0], targets[1]) + _cosine(predictions[1], targets[0])) / 2
    return -mean if scale == "paper" else 4 - 4 * mean


def _cosine(predictions: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cosine of rows, in float32 regardless of autocast."""
    with torch.autocast(predictions.device.type, enabled=False):
        return functional.cosine_similarity(predictions.float(), targets.detach().float(), dim=1).mean()
