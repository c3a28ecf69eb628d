"""SCT: self-supervised cross-view training, and distillation by the same cross-view distributions.

Small encoders learn better from *distributions* than from single positives: each online view must rank a long
queue of past sentences as the reference ranks the other view. Reference and online network share their weights;
only the online side has a projector, which is discarded after training. In distillation the reference is a frozen
teacher, and a dense layer with tanh, kept at inference, maps the student to the teacher's width.

Source: Limkonchotiwat et al., "An Efficient Self-Supervised Cross-View Training For Sentence
Embedding", TACL 2023, equations 1 to 4; settings of Table 1 and of the authors' code.

Differs from the paper: keys are queue *and* batch, K + B in all, and the oldest B leave after the loss, as in the
authors' code. The paper adds the distillation loss to the self-supervised one; the authors' code runs them one
after the other (recipe ``sct-two-stage``). ``joint`` adds them: distillation on the dense layer's output with
queues of the teacher's width, self-supervision on the projected pooled embedding with queues of the student's
width (the paper does not specify how the two widths meet). Differs from the authors' code: the two directions are
averaged, not summed (``weight``); queues are part of the checkpoint; the unused projector of stage two is not
built.

``views = 1`` encodes each sentence once, in half the time: if the teacher sees a single text and the student has
no dropout, both directions are equal. ``regression`` adds the squared distance from the teacher's vectors, which
determines an embedding's position and not only its neighbours.

Several teachers are an extension: each has queues of its own width, filled with the same sentences, and targets
are the average of their distributions. The student is scored against the first teacher's vectors and has its
width. ``group_mass`` shuffles targets as DistillCSE (Xu et al., Findings of EMNLP 2023) shuffles cosines.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from embedkit.config import setting
from embedkit.errors import ConfigError
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.training.components import CrossViewQueues, QueueKind, TeacherQueues
from embedkit.training.distillation import Distillation, ShuffledConfig
from embedkit.training.losses import Keys, squared_distance
from embedkit.training.method import Batch, BatchSpec, Method, Presets, StepOutput, pooled, unit_embeddings
from embedkit.training.self_supervision import Objective, SCTConfig, SelfSupervision, cross_view_loss

_PAPER = "Limkonchotiwat et al., TACL 2023"


def _preset(*, lr: float, **settings: float) -> Mapping[str, Mapping[str, Any]]:
    return {"optim": {"lr": lr}, "settings": settings}


@dataclasses.dataclass(frozen=True, kw_only=True)
class SCTDistillationConfig(ShuffledConfig):
    """Settings of SCT distillation; the defaults are the authors' for Tiny."""

    queue_size: int = setting(131_072, "K, number of teacher vectors in a queue; Mini 65,536", minimum=0)
    temperature: float = setting(0.04, "temperature of the student's distributions; Mini and Small 0.05", above=0)
    reference_temperature: float = setting(
        0.03, "temperature of the teacher's distributions; Mini and Small 0.04", above=0
    )
    weight: float = setting(0.5, "weight of each direction; 1.0 in the authors' code", above=0)
    objective: Objective = setting("kl", "cross_entropy and contrastive are ablations")
    wiring: Literal["cross", "identical"] = setting("cross", "identical views are an ablation")
    views: Literal[1, 2] = setting(
        2, "1: encode each sentence once and learn its own distribution, for students without dropout"
    )
    regression: float = setting(
        0.0, "weight of the squared distance from the teacher's vectors, added to the loss", minimum=0
    )
    queues: QueueKind = setting("two", "one is equivalent and cheaper if the teacher sees a single view")

    def __post_init__(self) -> None:
        if self.objective == "contrastive" and self.group_mass is not None:
            raise ConfigError(
                "group_mass cannot be combined with objective = contrastive, which has no probabilities to shuffle"
            )
        if self.views == 1 and (self.joint or self.queues == "two"):
            raise ConfigError('views = 1 requires queues = "one" and joint = false')


class SCT(Method):
    """Self-supervised cross-view training of an encoder without a head."""

    settings_class: ClassVar[type[Any]] = SCTConfig
    paper: ClassVar[str] = _PAPER
    batch_spec: ClassVar[BatchSpec] = BatchSpec(views=2)
    # Table 1 of the paper.
    presets: ClassVar[Presets] = {
        "tiny": _preset(lr=5e-4, queue_size=131_072, reference_temperature=0.03, temperature=0.04),
        "mini": _preset(lr=3e-4, queue_size=131_072, reference_temperature=0.01, temperature=0.03),
        "small": _preset(lr=3e-4, queue_size=65_536, reference_temperature=0.02, temperature=0.03),
    }

    def __init__(self, encoder: SentenceEncoder, config: SCTConfig, *, seed: int) -> None:
        super().__init__()
        encoder.set_head(None)
        self.encoder = encoder
        self.self_supervision = SelfSupervision(encoder, config, seed=seed)

    def forward(self, batch: Batch) -> StepOutput:
        """Return ``L_SCT`` of two views."""
        embeddings = pooled(self.encoder, batch.views[0]), pooled(self.encoder, batch.views[1])
        loss, carry = self.self_supervision(self.encoder, batch, embeddings)
        return StepOutput(loss, carry=carry)

    def after_step(self, outputs: Sequence[StepOutput]) -> None:
        """Add the batch's reference vectors to the queues; update the moving average, if any."""
        self.self_supervision.after_step(self.encoder, outputs)


class SCTDistillation(Distillation):
    """Cross-view distillation of an encoder that gets a dense head of the teacher's width.

    A head is added unless the student has the first teacher's width.
    """

    settings_class: ClassVar[type[Any]] = SCTDistillationConfig
    paper: ClassVar[str] = _PAPER
    batch_spec: ClassVar[BatchSpec] = BatchSpec(views=2, teacher=True, several_teachers=True)
    config: SCTDistillationConfig
    # README of the authors' code.
    presets: ClassVar[Presets] = {
        "tiny": _preset(lr=5e-4, queue_size=131_072, reference_temperature=0.03, temperature=0.04),
        "mini": _preset(lr=1e-4, queue_size=65_536, reference_temperature=0.04, temperature=0.05),
        "small": _preset(lr=1e-4, queue_size=131_072, reference_temperature=0.04, temperature=0.05),
    }

    def __init__(
        self,
        encoder: SentenceEncoder,
        config: SCTDistillationConfig,
        *,
        seed: int,
        teacher_dimensions: Sequence[int],
    ) -> None:
        super().__init__(encoder, config, seed=seed, teacher_dimension=teacher_dimensions[0])
        self.queues = TeacherQueues(
            CrossViewQueues(config.queue_size, width, kind=config.queues, seed=seed)
            for width in teacher_dimensions
        )

    @classmethod
    def needs(cls, config: SCTDistillationConfig) -> BatchSpec:  # type: ignore[override]
        """Return the requirements for the configured number of views."""
        return config.add_views(dataclasses.replace(cls.batch_spec, views=config.views))

    @classmethod
    def settings_problem(cls, config: SCTDistillationConfig, teachers: int) -> str | None:
        """Report several teachers of an objective that has no distributions to average."""
        if config.objective == "contrastive" and teachers > 1:
            return "objective = contrastive supports one teacher: name it in [teacher]"
        return None

    def distil(self, batch: Batch, embeddings: Sequence[Tensor]) -> StepOutput:
        """Return ``L_CD``, plus the weighted squared distance from the (first) teacher's vectors."""
        keys = [
            tuple(Keys(rows, view) for rows, view in zip(queues.rows, vectors, strict=False))
            for queues, vectors in zip(self.queues.each, batch.teachers, strict=True)
        ]
        students = [unit_embeddings(self.encoder, rows) for rows in embeddings]
        loss = cross_view_loss(
            students,
            keys[0],
            others=keys[1:],
            temperature=self.config.temperature,
            reference_temperature=self.config.reference_temperature,
            objective=self.config.objective,
            identical_view=self.config.wiring == "identical",
            weight=self.config.weight,
            shuffle=self.config.shuffle,
        )
        if self.config.regression:
            pairs = zip(students, batch.teacher, strict=True)
            distance = torch.stack([squared_distance(student, vectors) for student, vectors in pairs]).mean()
            loss = loss + self.config.regression * distance
        return StepOutput(loss, carry=self.queues.carry(batch.teachers))

    def enqueue(self, carry: Mapping[str, Tensor]) -> None:
        """Add the batch's teacher vectors to the queues."""
        self.queues.enqueue(carry)
