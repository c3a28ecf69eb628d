"""CKD: contrastive distillation, where a sentence's own teacher vector is the positive.

Student and teacher encode the same sentence. The student's embedding must find the teacher's among
those of the batch and of a queue of past ones, which is MoCo with the teacher as its key encoder. A
dense layer with tanh, kept at inference, brings it to the teacher's width.

Source: Gao et al., "DistilCSE: Effective Knowledge Distillation For Contrastive Sentence Embeddings",
arXiv 2112.05638, in the form in which the authors of ConGen and SCT ran it as a baseline.

Differs from the paper: nothing is taken from it but the loss; there is no second, supervised stage.
What the baseline's authors do not state is chosen here: the dense layer, the queue's length and the
learning rate are ConGen's for each size, the queue starts with random unit rows, and the temperature is
the default of their loss, 0.2.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from embedkit.config import setting
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.training.components.heads import fit_head
from embedkit.training.components.queue import VectorQueue
from embedkit.training.losses.contrastive_distillation import contrastive_distillation_loss
from embedkit.training.losses.keys import Keys
from embedkit.training.method import Batch, BatchSpec, Method, Presets, StepOutput, pooled, unit_embeddings
from embedkit.training.self_supervision import JointConfig, SelfSupervision

__all__ = ["CKD", "CKDConfig"]


def _preset(*, lr: float, **settings: float) -> Mapping[str, Mapping[str, Any]]:
    return {
        "optim": {"lr": lr, "batch_size": 128, "epochs": 20},
        "dev": {"every": 512, "patience": 7},
        "settings": settings,
    }


@dataclasses.dataclass(frozen=True, kw_only=True)
class CKDConfig(JointConfig):
    """Settings of CKD."""

    queue_size: int = setting(16_384, "K, past teacher vectors; Small 65,536, as in ConGen", minimum=0)
    temperature: float = setting(0.2, "of the softmax over queue and batch", above=0)


class CKD(Method):
    """Contrastive distillation against a queue of teacher vectors.

    Args:
        encoder: the student; a head is added unless its width is the teacher's.
        config: settings.
        seed: of head and queue.
        teacher_dimension: T, width of the teacher's vectors.
    """

    batch_spec: ClassVar[BatchSpec] = BatchSpec(teacher=True)
    imitates: ClassVar[bool] = True
    presets: ClassVar[Presets] = {
        "tiny": _preset(lr=5e-4, queue_size=16_384),
        "mini": _preset(lr=3e-4, queue_size=16_384),
        "small": _preset(lr=3e-4, queue_size=65_536),
    }

    def __init__(self, encoder: SentenceEncoder, config: CKDConfig, *, seed: int, teacher_dimension: int) -> None:
        super().__init__()
        fit_head(encoder, teacher_dimension, seed=seed)
        self.encoder, self.config = encoder, config
        self.queue = VectorQueue(config.queue_size, teacher_dimension, seed=seed)
        self.self_supervision = SelfSupervision.beside(encoder, config, seed=seed)

    @classmethod
    def needs(cls, config: CKDConfig) -> BatchSpec:
        """One view, two when joint."""
        return config.add_views(cls.batch_spec)

    def forward(self, batch: Batch) -> StepOutput:
        """Cross-entropy of similarities with the own teacher vector as the answer, plus ``L_SCT`` when joint."""
        teacher = batch.teacher[0]
        embeddings = [pooled(self.encoder, view) for view in batch.views]
        student = unit_embeddings(self.encoder, embeddings[0])
        keys = Keys(self.queue.rows, teacher)
        loss = contrastive_distillation_loss(student, keys, temperature=self.config.temperature)
        output = StepOutput(loss, carry={"teacher": teacher})
        if self.self_supervision is None:
            return output
        return self.self_supervision.add_to(output, self.encoder, batch, embeddings)

    def after_step(self, outputs: Sequence[StepOutput]) -> None:
        """Fill the queue with the batch's teacher vectors."""
        for output in outputs:
            self.queue.enqueue(output.carry["teacher"])
        if self.self_supervision is not None:
            self.self_supervision.after_step(self.encoder, outputs)
