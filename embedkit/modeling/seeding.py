"""Random numbers of torch from a seed, apart from those drawn elsewhere."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch


@contextlib.contextmanager
def seeded(seed: int, *, devices: Sequence[torch.device] | None = None) -> Iterator[None]:
    """Seed torch within the block, and restore its generators afterwards.

    Restored are those of the CPU and of the given CUDA devices, or of all of them if None.
    """
    cuda = range(torch.cuda.device_count()) if devices is None else devices
    with torch.random.fork_rng(devices=cuda):
        torch.manual_seed(seed)
        yield
