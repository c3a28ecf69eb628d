"""Data-parallel training: several processes train one model, each with its share of the rows of every batch.

Each process encodes its own rows; :func:`gather` gives every process the rows of all, so that each computes the
loss of the whole batch. Gradients are averaged over processes after the backward pass. The backward pass of
:func:`gather` sums the gradients that all processes have for a row, which makes the average correct on both sides
of it: for parameters before it, the processes' gradients are partial and must be summed; for parameters
after it, every process already has the whole gradient. N processes with a batch of B rows therefore reproduce the
run of one process, up to rounding, and methods do not depend on the number of processes.

With a single process, all functions of this module do nothing.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, distributed, nn
from torch.distributed.nn.functional import all_gather

from embedkit.modeling.pretrained import seeded

# The first process may spend hours encoding a corpus with a teacher while the others wait.
_PATIENCE = dt.timedelta(days=7)


@contextlib.contextmanager
def group(device: str | None) -> Iterator[None]:
    """Join the process group started by torchrun, if any.

    If the run's device is a GPU, each process uses its own; None is a GPU if available.
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
    """Return the number of processes."""
    return distributed.get_world_size() if distributed.is_initialized() else 1


def rank() -> int:
    """Return the rank of this process, from 0."""
    return distributed.get_rank() if distributed.is_initialized() else 0


def first() -> bool:
    """Whether this process writes files, evaluates and shows progress."""
    return rank() == 0


def gather(rows: Tensor) -> Tensor:
    """Return the rows of all processes in rank order, in float32: ``(B / N, ...) -> (B, ...)``.

    Gradients flow back to the process that a row came from, summed over processes.
    """
    if count() == 1:
        return rows
    return torch.cat(all_gather(rows.float()))


def average_gradients(module: nn.Module) -> None:
    """Average the gradients of a module over processes, in one operation."""
    gradients = [parameter.grad for parameter in module.parameters() if parameter.grad is not None]
    if count() == 1 or not gradients:
        return
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    distributed.all_reduce(flat)
    flat /= count()
    for gradient, mean in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
        gradient.copy_(mean.view_as(gradient))


def copy_state(module: nn.Module) -> None:
    """Copy the first process's parameters and buffers to all processes."""
    if count() > 1:
        for tensor in module.state_dict().values():
            distributed.broadcast(tensor, src=0)


@contextlib.contextmanager
def own_randomness(device: torch.device) -> Iterator[None]:
    """Use process-specific random numbers inside the block; outside, all processes draw the same ones.

    Dropout must differ between the rows of different processes; random numbers for the whole batch must not. The
    block is seeded with a number drawn outside, so that a checkpoint of one process's state restores all.
    """
    if count() == 1:
        yield
        return
    seed = int(torch.randint(2**62, ())) + rank()
    with seeded(seed, devices=[device] if device.type == "cuda" else []):
        yield


@contextlib.contextmanager
def first_alone() -> Iterator[None]:
    """Run the block in the first process before the others, which then find the files it wrote."""
    if not first():
        wait()
    yield
    if first():
        wait()


def from_first(compute: Callable[[], float]) -> float:
    """Return the first process's result in all processes."""
    if count() == 1:
        return compute()
    result = torch.tensor(compute() if first() else 0.0, dtype=torch.float64)
    distributed.broadcast(result, src=0)
    return float(result)


def agree(condition: bool) -> bool:  # noqa: FBT001 - the only argument
    """Whether the condition holds in any process; the same result in all."""
    if count() == 1:
        return condition
    total = torch.tensor(int(condition))
    distributed.all_reduce(total)
    return bool(total)


def wait() -> None:
    """Wait until all processes have reached this point."""
    agree(False)
