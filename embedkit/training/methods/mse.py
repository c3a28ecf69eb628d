"""MSE: the plain baseline, a student that imitates its teacher's vectors one by one.

Student and teacher encode the same sentence, and the squared distance of their vectors is made small.
Nothing relates one sentence to another. A dense layer with tanh, kept at inference, brings the student
to the teacher's width.

Source: the L2 (MSE) baseline of Limkonchotiwat et al., Findings of EMNLP 2022 (ConGen) and TACL 2023
(SCT).

Differs from the paper: both sides are brought to unit length, as the teacher's vectors are in this
package; the papers do not say. They give no settings of their own, so the presets are ConGen's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from embedkit.modeling.encoder import SentenceEncoder
from embedkit.training.components.heads import fit_head
from embedkit.training.losses.squared_distance import squared_distance
from embedkit.training.method import Batch, BatchSpec, Method, Presets, StepOutput, pooled, unit_embeddings
from embedkit.training.self_supervision import JointConfig, SelfSupervision

__all__ = ["MSE", "MSEConfig"]


def _preset(*, lr: float) -> Mapping[str, Mapping[str, Any]]:
    return {"optim": {"lr": lr, "batch_size": 128, "epochs": 20}, "dev": {"every": 512, "patience": 7}}


@dataclasses.dataclass(frozen=True, kw_only=True)
class MSEConfig(JointConfig):
    """MSE has no settings but those of the loss that may stand beside it."""


class MSE(Method):
    """Regression on the teacher's vectors.

    Args:
        encoder: the student; a head is added unless its width is the teacher's.
        config: settings.
        seed: of the head.
        teacher_dimension: T, width of the teacher's vectors.
    """

    batch_spec: ClassVar[BatchSpec] = BatchSpec(teacher=True)
    imitates: ClassVar[bool] = True
    presets: ClassVar[Presets] = {"tiny": _preset(lr=5e-4), "mini": _preset(lr=3e-4), "small": _preset(lr=3e-4)}

    def __init__(self, encoder: SentenceEncoder, config: MSEConfig, *, seed: int, teacher_dimension: int) -> None:
        super().__init__()
        fit_head(encoder, teacher_dimension, seed=seed)
        self.encoder, self.config = encoder, config
        self.self_supervision = SelfSupervision.beside(encoder, config, seed=seed)

    @classmethod
    def needs(cls, config: MSEConfig) -> BatchSpec:
        """One view, two when joint."""
        return config.add_views(cls.batch_spec)

    def forward(self, batch: Batch) -> StepOutput:
        """Mean squared distance of unit rows, plus ``L_SCT`` when joint."""
        embeddings = [pooled(self.encoder, view) for view in batch.views]
        student = unit_embeddings(self.encoder, embeddings[0])
        output = StepOutput(squared_distance(student, batch.teacher[0]))
        if self.self_supervision is None:
            return output
        return self.self_supervision.add_to(output, self.encoder, batch, embeddings)

    def after_step(self, outputs: Sequence[StepOutput]) -> None:
        """Fill the queues of the loss beside it."""
        if self.self_supervision is not None:
            self.self_supervision.after_step(self.encoder, outputs)
