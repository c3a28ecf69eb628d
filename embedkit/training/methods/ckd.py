"""CKD: contrastive distillation, where a sentence's own teacher vector is the positive.

Student and teacher encode the same sentence. The student's embedding must identify the teacher's among those of
the batch and of a queue of past vectors: MoCo with the teacher as its key encoder. A dense layer with tanh,
kept at inference, maps the student to the teacher's width.

Source: Gao et al., "DistilCSE: Effective Knowledge Distillation For Contrastive Sentence Embeddings",
arXiv 2112.05638, in the form in which the authors of ConGen and SCT ran it as a baseline.

Differs from the paper: only the loss is used; there is no second, supervised stage. Details that the
baseline's authors do not state are chosen here: the dense layer, the queue's length and the learning rate are
ConGen's for each size, the queue starts with random unit rows, and the temperature is the default of their
loss, 0.2.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

from embedkit.config import setting
from embedkit.training.losses import Keys, own_cross_entropy
from embedkit.training.method import (
    Batch,
    BatchSpec,
    DistillationConfig,
    Presets,
    QueueDistillation,
    StepOutput,
    congen_preset,
    embed,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CKDConfig(DistillationConfig):
    """Settings of CKD."""

    queue_size: int = setting(16_384, "K, number of past teacher vectors; Small 65,536, as in ConGen", minimum=0)
    temperature: float = setting(0.2, "temperature of the softmax over queue and batch", above=0)


class CKD(QueueDistillation):
    """Contrastive distillation against a queue of teacher vectors."""

    settings_class: ClassVar[type[Any]] = CKDConfig
    paper: ClassVar[str] = "Gao et al., arXiv 2112.05638"
    batch_spec: ClassVar[BatchSpec] = BatchSpec(teacher=True)
    config: CKDConfig
    presets: ClassVar[Presets] = {
        "bert-tiny": congen_preset(lr=5e-4, queue_size=16_384),
        "bert-mini": congen_preset(lr=3e-4, queue_size=16_384),
        "bert-small": congen_preset(lr=3e-4, queue_size=65_536),
    }

    def forward(self, batch: Batch) -> StepOutput:
        """Return the cross-entropy with the sentence's own teacher vector as the correct key."""
        teacher = batch.teacher[0]
        student = embed(self.encoder, batch.views[0])
        keys = Keys(self.queue.rows, teacher)
        loss = own_cross_entropy(student, keys, temperature=self.config.temperature)
        return StepOutput(loss, state_update={"teacher": teacher})
