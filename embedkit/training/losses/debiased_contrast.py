"""DCLR's contrast: negatives that may mean the same are excluded, and noise vectors are added as negatives.

Source: Zhou, Zhang, Zhao and Wen, "Debiased Contrastive Learning of Unsupervised Sentence Representations",
ACL 2022.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["ascend_noise", "debiased_info_nce", "true_negatives"]


def true_negatives(complementary: Tensor, *, threshold: float) -> Tensor:
    """Return which sentences may be each other's negatives: ``(B, B) bool``, False on the diagonal.

    Args:
        complementary: ``(B, T) float32, unit rows``, embeddings of the batch by another encoder.
        threshold: pairs whose cosine is at least this are not negatives.
    """
    cosines = complementary.float() @ complementary.float().T
    return (cosines < threshold).fill_diagonal_(fill_value=False)


def debiased_info_nce(
    anchors: Tensor, positives: Tensor, noise: Tensor, negatives: Tensor, *, temperature: float
) -> Tensor:
    """InfoNCE of every anchor over its positive, the true negatives and the noise, in float32.

    Args:
        anchors: ``(B, D) float``, of any length.
        positives: ``(B, D) float``; row i belongs to anchor i.
        noise: ``(K, D) float``, negatives of every anchor; K may be 0.
        negatives: ``(B, B) bool``, whether positive j is a negative of anchor i.
        temperature: temperature of the softmax.

    Returns:
        a scalar, averaged over anchors.
    """
    with torch.autocast(anchors.device.type, enabled=False):
        first, second, third = (functional.normalize(rows.float(), dim=1) for rows in (anchors, positives, noise))
        rows = torch.arange(len(first), device=first.device)
        left_out = (~negatives).index_put((rows, rows), torch.tensor(False, device=rows.device))
        logits = torch.cat([(first @ second.T).masked_fill(left_out, -torch.inf), first @ third.T], dim=1)
        return functional.cross_entropy(logits / temperature, rows)


def ascend_noise(
    noise: Tensor,
    anchors: Tensor,
    positives: Tensor,
    negatives: Tensor,
    *,
    temperature: float,
    steps: int,
    size: float,
) -> Tensor:
    """Move noise in the direction that increases :func:`debiased_info_nce`, by steps of equal length in every row.

    Args:
        noise: ``(K, D) float32``.
        anchors: as above; none of the arguments gets a gradient.
        positives: as above.
        negatives: as above.
        temperature: temperature of the softmax.
        steps: number of steps.
        size: length of a step.

    Returns:
        ``(K, D) float32``, detached.
    """
    first, second = anchors.detach(), positives.detach()
    for _ in range(steps if len(noise) else 0):
        with torch.enable_grad():
            noise = noise.detach().requires_grad_()
            loss = debiased_info_nce(first, second, noise, negatives, temperature=temperature)
        (gradient,) = torch.autograd.grad(loss, noise)
        noise = noise + size * functional.normalize(gradient, dim=1, eps=1e-30)
    return noise.detach()
