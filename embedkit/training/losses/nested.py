"""Nested similarity: by their first d dimensions, embeddings of a batch are as alike as by all of them.

The idea of nested dimensions is Kusupati et al., "Matryoshka Representation Learning", NeurIPS 2022.

Differs from the paper, which computes the task's own loss again for every d: here the cosines of all dimensions
are the target for those of the first d, without gradient. That asks nothing of the task's loss, its queues or its
teacher. The first d dimensions are part of the whole, though: a large weight holds back what separates sentences,
because sentences that are all alike are so by any dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from embedkit.training.losses.similarity_distillation import cosines_with_others

__all__ = ["nested_similarity_loss"]


def nested_similarity_loss(embeddings: Tensor, dimensions: Sequence[int], *, temperature: float) -> Tensor:
    """``mean_d mean_i KL(softmax(c_i / temperature) || softmax(c_i^d / temperature))``.

    ``c_i`` are the cosines of row i with the other rows, and ``c_i^d`` the same of the first d dimensions. No
    gradient reaches ``c``.

    Args:
        embeddings: ``(B, D) float``, of any length.
        dimensions: each d, below D.
        temperature: of both softmaxes.

    Returns:
        a float32 scalar, summed over the others, averaged over rows and dimensions; 0 where there are no others.
    """
    target = _log_distributions(embeddings.detach(), temperature)
    losses = [
        functional.kl_div(
            _log_distributions(embeddings[:, :width], temperature), target, reduction="batchmean", log_target=True
        )
        for width in dimensions
    ]
    return torch.stack(losses).mean()


def _log_distributions(embeddings: Tensor, temperature: float) -> Tensor:
    return (cosines_with_others(embeddings) / temperature).log_softmax(dim=1)
