"""The common part of methods whose student imitates a teacher's vectors.

The student gets the (first) teacher's width through a dense layer with tanh that is kept at inference. SCT's
self-supervised loss can be added to the distillation loss.
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
from embedkit.training.losses import Shuffle, group_shuffle
from embedkit.training.method import Batch, BatchSpec, Method, StepOutput, View, pooled
from embedkit.training.self_supervision import JointConfig, SelfSupervision

_RIDGE = 1e-2


@dataclasses.dataclass(frozen=True, kw_only=True)
class DistillationConfig(JointConfig):
    """Settings shared by all distillation methods."""

    head: Activation = setting(
        "tanh",
        "layer that maps the student to the teacher's width: dense with tanh, if the widths differ, as in the "
        "papers; or linear, fitted by ridge regression before the first step",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShuffledConfig(DistillationConfig):
    """Settings of methods that distil distributions, whose targets can be shuffled."""

    group_mass: float | None = setting(
        None,
        "p of DistillCSE: shuffle the teacher's probabilities in groups of this total probability; default: off",
        above=0,
        maximum=1,
    )
    group_ranks: int = setting(1024, "number of most probable keys that group_mass shuffles", minimum=1)

    @property
    def shuffle(self) -> Shuffle | None:
        """The function that shuffles targets, or None."""
        return group_shuffle(self.group_mass, self.group_ranks)


class Distillation(Method):
    """A method that imitates a teacher, optionally with a self-supervised loss.

    A tanh head is added unless the encoder has the teacher's width, a linear head unless a head has that width.
    """

    imitates: ClassVar[bool] = True
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
        self.self_supervision = SelfSupervision.beside(encoder, config, seed=seed)

    @classmethod
    def needs(cls, config: DistillationConfig) -> BatchSpec:
        """Return the views of the distillation, two if joint."""
        return config.add_views(cls.batch_spec)

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
        with evaluating(self):
            states = torch.cat([pooled(self.encoder, view) for view in views])
        weight, bias = fit_affine(states, vectors, ridge=_RIDGE)
        head.linear.weight.copy_(weight)
        head.linear.bias.copy_(bias)

    @abstractmethod
    def distil(self, batch: Batch, embeddings: Sequence[Tensor]) -> StepOutput:
        """Return the distillation loss from pooled embeddings of the views, before the head, each ``(B, H)``."""

    def enqueue(self, carry: Mapping[str, Tensor]) -> None:
        """Add the tensors that :meth:`distil` returned as ``carry`` to the queues, if any."""

    def forward(self, batch: Batch) -> StepOutput:
        """Return the distillation loss, plus ``L_SCT`` if joint."""
        embeddings = [pooled(self.encoder, view) for view in batch.views]
        output = self.distil(batch, embeddings)
        if self.self_supervision is None:
            return output
        return self.self_supervision.add_to(output, self.encoder, batch, embeddings)

    def after_step(self, outputs: Sequence[StepOutput]) -> None:
        """Fill the queues of the distillation and of the self-supervised part."""
        for output in outputs:
            self.enqueue(output.carry)
        if self.self_supervision is not None:
            self.self_supervision.after_step(self.encoder, outputs)


def congen_preset(*, lr: float, **settings: float) -> Mapping[str, Mapping[str, Any]]:
    """Return ConGen's training setup for one size, which its authors also use for the baselines."""
    return {
        "optim": {"lr": lr, "batch_size": 128, "epochs": 20},
        "dev": {"every": 512, "patience": 7},
        "settings": settings,
    }
