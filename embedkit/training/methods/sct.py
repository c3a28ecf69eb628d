"""SCT: self-supervised cross-view training, and distillation by the same cross-view distributions.

Small encoders learn better from *distributions* than from single positives: each online view must rank a long
queue of past sentences as the reference ranks the other view. Reference and online network share their weights;
only the online side has a projector, which is discarded after training. In distillation the reference is a frozen
teacher, and a dense layer with tanh, kept at inference, maps the student to the teacher's width.

Source: Limkonchotiwat et al., "An Efficient Self-Supervised Cross-View Training For Sentence
Embedding", TACL 2023, equations 1 to 4; settings of Table 1 and of the authors' code.

Differs from the paper: keys are queue *and* batch, K + B in all, and the oldest B leave after the loss, as in the
authors' code. The paper adds the distillation loss to the self-supervised one; the authors' code runs them one
after the other (recipe ``sct-two-stage``). ``joint`` adds them: distillation on the dense layer's output with
queues of the teacher's width, self-supervision on the projected pooled embedding with queues of the student's
width (the paper does not specify how the two widths meet). Differs from the authors' code: the two directions are
averaged, not summed (``weight``); queues are part of the checkpoint; the unused projector of stage two is not
built.

``views = 1`` encodes each sentence once, in half the time: if the teacher sees a single text and the student has
no dropout, both directions are equal. ``regression`` adds the squared distance from the teacher's vectors, which
determines an embedding's position and not only its neighbours.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from embedkit.config import setting
from embedkit.errors import ConfigError
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.modeling.pretrained import seeded
from embedkit.training.losses import (
    Distribution,
    Keys,
    VectorQueue,
    cross_entropy,
    squared_distance,
    target_distribution,
)
from embedkit.training.method import (
    Batch,
    BatchSpec,
    Distillation,
    DistillationConfig,
    Method,
    Presets,
    StepOutput,
    View,
    pooled,
    unit_embeddings,
)

_PAPER = "Limkonchotiwat et al., TACL 2023"


def cross_view_loss(
    online: Sequence[Tensor],
    keys: Sequence[Keys],
    *,
    temperature: float,
    reference_temperature: float,
    weight: float = 0.5,
) -> Tensor:
    """Match each online view's similarity distribution to the reference distribution of the other view.

    With keys Q1, Q2 and r1, r2 their batch parts, ``t2 = softmax(r2 Q2 / reference_temperature)`` is the target
    of ``c1 = softmax(z1 Q2 / temperature)``, and ``t1`` that of ``c2 = softmax(z2 Q1 / temperature)``; the loss is
    the divergence KL(t | c). The keys get no gradient.

    Args:
        online: z1, z2, each ``(B, D) float, unit rows``; or a single view that serves as both.
        keys: Q1, Q2 of view 1 and view 2; or Q1 only.
        temperature: temperature of the online distributions.
        reference_temperature: temperature of the reference distributions.
        weight: weight of each direction; 0.5 in the paper, 1.0 in the authors' code.
    """
    known: dict[tuple[int, int], Distribution] = {}  # views that share queue and vectors have one target
    losses = []
    for view, own in zip(online, reversed(keys), strict=True):
        identity = own.queue.data_ptr(), own.batch.data_ptr()
        if identity not in known:
            known[identity] = target_distribution(own, reference_temperature)
        target = known[identity]
        # The target's entropy has no gradient.
        losses.append(cross_entropy(view, own, target.probabilities, temperature=temperature) - target.entropy)
    return weight * (losses[0] + losses[-1])


class CrossViewQueues(nn.Module):
    """D1 and D2, which hold the reference vectors of view 1 and view 2; ``shared`` is one queue of view 1 only."""

    def __init__(self, size: int, dimension: int, *, seed: int, shared: bool = False) -> None:
        super().__init__()
        self.queues = nn.ModuleList(
            VectorQueue(size, dimension, seed=2 * seed + number) for number in range(1 if shared else 2)
        )

    @property
    def rows(self) -> tuple[Tensor, Tensor]:
        """D1 and D2, each ``(K, D), unit rows``."""
        return self._each[0].rows, self._each[-1].rows

    @property
    def _each(self) -> list[VectorQueue]:
        return [cast(VectorQueue, queue) for queue in self.queues]

    def keys(self, views: Sequence[Tensor]) -> list[Keys]:
        """Return the keys of each view: its queue, and its reference vectors of the batch, ``(B, D)``."""
        return [Keys(rows, vectors) for rows, vectors in zip(self.rows, views, strict=False)]

    def enqueue(self, views: Sequence[Tensor]) -> None:
        """Add the reference vectors ``(B, D)`` of each view."""
        for queue, vectors in zip(self._each, views, strict=False):
            queue.enqueue(vectors)


class Projector(nn.Module):
    """SCT's projector: blocks of Linear(D -> expansion*D), ReLU, Linear(expansion*D -> D), in series.

    There is no normalisation layer and no activation between blocks (SCT, section 3.3, and the authors' code).
    """

    def __init__(self, dimension: int, *, blocks: int, expansion: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for _ in range(blocks):
            hidden = expansion * dimension
            layers += [nn.Linear(dimension, hidden), nn.ReLU(), nn.Linear(hidden, dimension)]
        self.layers = nn.Sequential(*layers)

    def forward(self, embeddings: Tensor) -> Tensor:
        """Map ``(B, D)`` to ``(B, D)``."""
        projected: Tensor = self.layers(embeddings)
        return projected


@dataclasses.dataclass(frozen=True, kw_only=True)
class SCTConfig:
    """Settings of SCT; the defaults are the paper's for BERT-Tiny."""

    queue_size: int = setting(
        131_072, "K, number of vectors in a queue; Tiny and Mini 131,072, Small 65,536", minimum=0
    )
    temperature: float = setting(0.04, "temperature of the online distributions; Mini and Small 0.03", above=0)
    reference_temperature: float = setting(
        0.03, "temperature of the reference distributions; Mini 0.01, Small 0.02", above=0
    )
    weight: float = setting(0.5, "weight of each direction; 1.0 in the authors' code", above=0)
    projector_blocks: int = setting(3, "number of blocks in the projector", minimum=1)
    projector_expansion: int = setting(10, "ratio of a block's hidden width to the embedding's", minimum=1)


class SelfSupervision(nn.Module):
    """SCT's loss and its state apart from the encoder: projector and queues.

    The encoder is passed in at each call, so that it is registered only once, in the method.
    """

    def __init__(self, encoder: SentenceEncoder, config: SCTConfig, *, seed: int) -> None:
        super().__init__()
        self.config = config
        with seeded(seed):
            self.projector = Projector(
                encoder.pooled_width, blocks=config.projector_blocks, expansion=config.projector_expansion
            )
        self.queues = CrossViewQueues(config.queue_size, encoder.pooled_width, seed=seed)

    def forward(
        self, encoder: SentenceEncoder, batch: Batch, embeddings: Sequence[Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of two views, and the reference vectors for :meth:`after_step` to enqueue.

        ``embeddings`` are pooled embeddings of the views with gradient, each ``(B, H)``. The loss acts on the
        projected pooled embedding, before any head.
        """
        references = [reference_embeddings(encoder, view) for view in batch.views]
        loss = cross_view_loss(
            [functional.normalize(self.projector(rows).float(), dim=1) for rows in embeddings],
            self.queues.keys(references),
            temperature=self.config.temperature,
            reference_temperature=self.config.reference_temperature,
            weight=self.config.weight,
        )
        return loss, {"reference1": references[0], "reference2": references[1]}

    def after_step(self, outputs: Sequence[StepOutput]) -> None:
        """Enqueue the reference vectors."""
        for output in outputs:
            self.queues.enqueue([output.state_update["reference1"], output.state_update["reference2"]])


@torch.no_grad()
def reference_embeddings(encoder: SentenceEncoder, view: View) -> Tensor:
    """Return unit rows ``(B, H) float32``, in train mode and therefore with independent dropout masks."""
    return functional.normalize(pooled(encoder, view).float(), dim=1)


def _preset(*, lr: float, **settings: float) -> Mapping[str, Mapping[str, Any]]:
    return {"optim": {"lr": lr}, "settings": settings}


class SCT(Method):
    """Self-supervised cross-view training of an encoder without a head."""

    settings_class: ClassVar[type[Any]] = SCTConfig
    paper: ClassVar[str] = _PAPER
    batch_spec: ClassVar[BatchSpec] = BatchSpec(views=2)
    # Table 1 of the paper.
    presets: ClassVar[Presets] = {
        "bert-tiny": _preset(lr=5e-4, queue_size=131_072, reference_temperature=0.03, temperature=0.04),
        "bert-mini": _preset(lr=3e-4, queue_size=131_072, reference_temperature=0.01, temperature=0.03),
        "bert-small": _preset(lr=3e-4, queue_size=65_536, reference_temperature=0.02, temperature=0.03),
    }

    def __init__(self, encoder: SentenceEncoder, config: SCTConfig, *, seed: int) -> None:
        super().__init__()
        encoder.set_head(None)
        self.encoder = encoder
        self.self_supervision = SelfSupervision(encoder, config, seed=seed)

    def forward(self, batch: Batch) -> StepOutput:
        """Return ``L_SCT`` of two views."""
        embeddings = pooled(self.encoder, batch.views[0]), pooled(self.encoder, batch.views[1])
        loss, references = self.self_supervision(self.encoder, batch, embeddings)
        return StepOutput(loss, state_update=references)

    def after_step(self, outputs: Sequence[StepOutput]) -> None:
        """Add the batch's reference vectors to the queues."""
        self.self_supervision.after_step(outputs)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SCTDistillationConfig(DistillationConfig):
    """Settings of SCT distillation; the defaults are the authors' for BERT-Tiny."""

    queue_size: int = setting(131_072, "K, number of teacher vectors in a queue; Mini 65,536", minimum=0)
    temperature: float = setting(0.04, "temperature of the student's distributions; Mini and Small 0.05", above=0)
    reference_temperature: float = setting(
        0.03, "temperature of the teacher's distributions; Mini and Small 0.04", above=0
    )
    weight: float = setting(0.5, "weight of each direction; 1.0 in the authors' code", above=0)
    views: Literal[1, 2] = setting(
        2, "1: encode each sentence once and learn its own distribution, for students without dropout"
    )
    regression: float = setting(
        0.0, "weight of the squared distance from the teacher's vectors, added to the loss", minimum=0
    )
    queues: Literal["two", "one"] = setting(
        "two", "one is equivalent and cheaper if the teacher sees a single view"
    )
    joint: bool = setting(False, "add SCT's self-supervised loss, as in the paper")
    self_supervised: SCTConfig = setting(factory=SCTConfig, doc="settings of the loss added by joint")

    def __post_init__(self) -> None:
        if self.views == 1 and (self.joint or self.queues == "two"):
            raise ConfigError('views = 1 requires queues = "one" and joint = false')


class SCTDistillation(Distillation):
    """Cross-view distillation of an encoder that gets a dense head of the teacher's width."""

    settings_class: ClassVar[type[Any]] = SCTDistillationConfig
    paper: ClassVar[str] = _PAPER
    batch_spec: ClassVar[BatchSpec] = BatchSpec(views=2, teacher=True)
    config: SCTDistillationConfig
    # README of the authors' code.
    presets: ClassVar[Presets] = {
        "bert-tiny": _preset(lr=5e-4, queue_size=131_072, reference_temperature=0.03, temperature=0.04),
        "bert-mini": _preset(lr=1e-4, queue_size=65_536, reference_temperature=0.04, temperature=0.05),
        "bert-small": _preset(lr=1e-4, queue_size=131_072, reference_temperature=0.04, temperature=0.05),
    }

    def __init__(
        self, encoder: SentenceEncoder, config: SCTDistillationConfig, *, seed: int, teacher_dimension: int
    ) -> None:
        super().__init__(encoder, config, seed=seed, teacher_dimension=teacher_dimension)
        self.queues = CrossViewQueues(
            config.queue_size, teacher_dimension, seed=seed, shared=config.queues == "one"
        )
        self.self_supervision = (
            SelfSupervision(encoder, config.self_supervised, seed=seed) if config.joint else None
        )

    @classmethod
    def needs(cls, config: SCTDistillationConfig) -> BatchSpec:
        """Return the requirements for the configured number of views."""
        return dataclasses.replace(cls.batch_spec, views=config.views)

    def forward(self, batch: Batch) -> StepOutput:
        """Return ``L_CD``, the weighted squared distance from the teacher's vectors and, if joint, ``L_SCT``."""
        embeddings = [pooled(self.encoder, view) for view in batch.views]
        students = [unit_embeddings(self.encoder, rows) for rows in embeddings]
        loss = cross_view_loss(
            students,
            self.queues.keys(batch.teacher),
            temperature=self.config.temperature,
            reference_temperature=self.config.reference_temperature,
            weight=self.config.weight,
        )
        if self.config.regression:
            pairs = zip(students, batch.teacher, strict=True)
            distance = torch.stack([squared_distance(student, vectors) for student, vectors in pairs]).mean()
            loss = loss + self.config.regression * distance
        vectors = {f"teacher{view}": rows for view, rows in enumerate(batch.teacher)}
        if self.self_supervision is None:
            return StepOutput(loss, state_update=vectors)
        extra, references = self.self_supervision(self.encoder, batch, embeddings)
        metrics = {"distillation": loss.detach(), "self_supervised": extra.detach()}
        return StepOutput(loss + extra, metrics, vectors | references)

    def after_step(self, outputs: Sequence[StepOutput]) -> None:
        """Add the batch's teacher vectors, and if joint its reference vectors, to the queues."""
        for output in outputs:
            self.queues.enqueue([output.state_update[f"teacher{view}"] for view in range(self.config.views)])
        if self.self_supervision is not None:
            self.self_supervision.after_step(outputs)
