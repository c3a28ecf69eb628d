"""Pooling of token states in torch, as sentence-transformers defines each mode."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from embedkit.modeling.memory import masked_mean
from embedkit.runtime.folders import pooling_modes


def pool_states(states: Tensor, attention_mask: Tensor, pooling: str) -> Tensor:
    """Pool states ``(B, L, H)``, mask ``(B, L) int64``: M modes give ``(B, M * H) float32``. Padding is right."""
    pooled = [_MODES[mode](states, attention_mask) for mode in pooling_modes(pooling)]
    return pooled[0] if len(pooled) == 1 else torch.cat(pooled, dim=1)


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
