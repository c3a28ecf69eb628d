"""Control and generalisation: both views of a sentence learn how a teacher ranks the past.

Source: ConGen (Limkonchotiwat et al., Findings of EMNLP 2022), its distillation objective; keys as in
the authors' code, which scores against the queue *and* the current batch (K + B keys).
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
    """Cross-entropy of each view's similarity distribution with the teacher's of view 1.

    With Q the keys and t their batch part: ``p = softmax(t Q / teacher_temperature)`` is learnt by
    ``softmax(s1 Q / temperature)`` (control) and ``softmax(s2 Q / temperature)`` (generalisation). No
    gradient reaches the keys.

    Args:
        students: s1, s2, each ``(B, T) float, unit rows``.
        keys: past teacher vectors and those of the batch, of view 1.
        others: the same of further teachers, row for row of the same sentences. Then p is the average of the
            distributions of all; the student is scored against ``keys`` alone.
        temperature: of the student's distributions.
        teacher_temperature: of the teacher's distribution.
        control: weight of view 1, in [0, 1]; view 2 has the rest.
        shuffle: exchanges probabilities in p, away from the sentence's own key.

    Returns:
        a scalar, summed over keys and averaged over the batch.
    """
    target = reference((keys, *others), teacher_temperature, shuffle).probabilities
    first, second = (cross_entropy(student, keys, target, temperature=temperature) for student in students)
    return control * first + (1 - control) * second
