"""MSE: the plain baseline, a student that imitates its teacher's vectors one by one.

Student and teacher encode the same sentence, and the squared distance between their vectors is minimised.
Sentences are not compared with each other. A dense layer with tanh, kept at inference, maps the student to the
teacher's width.

Source: the L2 (MSE) baseline of Limkonchotiwat et al., Findings of EMNLP 2022 (ConGen) and TACL 2023
(SCT).

Differs from the paper: both sides are normalised to unit length, as teacher vectors are throughout this package;
the papers do not specify it. They give no settings for this baseline, so the presets are ConGen's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

from torch import Tensor

from embedkit.training.distillation import Distillation, DistillationConfig, congen_preset
from embedkit.training.losses import squared_distance
from embedkit.training.method import Batch, BatchSpec, Presets, StepOutput, unit_embeddings


@dataclasses.dataclass(frozen=True, kw_only=True)
class MSEConfig(DistillationConfig):
    """Settings of MSE, all of them for the optional self-supervised loss and the head."""


class MSE(Distillation):
    """Regression on the teacher's vectors."""

    settings_class: ClassVar[type[Any]] = MSEConfig
    paper: ClassVar[str] = "baseline of Limkonchotiwat et al., Findings of EMNLP 2022"
    batch_spec: ClassVar[BatchSpec] = BatchSpec(teacher=True)
    presets: ClassVar[Presets] = {
        "tiny": congen_preset(lr=5e-4),
        "mini": congen_preset(lr=3e-4),
        "small": congen_preset(lr=3e-4),
    }

    def distil(self, batch: Batch, embeddings: Sequence[Tensor]) -> StepOutput:
        """Return the mean squared distance of unit rows."""
        student = unit_embeddings(self.encoder, embeddings[0])
        return StepOutput(squared_distance(student, batch.teacher[0]))
