"""DCLR's contrast: negatives that may mean the same are left out, and noise stands among the others.

Source: Zhou, Zhang, Zhao and Wen, "Debiased Contrastive Learning of Unsupervised Sentence Representations",
ACL 2022.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["ascend_noise", "debiased_info_nce", "true_negatives"]


def true_negatives(complementary: Tensor, *, threshold: float) -> Tensor:
    """Which sentences may be each other's negatives: ``(B, B) bool``, False on the diagonal.

    Args:
        complementary: ``(B, T) float32, unit rows``, what another encoder makes of the batch.
        threshold: pairs whose cosine reaches it are no negatives.
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
        noise: ``(K, D) float``; negatives of every anchor; K may be 0.
        negatives: ``(B, B) bool``; whether positive j is a negative of anchor i.
        temperature: of the softmax.

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
    """Noise moved to where :func:`debiased_info_nce` is larger, in steps of one length for every row.

    Args:
        noise: ``(K, D) float32``.
        anchors: as above; gets no gradient, as the others get none.
        positives: as above.
        negatives: as above.
        temperature: of the softmax.
        steps: how many.
        size: length of each.

    Returns:
        ``(K, D) float32``, without gradient.
    """
    first, second = anchors.detach(), positives.detach()
    for _ in range(steps if len(noise) else 0):
        with torch.enable_grad():
            noise = noise.detach().requires_grad_()
            loss = debiased_info_nce(first, second, noise, negatives, temperature=temperature)
        (gradient,) = torch.autograd.grad(loss, noise)
        noise = noise + size * functional.normalize(gradient, dim=1, eps=1e-30)
    return noise.detach()
