"""The rows of the comparison: methods, their settings, and the location of their rates and steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

QUEUE = {"queue_size": 8192}


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of the comparison.

    Attributes:
        method: a name listed by `embedkit methods`.
        settings: settings of the method.
        rates: settings of learning rates, each with the row whose choice it uses; None is the row's own choice.
        steps: settings of numbers of steps, each with its share of the budget.
        teacher: whether it learns from the teacher.
        pairs: whether it learns from pairs of sentences.
    """

    method: str
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    rates: Mapping[str, str | None] = dataclasses.field(default_factory=lambda: {"optim.lr": None})
    steps: Mapping[str, float] = dataclasses.field(default_factory=lambda: {"optim.steps": 1.0})
    teacher: bool = False
    pairs: bool = False

    @property
    def swept(self) -> bool:
        """Whether the row chooses a learning rate of its own."""
        return None in self.rates.values()


ROWS = {
    "sct": Row("sct", QUEUE),
    "simcse": Row("simcse"),
    "bsl": Row("bsl"),
    "pcl": Row("pcl"),
    "trans-encoder": Row(
        "trans-encoder",
        {"cycles": 2, "cross_length": 32, "cross_optim": {"batch_size": 64}},
        rates={"optim.lr": None, "settings.cross_optim.lr": None},
        steps={"optim.steps": 1 / 4, "settings.cross_optim.steps": 1 / 4},
        pairs=True,
    ),
    "mse": Row("mse", teacher=True),
    "ckd": Row("ckd", QUEUE, teacher=True),
    "congen": Row("congen", QUEUE, teacher=True),
    "distillcse": Row("distillcse", teacher=True),
    "sct-distillation": Row("sct-distillation", QUEUE, teacher=True),
    "distillcse-rounds": Row(
        "distillcse-rounds",
        {"teachers": 2},
        rates={"settings.contrastive_optim.lr": "simcse", "optim.lr": "distillcse"},
        steps={"settings.contrastive_optim.steps": 1 / 3, "optim.steps": 1 / 3},
    ),
    "sct-two-stage": Row(
        "sct-two-stage",
        {"self_supervised": QUEUE, "distillation": QUEUE},
        rates={"settings.self_supervised_optim.lr": "sct", "optim.lr": "sct-distillation"},
        steps={"settings.self_supervised_optim.steps": 1 / 3, "optim.steps": 2 / 3},
        teacher=True,
    ),
    "sct-distillation, joint": Row(
        "sct-distillation",
        {**QUEUE, "joint": True, "self_supervised": QUEUE},
        rates={"optim.lr": "sct-distillation"},
        teacher=True,
    ),
}
"""Rows whose rates are used by others come first."""
