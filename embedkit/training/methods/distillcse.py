"""DistillCSE: contrastive learning plus distillation from contrastively trained teachers of equal size.

A student trained by SimCSE also learns the similarities that its teachers find between sentences of the batch.
Contrastively trained teachers disagree considerably on fine differences, so their cosines are averaged and
shuffled within groups of neighbouring ranks: the student learns the coarse order and does not fit noise. Students
can be the teachers of the next round (recipe ``distillcse-rounds``).

Source: Xu, Shao, Chen and Liu, "DistillCSE: Distilled Contrastive Learning for Sentence Embeddings",
Findings of EMNLP 2023, equations 2 and 5, and its settings.

The embedding is the first token's state: the presets set ``student.pooling = "cls"``, as SimCSE's do; the
teachers use the pooling of their own files. Several teachers are configured by ``[[teachers]]``, a single one by
``[teacher]``.

Differs from the paper: the distillation loss is averaged over anchors, not summed, as in the authors' code, and
the student's cosines are those of the first dropout pass with itself, after the training head, which the paper
leaves open. Like SimCSE, the paper has no models smaller than BERT-base, whose learning rate all sizes use; it
uses 1e-5 for BERT-large and RoBERTa. Differs from the authors' code: temperatures are the paper's 0.02 and 0.01,
not 0.025 and 0.0125, and training takes one epoch, not 5,000 steps (``optim.steps``); teacher vectors come from
a cache; batches may have any length.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from embedkit.config import setting
from embedkit.errors import ConfigError
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.training.losses import info_nce, training_head, without_diagonal
from embedkit.training.method import Batch, BatchSpec, Method, Presets, StepOutput, pooled
from embedkit.training.optim import trainer_presets


def cosines_with_others(embeddings: Tensor) -> Tensor:
    """Return the cosines of each row with every *other* row, in batch order: ``(N, D) -> (N, N - 1) float32``.

    Removing the diagonal, rather than setting it to minus infinity, avoids 0 times infinity.
    """
    with torch.autocast(embeddings.device.type, enabled=False):
        rows = functional.normalize(embeddings.float(), dim=1)
        return without_diagonal(rows @ rows.T)


@torch.no_grad()
def average_cosines(teachers: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """Return the weighted average of several teachers' cosines: ``(N, N - 1) float32``; weights sum to 1."""
    weighted = [weight * cosines_with_others(rows) for rows, weight in zip(teachers, weights, strict=True)]
    return torch.stack(weighted).sum(dim=0)


@torch.no_grad()
def shuffle_within_groups(scores: Tensor, mass: float) -> Tensor:
    """Randomly permute the scores ``(N, C)`` of each row among the ranks of each :func:`rank_groups` group.

    Rows are shuffled independently by torch's generator, differently at each call. Each row keeps its values; only
    their columns change. The result has no gradient.
    """
    ranked, columns = scores.sort(dim=1, descending=True)
    # Sorting a random order stably by group is uniform within groups, however many there are;
    # adding a random fraction to the group's number would run out of bits.
    chance = torch.rand_like(ranked).argsort(dim=1)
    order = chance.gather(1, rank_groups(ranked, mass).gather(1, chance).argsort(dim=1, stable=True))
    return torch.empty_like(ranked).scatter_(1, columns.gather(1, order), ranked)


def rank_groups(ranked: Tensor, mass: float) -> Tensor:
    """Return the group of each rank, ``(N, C) int64`` from 0: groups of equal probability.

    The probability is ``softmax(scores)`` at temperature 1.

    With U_r the cumulative probability up to and including rank r, rank r belongs to group
    ``floor(U_r / mass)``: a rank that reaches a limit belongs to the next group, and a heavy rank can leave
    groups empty. The last group takes the remainder.

    Args:
        ranked: ``(N, C) float``, each row in descending order.
        mass: p, the probability of a group, in (0, 1].
    """
    count = math.ceil(1 / mass - 1e-9)  # 1 / p groups, rounded up; the tolerance gives 49 for p = 1/49
    reached = ranked.softmax(dim=1).cumsum(dim=1)
    return (reached / mass).floor().long().clamp(max=count - 1)


def similarity_distillation_loss(
    students: Tensor, teachers: Tensor, *, temperature: float, teacher_temperature: float
) -> Tensor:
    """Return ``-mean_i sum_j q_ij log p_ij``, q = softmax(teachers / teacher_temperature), p the student's.

    Both are cosines with others, ``(N, C) float32``, the teachers' possibly shuffled and without gradient. The
    loss is 0 if there are no others.
    """
    targets = (teachers.detach() / teacher_temperature).softmax(dim=1)
    return -(targets * (students / temperature).log_softmax(dim=1)).sum(dim=1).mean()


@dataclasses.dataclass(frozen=True, kw_only=True)
class DistillCSEConfig:
    """Settings of DistillCSE; the defaults are the paper's."""

    contrastive_temperature: float = setting(0.05, "temperature of InfoNCE", above=0)
    temperature: float = setting(
        0.02, "temperature of the student's distributions; 0.025 in the authors' code", above=0
    )
    teacher_temperature: float = setting(
        0.01, "temperature of the teachers' distributions; 0.0125 in the authors' code", above=0
    )
    distillation: float = setting(1.0, "lambda, weight of the distillation loss", minimum=0)
    teacher_weights: tuple[float, ...] = setting(
        (),
        "one per teacher, normalised to sum to 1; default: equal. Authors' code: 0.33 for base, 0.67 for large",
    )
    group_mass: float = setting(
        0.1,
        "p, probability of a group of ranks, which are shuffled; 0.05 to 0.15 in the paper",
        above=0,
        maximum=1,
    )

    def __post_init__(self) -> None:
        if self.teacher_weights and (min(self.teacher_weights) < 0 or sum(self.teacher_weights) == 0):
            raise ConfigError("teacher_weights must be non-negative and not all 0")


class DistillCSE(Method):
    """Contrastive learning plus distillation of averaged and shuffled cosines.

    An existing head is removed. Of ``teacher_dimensions``, only the number matters.
    """

    settings_class: ClassVar[type[Any]] = DistillCSEConfig
    paper: ClassVar[str] = "Xu et al., Findings of EMNLP 2023"
    batch_spec: ClassVar[BatchSpec] = BatchSpec(teacher=True, several_teachers=True)
    presets: ClassVar[Presets] = trainer_presets(batch_size=64, epochs=1)

    def __init__(
        self, encoder: SentenceEncoder, config: DistillCSEConfig, *, seed: int, teacher_dimensions: Sequence[int]
    ) -> None:
        super().__init__()
        encoder.set_head(None)
        self.encoder, self.config = encoder, config
        self.head = training_head(encoder, seed=seed)
        weights = config.teacher_weights or (1.0,) * len(teacher_dimensions)
        self.weights = [weight / sum(weights) for weight in weights]

    @classmethod
    def settings_problem(cls, config: DistillCSEConfig, teachers: int) -> str | None:
        """Report weights of another number of teachers."""
        count = len(config.teacher_weights)
        if count not in (0, teachers):
            return f"teacher_weights has {count} weights for {teachers} teachers"
        return None

    def forward(self, batch: Batch) -> StepOutput:
        """Return InfoNCE of two passes, plus distillation into the first."""
        config = self.config
        embeddings, again = (pooled(self.encoder, batch.views[0]) for _ in range(2))
        first = self.head(embeddings)
        contrast = info_nce(first, self.head(again), temperature=config.contrastive_temperature)
        averages = average_cosines([vectors[0] for vectors in batch.teachers], self.weights)
        targets = shuffle_within_groups(averages, config.group_mass)
        distillation = similarity_distillation_loss(
            cosines_with_others(first),
            targets,
            temperature=config.temperature,
            teacher_temperature=config.teacher_temperature,
        )
        parts = {"contrastive": contrast.detach(), "distillation": distillation.detach()}
        return StepOutput(contrast + config.distillation * distillation, parts)
