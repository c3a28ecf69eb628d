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

Of several teachers, which the paper does not have, each has a queue of its own width, filled with the same
sentences, and the target is the average of their distributions. The student is scored against the first one's
vectors and gets that one's width. ``group_mass`` shuffles the target as DistillCSE (Xu et al., Findings of EMNLP
2023) shuffles cosines.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from embedkit.config import setting
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.training.components.heads import fit_head
from embedkit.training.components.queue import VectorQueue
from embedkit.training.components.teacher_queues import TeacherQueues
from embedkit.training.losses.congen import congen_loss
from embedkit.training.losses.keys import Keys
from embedkit.training.losses.shuffling import group_shuffle
from embedkit.training.method import Batch, BatchSpec, Method, Presets, StepOutput, pooled, unit_embeddings
from embedkit.training.self_supervision import JointConfig, SelfSupervision

__all__ = ["ConGen", "ConGenConfig"]


def _preset(*, lr: float, **settings: float) -> Mapping[str, Mapping[str, Any]]:
    return {
        "optim": {"lr": lr, "batch_size": 128, "epochs": 20},
        "dev": {"every": 512, "patience": 7},
        "settings": settings,
    }


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConGenConfig(JointConfig):
    """Settings of ConGen; the defaults are the authors' for Tiny."""

    queue_size: int = setting(16_384, "K, teacher vectors; Tiny and Mini 16,384, Small 65,536", minimum=0)
    temperature: float = setting(0.05, "of the student's distributions; Mini and Small 0.07", above=0)
    teacher_temperature: float = setting(0.05, "of the teacher's distribution; all sizes 0.05", above=0)
    control: float = setting(0.5, "weight of view 1; view 2 has the rest", minimum=0, maximum=1)
    group_mass: float | None = setting(
        None,
        "p of DistillCSE: the teacher's probabilities are shuffled in groups that hold so much; default: none are",
        above=0,
        maximum=1,
    )
    group_ranks: int = setting(1024, "how many of the most probable keys group_mass shuffles", minimum=1)


class ConGen(Method):
    """Distillation of one teacher distribution into both views of a sentence.

    Args:
        encoder: the student; a head is added unless its width is the first teacher's.
        config: settings.
        seed: of head and queues.
        teacher_dimensions: T of each teacher, width of its vectors.
    """

    batch_spec: ClassVar[BatchSpec] = BatchSpec(views=2, teacher=True, several_teachers=True)
    imitates: ClassVar[bool] = True
    # README of the authors' code.
    presets: ClassVar[Presets] = {
        "tiny": _preset(lr=5e-4, queue_size=16_384, teacher_temperature=0.05, temperature=0.05),
        "mini": _preset(lr=3e-4, queue_size=16_384, teacher_temperature=0.05, temperature=0.07),
        "small": _preset(lr=3e-4, queue_size=65_536, teacher_temperature=0.05, temperature=0.07),
    }

    def __init__(
        self, encoder: SentenceEncoder, config: ConGenConfig, *, seed: int, teacher_dimensions: Sequence[int]
    ) -> None:
        super().__init__()
        fit_head(encoder, teacher_dimensions[0], seed=seed)
        self.encoder, self.config = encoder, config
        self.queues = TeacherQueues(
            VectorQueue(config.queue_size, width, seed=seed) for width in teacher_dimensions
        )
        self.shuffle = group_shuffle(config.group_mass, config.group_ranks)
        self.self_supervision = SelfSupervision.beside(encoder, config, seed=seed)

    def forward(self, batch: Batch) -> StepOutput:
        """Cross-entropy of both views with the teacher's distribution of view 1, plus ``L_SCT`` when joint."""
        embeddings = pooled(self.encoder, batch.views[0]), pooled(self.encoder, batch.views[1])
        vectors = [teacher[0] for teacher in batch.teachers]
        keys = [Keys(queue.rows, rows) for queue, rows in zip(self.queues.each, vectors, strict=True)]
        students = unit_embeddings(self.encoder, embeddings[0]), unit_embeddings(self.encoder, embeddings[1])
        loss = congen_loss(
            students,
            keys[0],
            others=keys[1:],
            temperature=self.config.temperature,
            teacher_temperature=self.config.teacher_temperature,
            control=self.config.control,
            shuffle=self.shuffle,
        )
        output = StepOutput(loss, carry=self.queues.carry([[rows] for rows in vectors]))
        if self.self_supervision is None:
            return output
        return self.self_supervision.add_to(output, self.encoder, batch, embeddings)

    def after_step(self, outputs: Sequence[StepOutput]) -> None:
        """Fill the queues with the batch's teacher vectors of view 1."""
        for output in outputs:
            self.queues.enqueue(output.carry)
        if self.self_supervision is not None:
            self.self_supervision.after_step(self.encoder, outputs)
