"""DistillCSE: contrastive learning beside distillation from contrastively trained teachers of equal size.

A student trained by SimCSE also learns how similar its teachers find the sentences of the batch. Teachers
trained contrastively disagree a good deal about fine differences, so their cosines are averaged, and
shuffled inside groups of neighbouring ranks: the student learns the rough order and is not made to fit
noise. Students can be the teachers of a next round (recipe ``distillcse-rounds``).

Source: Xu, Shao, Chen and Liu, "DistillCSE: Distilled Contrastive Learning for Sentence Embeddings",
Findings of EMNLP 2023, equations 2 and 5, and its settings.

The embedding is the first token's state: the presets set ``student.pooling = "cls"``, as SimCSE's do; the
teachers are read as their own files say. Several teachers stand in ``[[teachers]]``, one in ``[teacher]``.

Differs from the paper: the distillation loss is averaged over anchors, not summed, as in the authors'
code, and the student's cosines are those of the first dropout pass with itself, after the training head,
of which the paper says nothing. Like SimCSE it has no models smaller than BERT-base, whose learning rate
all sizes get; it has 1e-5 for BERT-large and RoBERTa. Differs from the authors' code: temperatures are
the paper's 0.02 and 0.01, not 0.025 and 0.0125, and one epoch is trained, not 5,000 steps
(``optim.steps``); teacher vectors come from a cache; batches may have any length.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, Literal

from embedkit.config import setting
from embedkit.errors import ConfigError
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.training.components.heads import training_head
from embedkit.training.losses.info_nce import info_nce
from embedkit.training.losses.shuffling import (
    Grouping,
    group_of_length,
    group_of_mass,
    group_window,
    shuffle_within_groups,
)
from embedkit.training.losses.similarity_distillation import (
    average_cosines,
    cosines_with_others,
    similarity_distillation_loss,
)
from embedkit.training.method import Batch, BatchSpec, Method, Presets, StepOutput, pooled
from embedkit.training.optim import TRAINER_OPTIM

__all__ = ["DistillCSE", "DistillCSEConfig", "teacher_weights"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class DistillCSEConfig:
    """Settings of DistillCSE; the defaults are the paper's."""

    contrastive_temperature: float = setting(0.05, "of InfoNCE", above=0)
    temperature: float = setting(0.02, "of the student's distributions; the authors' code has 0.025", above=0)
    teacher_temperature: float = setting(0.01, "of the teachers'; the authors' code has 0.0125", above=0)
    distillation: float = setting(1.0, "lambda, weight of distillation beside InfoNCE", minimum=0)
    teacher_weights: tuple[float, ...] = setting(
        (),
        "one for each teacher, brought to sum 1; default: all alike. The authors' code: a base 0.33, a large 0.67",
    )
    shuffle: Literal["mass", "length", "window", "none"] = setting(
        "mass", "groups in which ranks are shuffled: of equal probability (the paper), of equal length, or one"
    )
    group_mass: float = setting(0.1, "p, probability of a group; the paper tries 0.05 to 0.15", above=0, maximum=1)
    group_length: int = setting(6, "ranks in a group of equal length", minimum=1)
    window_start: int = setting(0, "first rank of the window, from 0", minimum=0)
    window_stop: int = setting(12, "rank behind the window", minimum=1)

    def __post_init__(self) -> None:
        if self.window_start >= self.window_stop:
            raise ConfigError(f"window_start = {self.window_start} is not before window_stop = {self.window_stop}")


class DistillCSE(Method):
    """Contrastive learning plus distillation of averaged and shuffled cosines.

    Args:
        encoder: the student; a head it may have is taken away.
        config: settings.
        seed: of the training head.
        teacher_dimensions: T of each teacher; here only how many they are counts.

    Raises:
        ConfigError: the weights are not as many as the teachers, or do not make an average.
    """

    settings_class: ClassVar[type[Any]] = DistillCSEConfig
    paper: ClassVar[str] = "Xu et al., Findings of EMNLP 2023"
    batch_spec: ClassVar[BatchSpec] = BatchSpec(teacher=True, several_teachers=True)
    presets: ClassVar[Presets] = {
        size: {
            "student": {"pooling": "cls", "max_length": 32},
            "optim": {**TRAINER_OPTIM, "lr": 3e-5, "batch_size": 64, "epochs": 1},
            "dev": {"every": 125},
        }
        for size in ("tiny", "mini", "small")
    }

    def __init__(
        self, encoder: SentenceEncoder, config: DistillCSEConfig, *, seed: int, teacher_dimensions: Sequence[int]
    ) -> None:
        super().__init__()
        encoder.set_head(None)
        self.encoder, self.config = encoder, config
        self.head = training_head(encoder, seed=seed)
        self.weights = teacher_weights(config, len(teacher_dimensions))
        self.grouping = _GROUPINGS[config.shuffle](config)

    def forward(self, batch: Batch) -> StepOutput:
        """InfoNCE of two passes, plus distillation into the first."""
        config = self.config
        embeddings, again = (pooled(self.encoder, batch.views[0]) for _ in range(2))
        first = self.head(embeddings)
        contrast = info_nce(first, self.head(again), temperature=config.contrastive_temperature)
        targets = average_cosines([vectors[0] for vectors in batch.teachers], self.weights)
        if self.grouping is not None:
            targets = shuffle_within_groups(targets, self.grouping)
        distillation = similarity_distillation_loss(
            cosines_with_others(first),
            targets,
            temperature=config.temperature,
            teacher_temperature=config.teacher_temperature,
        )
        parts = {"contrastive": contrast.detach(), "distillation": distillation.detach()}
        return StepOutput(contrast + config.distillation * distillation, parts)


def teacher_weights(config: DistillCSEConfig, count: int) -> tuple[float, ...]:
    """The teachers' weights, of sum 1.

    Raises:
        ConfigError: they are not as many as the teachers, negative, or all 0.
    """
    weights = config.teacher_weights or (1.0,) * count
    if len(weights) != count:
        raise ConfigError(f"settings.teacher_weights has {len(weights)} weights for {count} teachers")
    if min(weights) < 0 or sum(weights) == 0:
        raise ConfigError("settings.teacher_weights are at least 0, and not all of them 0")
    return tuple(weight / sum(weights) for weight in weights)


_GROUPINGS: dict[str, Callable[[DistillCSEConfig], Grouping | None]] = {
    "mass": lambda config: partial(group_of_mass, mass=config.group_mass),
    "length": lambda config: partial(group_of_length, length=config.group_length),
    "window": lambda config: partial(group_window, start=config.window_start, stop=config.window_stop),
    "none": lambda _: None,
}
