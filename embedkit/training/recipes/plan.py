"""The amount of work in a run, estimated before it begins."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from embedkit.training.config import RunConfig
from embedkit.training.corpus import Corpus
from embedkit.training.dev_schedule import evaluation_steps, total_steps
from embedkit.training.held_out import Split

__all__ = ["Plan", "plan"]


@dataclasses.dataclass(frozen=True)
class Plan:
    """The work of a run, or of the stage of a recipe that uses ``[optim]``.

    Attributes:
        steps: number of optimizer steps.
        evaluations: maximum number of evaluations on the development set; patience may end a run earlier.
    """

    steps: int
    evaluations: int


def plan(config: RunConfig) -> Plan | None:
    """Return the work of a run whose corpus is already prepared, or None without reading anything.

    Raises:
        DataError: the prepared corpus is damaged.
    """
    corpus = Corpus.find(config.sources, Path(config.cache))
    if corpus is None:
        return None
    optim = config.optim
    rows = len(Split.of(corpus, config.dev.held_out).train)
    per_epoch, total = total_steps(
        rows // optim.batch_size, accumulate=optim.accumulate, epochs=optim.epochs, steps=optim.steps
    )
    if config.dev.pairs is None and config.dev.held_out is None:
        return Plan(total, 0)
    steps = evaluation_steps(total, steps_per_epoch=per_epoch, every=config.dev.every, most=config.dev.most)
    return Plan(total, len(steps))
