"""When a run is evaluated: fixed before its first step, so that a resumed run evaluates at the same steps."""

from __future__ import annotations

__all__ = ["evaluation_steps", "total_steps"]


def total_steps(batches_per_epoch: int, *, accumulate: int, epochs: int, steps: int | None) -> tuple[int, int]:
    """Return the optimizer steps per epoch and in total: ``steps`` if set, else ``epochs`` epochs."""
    per_epoch = max(1, batches_per_epoch // accumulate)
    return per_epoch, steps or epochs * per_epoch


def evaluation_steps(total: int, *, steps_per_epoch: int, every: int, most: int | None = None) -> frozenset[int]:
    """Return the steps after which a run is evaluated, always including the last.

    Args:
        total: number of steps in the run.
        steps_per_epoch: the end of each epoch is evaluated too.
        every: steps between evaluations.
        most: maximum number of evaluations. If epoch ends and ``every`` would exceed it, evaluations are evenly
            spaced instead, as densely as ``most`` allows.
    """
    steps = {*range(every, total + 1, every), *range(steps_per_epoch, total + 1, steps_per_epoch), total}
    if most is not None and len(steps) > most:
        distance = -(-total // most)
        steps = {*range(distance, total + 1, distance), total}
    return frozenset(steps)
