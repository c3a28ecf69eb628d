"""A penalty on extreme activations.

In int8, the largest activation of a product determines the scale of all others. BERT has feed-forward units that
fire for [CLS] alone, several times as strongly as any other; with this penalty a network finds another way.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["ActivationPenalty"]

_WEIGHT = 0.01


class ActivationPenalty:
    """The squares of what exceeds a limit in the inputs of matrix products, summed over a text.

    Args:
        limit: magnitude above which an activation counts.
    """

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self._found: list[Tensor] = []

    @contextlib.contextmanager
    def watch(self, module: nn.Module) -> Iterator[None]:
        """Record the products of ``module`` that are trained within the block."""
        with contextlib.ExitStack() as hooks:
            for product in module.modules():
                if isinstance(product, nn.Linear):
                    hooks.callback(product.register_forward_pre_hook(self._record).remove)
            yield

    def take(self, texts: int) -> Tensor:
        """Return the penalty of what was recorded since the last call: the mean over ``texts`` texts, a scalar."""
        found, self._found = self._found, []
        return _WEIGHT * torch.stack(found).sum() / texts if found else torch.zeros(())

    def _record(self, _product: nn.Module, inputs: tuple[Any, ...]) -> None:
        activations: Tensor = inputs[0]
        if torch.is_grad_enabled() and activations.detach().abs().amax() > self.limit:
            excess = (activations.float().abs() - self.limit).clamp(min=0)
            self._found.append(excess.square().sum())
