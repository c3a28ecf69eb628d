"""Contrastive distillation: a student's embedding finds its own teacher vector among many.

Source: CKD (Gao et al., "DistilCSE", arXiv 2112.05638), in the form in which the authors of ConGen and
SCT ran it.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from embedkit.training.losses.cross_view import Keys, own_columns, similarity_logits

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
    keys = Keys(keys.queue.detach(), keys.batch.detach())
    return functional.cross_entropy(similarity_logits(students, keys, temperature), own_columns(keys))
