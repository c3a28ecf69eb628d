"""A copy of a network that follows it slowly."""

from __future__ import annotations

import copy
from typing import Generic, TypeVar

import torch
from torch import nn

__all__ = ["MovingAverage"]

Network = TypeVar("Network", bound=nn.Module)


class MovingAverage(nn.Module, Generic[Network]):
    """An exponential moving average of a network's parameters.

    Args:
        network: the network to follow; the copy starts equal to it.
        momentum: weight of the old average in an update: 1 never moves, 0 copies.

    Attributes:
        network: the average; its parameters get no gradients.
    """

    network: Network

    def __init__(self, network: Network, *, momentum: float) -> None:
        super().__init__()
        self.momentum = momentum
        self.network = copy.deepcopy(network).requires_grad_(False)

    @torch.no_grad()
    def update(self, source: Network) -> None:
        """Move towards ``source``: average = momentum * average + (1 - momentum) * source."""
        for average, current in zip(self.network.parameters(), source.parameters(), strict=True):
            average.lerp_(current, 1 - self.momentum)
