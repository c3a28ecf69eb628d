"""Word memory: model capacity in a lookup table instead of matrix products."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class WordMemory(nn.Module):
    """A wide table of word vectors whose mean over a text is fed directly to the head, next to the transformer.

    A text costs one sum of rows and no matrix product, whatever the width. Row norms act as word weights, so the
    mean needs no weights of its own.

    Args:
        rows: size of the vocabulary.
        width: M, width of a row.
    """

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.rows = nn.Embedding(rows, width)
        nn.init.zeros_(self.rows.weight)

    @property
    def width(self) -> int:
        """M, width of a row."""
        return self.rows.embedding_dim

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Return the mean of the tokens' rows: ``(B, L) int64`` twice ``-> (B, M) float32``."""
        return masked_mean(self.rows(input_ids), attention_mask)


def masked_mean(states: Tensor, attention_mask: Tensor) -> Tensor:
    """Return the mean over each text's tokens: ``(B, L, H)``, mask ``(B, L) int64`` to ``(B, H) float32``.

    Computed in float32 even under autocast: sums over long texts lose too much precision in bfloat16.
    """
    weights = attention_mask.unsqueeze(1).float()
    with torch.autocast(states.device.type, enabled=False):
        summed = (weights @ states.float()).squeeze(1)
    return summed / weights.sum(dim=2).clamp(min=1.0)
