"""When a run is evaluated: known before its first step, so that a resumed run does as one that was not."""

from __future__ import annotations

__all__ = ["evaluation_steps", "total_steps"]


def total_steps(batches_per_epoch: int, *, accumulate: int, epochs: int, steps: int | None) -> tuple[int, int]:
    """Optimizer steps of an epoch, and of the run: ``steps`` if that is given, else so many epochs."""
    per_epoch = max(1, batches_per_epoch // accumulate)
    return per_epoch, steps or epochs * per_epoch


def evaluation_steps(total: int, *, steps_per_epoch: int, every: int, most: int | None = None) -> frozenset[int]:
    """The steps after which a run is evaluated; the last one is always among them.

    Args:
        total: steps of the run.
        steps_per_epoch: an epoch's end is an evaluation of its own.
        every: steps between evaluations.
        most: evaluations allowed. Where epoch ends and ``every`` make more, the run is evaluated at equal
            distances instead, as often as that allows.
    """
    steps = {*range(every, total + 1, every), *range(steps_per_epoch, total + 1, steps_per_epoch), total}
    if most is not None and len(steps) > most:
        distance = -(-total // most)
        steps = {*range(distance, total + 1, distance), total}
    return frozenset(steps)
