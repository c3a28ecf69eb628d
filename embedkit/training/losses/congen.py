"""Control and generalisation: both views of a sentence learn how a teacher ranks past sentences.

Source: ConGen (Limkonchotiwat et al., Findings of EMNLP 2022), the distillation objective; keys as in the
authors' code, which scores against the queue *and* the current batch (K + B keys).
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from embedkit.training.losses.keys import Keys, Shuffle, cross_entropy, reference

__all__ = ["congen_loss"]


def congen_loss(
    students: tuple[Tensor, Tensor],
    keys: Keys,
    *,
    others: Sequence[Keys] = (),
    temperature: float,
    teacher_temperature: float,
    control: float = 0.5,
    shuffle: Shuffle | None = None,
) -> Tensor:
    """Return the cross-entropy of each view's similarity distribution with the teacher's for view 1.

    With keys Q and t their batch part, ``p = softmax(t Q / teacher_temperature)`` is the target of
    ``softmax(s1 Q / temperature)`` (control) and of ``softmax(s2 Q / temperature)`` (generalisation). The keys
    get no gradient.

    Args:
        students: s1, s2, each ``(B, T) float, unit rows``.
        keys: past and current teacher vectors of view 1.
        others: keys of further teachers, for the same sentences row by row. p is then the average over all
            teachers; the student is scored against ``keys`` only.
        temperature: temperature of the student's distributions.
        teacher_temperature: temperature of the teacher's distribution.
        control: weight of view 1, in [0, 1]; view 2 has weight ``1 - control``.
        shuffle: shuffles probabilities in p, except those of each sentence's own key.

    Returns:
        a scalar, summed over keys and averaged over the batch.
    """
    target = reference((keys, *others), teacher_temperature, shuffle).probabilities
    first, second = (cross_entropy(student, keys, target, temperature=temperature) for student in students)
    return control * first + (1 - control) * second
