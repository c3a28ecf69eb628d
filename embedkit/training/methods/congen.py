"""ConGen: a student learns how a teacher ranks past sentences, from the sentence and from a paraphrase.

The teacher sees view 1 and scores a long queue of its own past vectors. The student must give the same
distribution for view 1 (control) and for view 2 (generalisation), so that it becomes insensitive to
paraphrase without ever contrasting single pairs. A dense layer with tanh, kept at inference, brings it
to the teacher's width.

Source: Limkonchotiwat et al., "ConGen: Unsupervised Control and Generalization Distillation For Sentence
Representation", Findings of EMNLP 2022; settings for each size from the authors' code.

Differs from the authors' code: the queue starts with random unit rows, flushed after K / B steps,
where theirs holds the teacher's vectors of K training sentences that are then left out of training;
it is part of the checkpoint.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor
from torch.nn import functional

from embedkit.config import setting
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.training.components.heads import fit_head
from embedkit.training.components.queue import VectorQueue
from embedkit.training.losses.congen import congen_loss
from embedkit.training.losses.cross_view import Keys
from embedkit.training.method import Batch, BatchSpec, Method, Presets, StepOutput, View, embedded

__all__ = ["ConGen", "ConGenConfig"]


def _preset(*, lr: float, **settings: float) -> Mapping[str, Mapping[str, Any]]:
    return {
        "optim": {"lr": lr, "batch_size": 128, "epochs": 20},
        "dev": {"every": 512, "patience": 7},
        "settings": settings,
    }


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConGenConfig:
    """Settings of ConGen; the defaults are the authors' for Tiny."""

    queue_size: int = setting(16_384, "K, teacher vectors; Tiny and Mini 16,384, Small 65,536", minimum=0)
    temperature: float = setting(0.05, "of the student's distributions; Mini and Small 0.07", above=0)
    teacher_temperature: float = setting(0.05, "of the teacher's distribution; all sizes 0.05", above=0)
    control: float = setting(0.5, "weight of view 1; view 2 has the rest", minimum=0, maximum=1)


class ConGen(Method):
    """Distillation of one teacher distribution into both views of a sentence.

    Args:
        encoder: the student; a head is added unless its width is the teacher's.
        config: settings.
        seed: of head and queue.
        teacher_dimension: T, width of the teacher's vectors.
    """

    batch_spec: ClassVar[BatchSpec] = BatchSpec(views=2, teacher=True)
    # README of the authors' code.
    presets: ClassVar[Presets] = {
        "tiny": _preset(lr=5e-4, queue_size=16_384, teacher_temperature=0.05, temperature=0.05),
        "mini": _preset(lr=3e-4, queue_size=16_384, teacher_temperature=0.05, temperature=0.07),
        "small": _preset(lr=3e-4, queue_size=65_536, teacher_temperature=0.05, temperature=0.07),
    }

    def __init__(
        self, encoder: SentenceEncoder, config: ConGenConfig, *, seed: int, teacher_dimension: int
    ) -> None:
        super().__init__()
        fit_head(encoder, teacher_dimension, seed=seed)
        self.encoder, self.config = encoder, config
        self.queue = VectorQueue(config.queue_size, teacher_dimension, seed=seed)

    def forward(self, batch: Batch) -> StepOutput:
        """Cross-entropy of both views with the teacher's distribution of view 1."""
        teacher = batch.teacher[0]
        loss = congen_loss(
            (self._student(batch.views[0]), self._student(batch.views[1])),
            Keys(self.queue.rows, teacher),
            temperature=self.config.temperature,
            teacher_temperature=self.config.teacher_temperature,
            control=self.config.control,
        )
        return StepOutput(loss, carry={"teacher": teacher})

    def after_step(self, outputs: Sequence[StepOutput]) -> None:
        """Fill the queue with the batch's teacher vectors of view 1."""
        for output in outputs:
            self.queue.enqueue(output.carry["teacher"])

    def _student(self, view: View) -> Tensor:
        return functional.normalize(embedded(self.encoder, view).float(), dim=1)
