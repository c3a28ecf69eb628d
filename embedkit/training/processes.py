"""Several processes that train one model, each with its share of the rows of every batch.

Each process encodes its own rows; :func:`gather` hands everybody the rows of all, so that every process sees the
whole batch and computes the whole loss. Gradients are averaged over processes after the backward pass. The
backward pass of :func:`gather` multiplies each process's rows by the number of processes, which makes that
average right on both sides of it: in front of it the processes' gradients are shares, which have to be summed;
behind it every process has the whole gradient already. So N processes and a batch of B rows give the run of one
process, up to rounding, and methods need not know.

Everything here does nothing where there is one process.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, distributed, nn

__all__ = [
    "agree",
    "average_gradients",
    "copy_state",
    "count",
    "first",
    "first_alone",
    "gather",
    "group",
    "own_randomness",
    "rank",
    "told_by_first",
    "wait",
]

# The first process may encode a corpus with a teacher, for hours, while the others wait.
_PATIENCE = dt.timedelta(days=7)


@contextlib.contextmanager
def group(device: str | None) -> Iterator[None]:
    """Join the processes that torchrun started, if it did.

    Args:
        device: of the run; where it is a GPU, each process gets one of its own. None is a GPU if there is one.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or distributed.is_initialized():
        yield
        return
    on_gpu = torch.cuda.is_available() and (device is None or torch.device(device).type == "cuda")
    if on_gpu:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    distributed.init_process_group("cpu:gloo,cuda:nccl" if on_gpu else "gloo", timeout=_PATIENCE)
    try:
        yield
    finally:
        distributed.destroy_process_group()


def count() -> int:
    """How many processes train together."""
    return distributed.get_world_size() if distributed.is_initialized() else 1


def rank() -> int:
    """The number of this process, from 0."""
    return distributed.get_rank() if distributed.is_initialized() else 0


def first() -> bool:
    """Whether this process is the one that writes files, evaluates and shows progress."""
    return rank() == 0


def gather(rows: Tensor) -> Tensor:
    """The rows of all processes in the order of their ranks, in float32: ``(B / N, ...) -> (B, ...)``.

    Gradients of all rows reach the process that a row came from, N-fold: see the module.
    """
    if count() == 1:
        return rows
    gathered: Tensor = _Gather.apply(rows.float())  # type: ignore[no-untyped-call]
    return gathered


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, rows: Tensor) -> Tensor:
        parts = [torch.empty_like(rows) for _ in range(count())]
        distributed.all_gather(parts, rows.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Tensor:
        return gradient.chunk(count())[rank()] * count()


def average_gradients(module: nn.Module) -> None:
    """Average the gradients of a module over processes, in one go."""
    gradients = [parameter.grad for parameter in module.parameters() if parameter.grad is not None]
    if count() == 1 or not gradients:
        return
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    distributed.all_reduce(flat)
    flat /= count()
    for gradient, mean in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
        gradient.copy_(mean.view_as(gradient))


def copy_state(module: nn.Module) -> None:
    """Give every process the first one's parameters and buffers."""
    if count() > 1:
        for tensor in module.state_dict().values():
            distributed.broadcast(tensor, src=0)


@contextlib.contextmanager
def own_randomness(device: torch.device) -> Iterator[None]:
    """Random numbers of this process's own inside; outside, all processes go on drawing the same ones.

    Dropout has to differ between the rows of different processes, and what is drawn for the whole batch must not.
    As the inside begins with a number drawn outside, a checkpoint of one process's stream is one of all.
    """
    if count() == 1:
        yield
        return
    seed = int(torch.randint(2**62, ())) + rank()
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


@contextlib.contextmanager
def first_alone() -> Iterator[None]:
    """The first process goes through the block before the others, which find the files that it made."""
    if not first():
        wait()
    yield
    if first():
        wait()


def told_by_first(value: Callable[[], float]) -> float:
    """A number that the first process works out for all."""
    if count() == 1:
        return value()
    told = torch.tensor(value() if first() else 0.0, dtype=torch.float64)
    distributed.broadcast(told, src=0)
    return float(told)


def agree(wish: bool) -> bool:  # noqa: FBT001 - the only argument
    """Whether any process wishes it; the same answer for all."""
    if count() == 1:
        return wish
    wishes = torch.tensor(int(wish))
    distributed.all_reduce(wishes)
    return bool(wishes)


def wait() -> None:
    """Go on when all processes are here."""
    agree(False)
