"""Trans-Encoder's losses: scores of pairs against pseudo-labels.

Source: Liu et al., "Trans-Encoder: Unsupervised sentence-pair modelling through self- and mutual-distillations",
ICLR 2022, equations 2 and 3 (the leading minus of the squared error there is a misprint).
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

__all__ = ["cosine_squared_error", "soft_binary_cross_entropy"]


def soft_binary_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the cross-entropy of ``sigmoid(logits)`` with soft labels, averaged over the batch, in float32.

    Args:
        logits: ``(B,)``.
        labels: ``(B,)`` in [0, 1]; the loss is unbounded below for labels outside.
    """
    return functional.binary_cross_entropy_with_logits(logits.float(), labels.float())


def cosine_squared_error(first: Tensor, second: Tensor, labels: Tensor) -> Tensor:
    """Return the squared error of the pairs' cosines, averaged over the batch, in float32.

    Args:
        first: ``(B, D)``, rows of any norm.
        second: ``(B, D)``, rows of any norm.
        labels: ``(B,)``.
    """
    cosines = functional.cosine_similarity(first.float(), second.float())
    return functional.mse_loss(cosines, labels.float())
