"""Initialisation that depends on a seed and on nothing else."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

__all__ = ["seeded"]


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """What is initialised inside depends on the seed alone; torch's generator is left as it is."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
