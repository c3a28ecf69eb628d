"""The common part of methods whose student imitates a teacher's vectors.

The student gets the teacher's width through a dense layer with tanh that is kept at inference.
"""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from embedkit.config import setting
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.modeling.layout import Activation
from embedkit.modeling.pretrained import evaluating
from embedkit.modeling.seeding import seeded
from embedkit.modeling.teacher_layers import fit_affine
from embedkit.training.method import Batch, Method, StepOutput, View, pooled

_RIDGE = 1e-2


@dataclasses.dataclass(frozen=True, kw_only=True)
class DistillationConfig:
    """Settings shared by all distillation methods."""

    head: Activation = setting(
        "tanh",
        "layer that maps the student to the teacher's width: dense with tanh, if the widths differ, as in the "
        "papers; or linear, fitted by ridge regression before the first step",
    )


class Distillation(Method):
    """A method that imitates a teacher.

    A tanh head is added unless the encoder has the teacher's width, a linear head unless a head has that width.
    """

    matches_teacher_space: ClassVar[bool] = True
    config: DistillationConfig

    def __init__(
        self, encoder: SentenceEncoder, config: DistillationConfig, *, seed: int, teacher_dimension: int
    ) -> None:
        super().__init__()
        fits = encoder.dimension == teacher_dimension
        self.head_is_new = not fits or (encoder.head is None and config.head != "tanh")
        if self.head_is_new:
            with seeded(seed):
                encoder.set_head(teacher_dimension, config.head)
        self.encoder, self.config = encoder, config

    @property
    def awaits_start(self) -> bool:
        """Whether there is a new linear head for :meth:`start_head` to fit."""
        head = self.encoder.head
        return self.head_is_new and head is not None and head.activation == "linear"

    def renew_head(self, *, seed: int) -> None:
        """Replace a head that the encoder brought by a new one of the same kind, for another teacher's space."""
        if self.encoder.head is not None and not self.head_is_new:
            with seeded(seed):
                self.encoder.set_head(self.encoder.dimension, self.encoder.head.activation)
            self.head_is_new = True

    @torch.no_grad()
    def start_head(self, views: Iterable[View], vectors: Tensor) -> None:
        """Fit a new linear head to the teacher's vectors ``(N, T) float32`` of some texts by ridge regression."""
        head = self.encoder.head
        if head is None or not self.awaits_start:
            return
        with evaluating(self):  # every process encodes all texts, so nothing is gathered
            rows = [
                torch.cat([self.encoder.pooled(*chunk) for chunk in view.chunks])[view.order] for view in views
            ]
        weight, bias = fit_affine(torch.cat(rows), vectors, ridge=_RIDGE)
        head.linear.weight.copy_(weight)
        head.linear.bias.copy_(bias)

    @abstractmethod
    def distil(self, batch: Batch, embeddings: Sequence[Tensor]) -> StepOutput:
        """Return the distillation loss from pooled embeddings of the views, before the head, each ``(B, H)``."""

    def forward(self, batch: Batch) -> StepOutput:
        """Return the distillation loss."""
        return self.distil(batch, [pooled(self.encoder, view) for view in batch.views])


def congen_preset(*, lr: float, **settings: float) -> Mapping[str, Mapping[str, Any]]:
    """Return ConGen's training setup for one size, which its authors also use for the baselines."""
    return {
        "optim": {"lr": lr, "batch_size": 128, "epochs": 20},
        "dev": {"every": 512, "patience": 7},
        "settings": settings,
    }
