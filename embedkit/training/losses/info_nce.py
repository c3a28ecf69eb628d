"""InfoNCE: every anchor finds its positive among the positives of the batch.

Source: SimCSE (Gao et al., EMNLP 2021), equation 4; one-directional, as in the authors' code:
positives are not scored against anchors.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["info_nce"]


def info_nce(anchors: Tensor, positives: Tensor, *, temperature: float) -> Tensor:
    """``-mean_i log softmax_j(cos(a_i, p_j) / temperature)`` at j = i, computed in float32.

    Args:
        anchors: ``(B, D) float``, rows of any norm.
        positives: ``(B, D) float``; row i belongs to anchor i, all others are its negatives.
        temperature: temperature of the softmax.

    Returns:
        a scalar, averaged over anchors.
    """
    with torch.autocast(anchors.device.type, enabled=False):
        first, second = (functional.normalize(rows.float(), dim=1) for rows in (anchors, positives))
        logits = first @ second.T / temperature
        return functional.cross_entropy(logits, torch.arange(len(logits), device=logits.device))
