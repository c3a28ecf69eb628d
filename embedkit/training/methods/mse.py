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
from collections.abc import Mapping
from typing import Any, ClassVar

from torch.nn import functional

from embedkit.modeling.encoder import SentenceEncoder
from embedkit.training.components.heads import fit_head
from embedkit.training.losses.squared_distance import squared_distance
from embedkit.training.method import Batch, BatchSpec, Method, Presets, StepOutput, embedded

__all__ = ["MSE", "MSEConfig"]


def _preset(*, lr: float) -> Mapping[str, Mapping[str, Any]]:
    return {"optim": {"lr": lr, "batch_size": 128, "epochs": 20}, "dev": {"every": 512, "patience": 7}}


@dataclasses.dataclass(frozen=True, kw_only=True)
class MSEConfig:
    """MSE has no settings of its own."""


class MSE(Method):
    """Regression on the teacher's vectors.

    Args:
        encoder: the student; a head is added unless its width is the teacher's.
        config: settings.
        seed: of the head.
        teacher_dimension: T, width of the teacher's vectors.
    """

    batch_spec: ClassVar[BatchSpec] = BatchSpec(teacher=True)
    presets: ClassVar[Presets] = {"tiny": _preset(lr=5e-4), "mini": _preset(lr=3e-4), "small": _preset(lr=3e-4)}

    def __init__(self, encoder: SentenceEncoder, config: MSEConfig, *, seed: int, teacher_dimension: int) -> None:
        super().__init__()
        fit_head(encoder, teacher_dimension, seed=seed)
        self.encoder, self.config = encoder, config

    def forward(self, batch: Batch) -> StepOutput:
        """Mean squared distance of unit rows."""
        student = functional.normalize(embedded(self.encoder, batch.views[0]).float(), dim=1)
        return StepOutput(squared_distance(student, batch.teacher[0]))
