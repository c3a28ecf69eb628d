"""Pooling of token states in torch, as sentence-transformers defines each mode, and the word memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from embedkit.runtime.folder_layout import pooling_modes


def pool_states(states: Tensor, attention_mask: Tensor, pooling: str) -> Tensor:
    """Pool states ``(B, L, H)``, mask ``(B, L) int64``: M modes give ``(B, M * H) float32``. Padding is right."""
    pooled = [_MODES[mode](states, attention_mask) for mode in pooling_modes(pooling)]
    return pooled[0] if len(pooled) == 1 else torch.cat(pooled, dim=1)


def masked_mean(states: Tensor, attention_mask: Tensor) -> Tensor:
    """Return the mean over each text's tokens: ``(B, L, H)``, mask ``(B, L) int64`` to ``(B, H) float32``.

    Computed in float32 even under autocast: sums over long texts lose too much precision in bfloat16.
    """
    weights = attention_mask.unsqueeze(1).float()
    with torch.autocast(states.device.type, enabled=False):
        summed = (weights @ states.float()).squeeze(1)
    return summed / weights.sum(dim=2).clamp(min=1.0)


def _first(states: Tensor, mask: Tensor) -> Tensor:  # noqa: ARG001 - the signature of every mode
    return states[:, 0].float()


def _last(states: Tensor, mask: Tensor) -> Tensor:
    # Weights 0 and 1 instead of an index: exact, and traced for any length.
    following = torch.nn.functional.pad(mask[:, 1:], (0, 1))
    return ((mask - following).unsqueeze(1).float() @ states.float()).squeeze(1)


def _maximum(states: Tensor, mask: Tensor) -> Tensor:
    return states.float().masked_fill(mask.unsqueeze(2) == 0, float("-inf")).amax(dim=1)


def _sum_by_root(states: Tensor, mask: Tensor) -> Tensor:
    return masked_mean(states, mask) * mask.sum(dim=1, keepdim=True).float().clamp(min=1.0).sqrt()


def _weighted_mean(states: Tensor, mask: Tensor) -> Tensor:
    return masked_mean(states, mask * torch.cumsum(mask, dim=1))


_MODES: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cls": _first,
    "max": _maximum,
    "mean": masked_mean,
    "mean_sqrt_len_tokens": _sum_by_root,
    "weightedmean": _weighted_mean,
    "lasttoken": _last,
}


class WordMemory(nn.Module):
    """A wide table of word vectors whose mean over a text is fed directly to the head, next to the transformer.

    A text costs one sum of rows and no matrix product, whatever the width. Row norms act as word weights, so the
    mean needs no weights of its own.
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
