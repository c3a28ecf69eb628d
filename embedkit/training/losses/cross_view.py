"""Cross-view similarity distributions: the loss of SCT and of its distillation.

Source: SCT (Limkonchotiwat et al., TACL 2023), equations 1 to 4; keys and their order follow the
authors' code, which scores against the queue *and* the current batch (K + B keys).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from torch import Tensor

from embedkit.training.losses.keys import Keys, Reference, Shuffle, cross_entropy, own_cross_entropy, reference

__all__ = ["Objective", "cross_view_loss"]

Objective = Literal["kl", "cross_entropy", "contrastive"]
References = Sequence[Keys]


def cross_view_loss(
    online: Sequence[Tensor],
    keys: Sequence[Keys],
    *,
    others: Sequence[Sequence[Keys]] = (),
    temperature: float,
    reference_temperature: float,
    objective: Objective = "kl",
    identical_view: bool = False,
    weight: float = 0.5,
    shuffle: Shuffle | None = None,
) -> Tensor:
    """Match each online view's similarity distribution to the reference distribution of the other view.

    With keys Q1, Q2 and r1, r2 their batch parts, ``t2 = softmax(r2 Q2 / reference_temperature)`` is the target
    of ``c1 = softmax(z1 Q2 / temperature)``, and ``t1`` that of ``c2 = softmax(z2 Q1 / temperature)``. The keys
    get no gradient.

    Args:
        online: z1, z2, each ``(B, D) float, unit rows``; or a single view that serves as both.
        keys: Q1, Q2 of view 1 and view 2; or Q1 only.
        others: keys of further references, for the same sentences row by row. t1 and t2 are then averages over
            all references; the online side is scored against ``keys`` only.
        temperature: temperature of the online distributions.
        reference_temperature: temperature of the reference distributions.
        objective: ``"kl"`` (SCT), ``"cross_entropy"`` (same gradient) or ``"contrastive"`` (InfoNCE on
            the sentence's own reference vector); the last two are the ablations of Tables 4 and 6.
        identical_view: the ablation without cross-view wiring: z1 is scored against Q1 and learns t1.
        weight: weight of each direction; 0.5 in the paper, 1.0 in the authors' code.
        shuffle: shuffles probabilities in t1 and t2, except those of each sentence's own key.

    Returns:
        a scalar, summed over keys and averaged over the batch.
    """
    references = list(zip(keys, *others, strict=True))[:: 1 if identical_view else -1]
    loss_of = _OBJECTIVES[objective]
    targets = _Targets(reference_temperature, shuffle)
    views = zip(online, references, strict=True)
    losses = [loss_of(view, own, targets, temperature) for view, own in views]
    return weight * (losses[0] + losses[-1])


class _Targets:
    """Reference distributions, computed only once if both views share queues and vectors."""

    def __init__(self, temperature: float, shuffle: Shuffle | None) -> None:
        self._temperature, self._shuffle = temperature, shuffle
        self._known: dict[tuple[tuple[int, int], ...], Reference] = {}

    def __call__(self, references: References) -> Reference:
        identity = tuple((keys.queue.data_ptr(), keys.batch.data_ptr()) for keys in references)
        if identity not in self._known:
            self._known[identity] = reference(references, self._temperature, self._shuffle)
        return self._known[identity]


def _cross_entropy(online: Tensor, references: References, targets: _Targets, temperature: float) -> Tensor:
    return cross_entropy(online, references[0], targets(references).probabilities, temperature=temperature)


def _kl(online: Tensor, references: References, targets: _Targets, temperature: float) -> Tensor:
    """Cross-entropy minus the target's entropy, which has no gradient."""
    return _cross_entropy(online, references, targets, temperature) - targets(references).entropy


def _contrastive(online: Tensor, references: References, _: _Targets, temperature: float) -> Tensor:
    return own_cross_entropy(online, references[0], temperature=temperature)


_OBJECTIVES: dict[Objective, Callable[[Tensor, References, _Targets, float], Tensor]] = {
    "kl": _kl,
    "cross_entropy": _cross_entropy,
    "contrastive": _contrastive,
}
