"""ConGen: a student learns how a teacher ranks past sentences, from the sentence and from a paraphrase.

The teacher encodes view 1 and scores a long queue of its own past vectors. The student must give the same
distribution for view 1 (control) and for view 2 (generalisation), which makes it robust to paraphrase without
contrasting single pairs. A dense layer with tanh, kept at inference, maps the student to the teacher's width.

Source: Limkonchotiwat et al., "ConGen: Unsupervised Control and Generalization Distillation For Sentence
Representation", Findings of EMNLP 2022; settings for each size from the authors' code.

Differs from the authors' code: the queue starts with random unit rows, flushed after K / B steps, where theirs
holds the teacher's vectors of K training sentences that are then left out of training; it is part of the
checkpoint.

MSE is the L2 baseline of this paper and of SCT's (TACL 2023): the squared distance between the vectors of student
and teacher is minimised, and sentences are not compared with each other. Both sides are normalised to unit length,
as teacher vectors are throughout this package; the papers do not specify it. They give no settings for this
baseline, so the presets are ConGen's.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

from torch import Tensor

from embedkit.config import setting
from embedkit.training.losses import Keys, cross_entropy, squared_distance, target_distribution
from embedkit.training.method import (
    Batch,
    BatchSpec,
    Distillation,
    DistillationConfig,
    Presets,
    QueueDistillation,
    StepOutput,
    congen_preset,
    embed,
)


def congen_loss(
    students: tuple[Tensor, Tensor],
    keys: Keys,
    *,
    temperature: float,
    teacher_temperature: float,
    control: float = 0.5,
) -> Tensor:
    """Return the cross-entropy of each view's similarity distribution with the teacher's for view 1.

    With keys Q and t their batch part, ``p = softmax(t Q / teacher_temperature)`` is the target of
    ``softmax(s1 Q / temperature)`` (control) and of ``softmax(s2 Q / temperature)`` (generalisation). The keys
    get no gradient.

    Args:
        students: s1, s2, each ``(B, T) float, unit rows``.
        keys: past and current teacher vectors of view 1.
        temperature: temperature of the student's distributions.
        teacher_temperature: temperature of the teacher's distribution.
        control: weight of view 1, in [0, 1]; view 2 has weight ``1 - control``.
    """
    target = target_distribution(keys, teacher_temperature).probabilities
    first, second = (cross_entropy(student, keys, target, temperature=temperature) for student in students)
    return control * first + (1 - control) * second


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConGenConfig(DistillationConfig):
    """Settings of ConGen; the defaults are the authors' for Tiny."""

    queue_size: int = setting(
        16_384, "K, number of past teacher vectors; Tiny and Mini 16,384, Small 65,536", minimum=0
    )
    temperature: float = setting(0.05, "temperature of the student's distributions; Mini and Small 0.07", above=0)
    teacher_temperature: float = setting(
        0.05, "temperature of the teacher's distribution; 0.05 for all sizes", above=0
    )
    control: float = setting(0.5, "weight of view 1; view 2 has weight 1 - control", minimum=0, maximum=1)


class ConGen(QueueDistillation):
    """Distillation of one teacher distribution into both views of a sentence."""

    settings_class: ClassVar[type[Any]] = ConGenConfig
    paper: ClassVar[str] = "Limkonchotiwat et al., Findings of EMNLP 2022"
    batch_spec: ClassVar[BatchSpec] = BatchSpec(views=2, teacher=True)
    config: ConGenConfig
    # README of the authors' code.
    presets: ClassVar[Presets] = {
        "bert-tiny": congen_preset(lr=5e-4, queue_size=16_384, teacher_temperature=0.05, temperature=0.05),
        "bert-mini": congen_preset(lr=3e-4, queue_size=16_384, teacher_temperature=0.05, temperature=0.07),
        "bert-small": congen_preset(lr=3e-4, queue_size=65_536, teacher_temperature=0.05, temperature=0.07),
    }

    def forward(self, batch: Batch) -> StepOutput:
        """Return the cross-entropy of both views with the teacher's distribution of view 1."""
        teacher = batch.teacher[0]
        loss = congen_loss(
            (embed(self.encoder, batch.views[0]), embed(self.encoder, batch.views[1])),
            Keys(self.queue.rows, teacher),
            temperature=self.config.temperature,
            teacher_temperature=self.config.teacher_temperature,
            control=self.config.control,
        )
        return StepOutput(loss, state_update={"teacher": teacher})


@dataclasses.dataclass(frozen=True, kw_only=True)
class MSEConfig(DistillationConfig):
    """Settings of MSE: those of the head."""


class MSE(Distillation):
    """Regression on the teacher's vectors."""

    settings_class: ClassVar[type[Any]] = MSEConfig
    paper: ClassVar[str] = "baseline of Limkonchotiwat et al., Findings of EMNLP 2022"
    batch_spec: ClassVar[BatchSpec] = BatchSpec(teacher=True)
    presets: ClassVar[Presets] = {
        "bert-tiny": congen_preset(lr=5e-4),
        "bert-mini": congen_preset(lr=3e-4),
        "bert-small": congen_preset(lr=3e-4),
    }

    def forward(self, batch: Batch) -> StepOutput:
        """Return the mean squared distance of unit rows."""
        return StepOutput(squared_distance(embed(self.encoder, batch.views[0]), batch.teacher[0]))
