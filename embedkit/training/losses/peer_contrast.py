"""Peer contrast and peer cooperation: several positives per anchor, embedded by two networks.

Source: PCL (Wu et al., EMNLP 2022), equations 1 and 4 to 6. Where the paper and the authors' code differ, both
forms are implemented.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

__all__ = [
    "Embedded",
    "Reduction",
    "cooperation_loss",
    "copy_contrast_loss",
    "every_positive_contrast_loss",
    "peer_logits",
]

Reduction = Literal["sentence", "entry"]


class Embedded(NamedTuple):
    """One network's embeddings of a batch.

    Attributes:
        anchors: ``(N, D) float``, N >= 2.
        positives: ``(N, K, D) float``; row i belongs to anchor i.
    """

    anchors: Tensor
    positives: Tensor


def peer_logits(queries: Embedded, keys: Embedded, temperature: float) -> Tensor:
    """Return the cosines over temperature of each anchor with its own positives, then with the other anchors.

    Negatives are the other anchors only: neither the anchor itself nor other anchors' positives.

    Args:
        queries: embeddings whose anchors are the queries.
        keys: embeddings used as keys, possibly by the same network.
        temperature: a positive number.

    Returns:
        ``(N, K + N - 1) float32`` regardless of autocast; the first K columns are the positives.
    """
    with torch.autocast(queries.anchors.device.type, enabled=False):
        anchors, positives, others = (
            functional.normalize(rows.float(), dim=-1) for rows in (queries.anchors, keys.positives, keys.anchors)
        )
        own = torch.einsum("nd,nkd->nk", anchors, positives)
        return torch.cat([own, _without_diagonal(anchors @ others.T)], dim=1) / temperature


def cooperation_loss(
    main: Embedded, peer: Embedded, *, temperature: float, reduction: Reduction = "sentence"
) -> Tensor:
    """Penalise disagreement of main and peer network on similarities, within each network and across both.

    With ``P(a, b)`` the softmax of :func:`peer_logits` of a's anchors and b's keys, this is
    ``KL(P(peer, peer) | P(main, main)) + KL(P(peer, main) | P(main, peer))``; both sides get gradients.

    Args:
        main: embeddings by the main network.
        peer: embeddings by the peer network.
        temperature: temperature of all four distributions.
        reduction: ``"sentence"`` sums over entries and averages over sentences (the paper), ``"entry"``
            averages over all N * (K + N - 1) entries (the authors' code).
    """
    within = _divergence((peer, peer), (main, main), temperature, reduction)
    return within + _divergence((peer, main), (main, peer), temperature, reduction)


def every_positive_contrast_loss(embedded: Embedded, *, temperature: float) -> Tensor:
    """InfoNCE of each positive separately against the other anchors, summed over the K positives (the paper).

    Returns:
        a scalar, averaged over sentences.
    """
    logits = peer_logits(embedded, embedded, temperature)
    count = embedded.positives.shape[1]
    positives, negatives = logits[:, :count], logits[:, count:].logsumexp(dim=1, keepdim=True)
    return (torch.logaddexp(positives, negatives) - positives).sum(dim=1).mean()


def copy_contrast_loss(embedded: Embedded, *, temperature: float) -> Tensor:
    """SimCSE on the first positive, plus a binary cross-entropy over all positives (the authors' code).

    The negatives of SimCSE are the other sentences' first positives. As in the authors' code, the binary
    cross-entropy takes the *probabilities* of anchors over positives and other anchors as logits, with label 1
    for positives, and averages over all N * (K + N - 1) entries.

    Returns:
        a scalar, averaged over sentences.
    """
    with torch.autocast(embedded.anchors.device.type, enabled=False):
        anchors = functional.normalize(embedded.anchors.float(), dim=1)
        copies = functional.normalize(embedded.positives[:, 0].float(), dim=1)
        own = torch.arange(len(anchors), device=anchors.device)
        simcse = functional.cross_entropy(anchors @ copies.T / temperature, own)
        probabilities = peer_logits(embedded, embedded, temperature).softmax(dim=1)
        labels = torch.zeros_like(probabilities)
        labels[:, : embedded.positives.shape[1]] = 1
        return simcse + functional.binary_cross_entropy_with_logits(probabilities, labels)


def _divergence(
    target: tuple[Embedded, Embedded], learner: tuple[Embedded, Embedded], temperature: float, reduction: Reduction
) -> Tensor:
    """Return KL(target | learner) for two pairs of (queries, keys)."""
    aim, learnt = (peer_logits(*pair, temperature).log_softmax(dim=1) for pair in (target, learner))
    entries = aim.exp() * (aim - learnt)
    return entries.sum(dim=1).mean() if reduction == "sentence" else entries.mean()


def _without_diagonal(square: Tensor) -> Tensor:
    """Remove the diagonal: ``(N, N)`` to ``(N, N - 1)``."""
    count = len(square)
    kept = ~torch.eye(count, dtype=torch.bool, device=square.device)
    return square[kept].view(count, count - 1)
