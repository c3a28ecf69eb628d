"""Cross-view similarity distributions: the loss of SCT and of its distillation.

Source: SCT (Limkonchotiwat et al., TACL 2023), equations 1 to 4; keys and their order follow the
authors' code, which scores against the queue *and* the current batch (K + B keys).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

__all__ = [
    "Keys",
    "Objective",
    "Shuffle",
    "average_distribution",
    "cross_view_loss",
    "own_columns",
    "similarity_logits",
]

Objective = Literal["kl", "cross_entropy", "contrastive"]
Shuffle = Callable[[Tensor, Tensor], Tensor]
"""Distributions ``(B, K + B)`` and the column of each sentence's own key ``(B,) int64``, to distributions."""


class Keys(NamedTuple):
    """What one view is scored against: past reference vectors, and those of the batch.

    Attributes:
        queue: ``(K, D) float32, unit rows``; K may be 0.
        batch: ``(B, D) float32, unit rows``; row i belongs to sentence i.
    """

    queue: Tensor
    batch: Tensor


def own_columns(keys: Keys) -> Tensor:
    """Where each sentence of the batch finds itself among the keys: ``(B,) int64``."""
    return len(keys.queue) + torch.arange(len(keys.batch), device=keys.batch.device)


def similarity_logits(queries: Tensor, keys: Keys, temperature: float) -> Tensor:
    """Cosines of unit rows over temperature: ``(B, K + B) float32``, whatever the autocast.

    At K = 131,072 and temperature 0.01 logits reach 100, out of reach for half precision.
    """
    with torch.autocast(queries.device.type, enabled=False):
        scaled = queries.float() / temperature
        return torch.cat([scaled @ keys.queue.T, scaled @ keys.batch.T], dim=1)


@torch.no_grad()
def average_distribution(references: Sequence[Keys], temperature: float) -> Tensor:
    """How references rank the same sentences, on average: ``(B, K + B) float32``, rows of sum 1.

    Each scores its own vectors of the batch against its own keys, so that widths may differ; row j is the same
    sentence in the keys of all. The average is one of probabilities, not of cosines or vectors.
    """
    shares = (similarity_logits(keys.batch, keys, temperature).softmax(dim=1) for keys in references)
    return reduce(Tensor.add_, shares) / len(references)


def cross_view_loss(
    online: tuple[Tensor, Tensor],
    keys: tuple[Keys, Keys],
    *,
    others: Sequence[tuple[Keys, Keys]] = (),
    temperature: float,
    reference_temperature: float,
    objective: Objective = "kl",
    identical_view: bool = False,
    weight: float = 0.5,
    shuffle: Shuffle | None = None,
) -> Tensor:
    """Match each online view's similarity distribution with the reference distribution of the other view.

    With Q1, Q2 the keys and r1, r2 their batch parts: ``c1 = softmax(z1 Q2 / temperature)`` learns
    ``t2 = softmax(r2 Q2 / reference_temperature)``, and ``c2 = softmax(z2 Q1 / temperature)`` learns ``t1``.
    No gradient reaches the keys.

    Args:
        online: z1, z2, each ``(B, D) float, unit rows``.
        keys: Q1, Q2 of view 1 and view 2.
        others: the same of further references, row for row of the same sentences. Then t1 and t2 are the average
            of the distributions of all; the online side is scored against ``keys`` alone.
        temperature: of the online distributions.
        reference_temperature: of the reference distributions.
        objective: ``"kl"`` (SCT), ``"cross_entropy"`` (same gradient) or ``"contrastive"`` (InfoNCE on
            the sentence's own reference vector), the last two for the ablations of Tables 4 and 6.
        identical_view: the ablation without cross-view wiring: z1 meets Q1 and learns t1.
        weight: of each direction; 0.5 is the paper's, 1.0 the authors' code's.
        shuffle: exchanges probabilities in t1 and t2, away from the sentence's own key.

    Returns:
        a scalar, summed over keys and averaged over the batch.
    """
    first, second = ([_detached(one) for one in view] for view in zip(keys, *others, strict=True))
    if not identical_view:
        first, second = second, first
    target = _targets(reference_temperature, shuffle)
    divergence = _OBJECTIVES[objective]
    loss = divergence(similarity_logits(online[0], first[0], temperature), first, target)
    loss = loss + divergence(similarity_logits(online[1], second[0], temperature), second, target)
    return weight * loss


class _Target(NamedTuple):
    """A reference distribution ``(B, K + B)`` and the mean entropy of its rows, in nats."""

    probabilities: Tensor
    entropy: Tensor


References = Sequence[Keys]
Targets = Callable[[References], _Target]


def _detached(keys: Keys) -> Keys:
    return Keys(keys.queue.detach(), keys.batch.detach())


def _targets(temperature: float, shuffle: Shuffle | None) -> Targets:
    """Reference distributions, computed once where both views share queue and vectors."""
    known: dict[tuple[tuple[int, int], ...], _Target] = {}

    @torch.no_grad()
    def target(references: References) -> _Target:
        identity = tuple((keys.queue.data_ptr(), keys.batch.data_ptr()) for keys in references)
        if identity not in known:
            probabilities = average_distribution(references, temperature)
            if shuffle is not None:
                probabilities = shuffle(probabilities, own_columns(references[0]))
            known[identity] = _Target(probabilities, torch.special.entr(probabilities).sum(dim=1).mean())
        return known[identity]

    return target


def _cross_entropy(logits: Tensor, references: References, target: Targets) -> Tensor:
    return functional.cross_entropy(logits, target(references).probabilities)


def _kl(logits: Tensor, references: References, target: Targets) -> Tensor:
    """Cross-entropy less the target's entropy, which has no gradient."""
    return _cross_entropy(logits, references, target) - target(references).entropy


def _contrastive(logits: Tensor, references: References, _: Targets) -> Tensor:
    return functional.cross_entropy(logits, own_columns(references[0]))


_OBJECTIVES: dict[Objective, Callable[[Tensor, References, Targets], Tensor]] = {
    "kl": _kl,
    "cross_entropy": _cross_entropy,
    "contrastive": _contrastive,
}
