"""The amount of work in a run, estimated before it begins."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from embedkit.config import from_mapping
from embedkit.training.config import RunConfig
from embedkit.training.corpus import Corpus
from embedkit.training.dev_schedule import evaluation_steps, total_steps
from embedkit.training.held_out import Split
from embedkit.training.recipes.score_distillation import ScoreDistillationConfig

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
    pairs = _pairs(config)
    sources = config.sources if pairs is None else pairs.sources(config)
    corpus = Corpus.find(sources, Path(config.cache))
    if corpus is None:
        return None
    optim = config.optim
    rows = len(corpus) * pairs.group if pairs else len(Split.of(corpus, config.dev.held_out).train)
    per_epoch, total = total_steps(
        rows // optim.batch_size, accumulate=optim.accumulate, epochs=optim.epochs, steps=optim.steps
    )
    if not (config.dev.pairs or config.dev.held_out or (pairs and pairs.dev)):
        return Plan(total, 0)
    steps = evaluation_steps(total, steps_per_epoch=per_epoch, every=config.dev.every, most=config.dev.most)
    return Plan(total, len(steps))


def _pairs(config: RunConfig) -> ScoreDistillationConfig | None:
    """Return the settings of a run that trains a cross-encoder on groups of each query's pairs."""
    if config.method != "score-distillation":
        return None
    return from_mapping(ScoreDistillationConfig, config.settings)
