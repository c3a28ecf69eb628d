"""Contrastive distillation: a student's embedding finds its own teacher vector among many.

Source: CKD (Gao et al., "DistilCSE", arXiv 2112.05638), in the form in which the authors of ConGen and
SCT ran it.
"""

from __future__ import annotations

from torch import Tensor

from embedkit.training.losses.keys import Keys, own_cross_entropy

__all__ = ["contrastive_distillation_loss"]


def contrastive_distillation_loss(students: Tensor, keys: Keys, *, temperature: float) -> Tensor:
    """``-mean_i log softmax_j(cos(s_i, key_j) / temperature)`` at the sentence's own teacher vector.

    Args:
        students: ``(B, T) float, unit rows``.
        keys: past teacher vectors, and those of the batch, where row i belongs to sentence i.
        temperature: of the softmax over K + B keys.

    Returns:
        a scalar, averaged over the batch; no gradient reaches the keys.
    """
    return own_cross_entropy(students, keys, temperature=temperature)
