"""The interface between the loop and a training method, and the base of methods that imitate a teacher.

Such a student gets the teacher's width through a dense layer with tanh that is kept at inference.
"""

from __future__ import annotations

import dataclasses
import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from embedkit.config import setting
from embedkit.modeling.cross_encoder import PairEncoder
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.modeling.layout import Activation
from embedkit.modeling.pretrained import evaluating, seeded
from embedkit.modeling.teacher_layers import fit_affine
from embedkit.training import processes
from embedkit.training.losses import VectorQueue

_MOST_TOKENS = 16_384  # of a view whose activations are kept for the gradient

Presets = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""Size -> table of a run's configuration ("optim", "settings", "student") -> the paper's values for that size."""


@dataclasses.dataclass(frozen=True)
class BatchSpec:
    """Requirements of a method for every batch; checked before step 0.

    Attributes:
        views: number of views of a sentence, 1 or 2, made according to ``[views]``.
        teacher: whether teacher vectors are required, one for each view.
        several_teachers: whether the method supports more than one teacher.
        positives: names of augmentations; each makes one more view, after the others. A non-empty
            ``views.positives`` in the configuration replaces them.
        rows: minimum batch size.
        scores: whether each row needs a label.
    """

    views: int = 1
    teacher: bool = False
    several_teachers: bool = False
    positives: tuple[str, ...] = ()
    rows: int = 1
    scores: bool = False

    def teacher_problem(self, count: int) -> str | None:
        """Return the error in this number of teachers, or None."""
        if self.teacher and count == 0:
            return "this method needs a teacher: name one with --teacher or [teacher]"
        if count > 1 and not self.several_teachers:
            return f"this method supports one teacher, not {count}: make one of them with [join], or name one"
        return None


@dataclasses.dataclass(frozen=True)
class View:
    """One view of B sentences, or a process's share of it, in chunks of similar length to save padding.

    Attributes:
        chunks: ``(input_ids, attention_mask)``, each ``(b, l) int64``; the b sum to B.
        order: ``(B,) int64``; row i of the batch is row ``order[i]`` of the concatenated chunks.
        token_types: for pairs of texts, ``(b, l) int64`` for each chunk, else empty.
    """

    chunks: tuple[tuple[Tensor, Tensor], ...]
    order: Tensor
    token_types: tuple[Tensor, ...] = ()

    def share(self, place: int, count: int) -> View:
        """Return share ``place`` of ``count`` equal, contiguous shares of rows; B is a multiple of ``count``."""
        own = self.order.chunk(count)[place]
        sizes = [len(ids) for ids, _ in self.chunks]
        starts = [sum(sizes[:number]) for number in range(len(sizes))]
        rows = [own[(own >= s) & (own < s + n)].sort().values - s for s, n in zip(starts, sizes, strict=True)]
        return View(
            tuple((ids[r], mask[r]) for (ids, mask), r in zip(self.chunks, rows, strict=True) if len(r)),
            own.argsort().argsort(),
            tuple(types[r] for types, r in zip(self.token_types, rows, strict=False) if len(r)),
        )

    def to(self, device: torch.device) -> View:
        """Return the view on another device."""
        chunks = tuple((ids.to(device), mask.to(device)) for ids, mask in self.chunks)
        return View(chunks, self.order.to(device), tuple(types.to(device) for types in self.token_types))


@dataclasses.dataclass(frozen=True)
class Batch:
    """A batch.

    Attributes:
        views: the views required by the method's spec, then one for each positive.
        teachers: for each teacher, one ``(B, T) float32, unit rows`` per view; T may differ between teachers.
        scores: ``(B,) float32``, a label for each row, or None.
    """

    views: tuple[View, ...]
    teachers: tuple[tuple[Tensor, ...], ...] = ()
    scores: Tensor | None = None

    @property
    def teacher(self) -> tuple[Tensor, ...]:
        """The first teacher's vectors: one ``(B, T) float32, unit rows`` per view, or empty."""
        return self.teachers[0] if self.teachers else ()

    def share(self, place: int, count: int) -> Batch:
        """Return one process's batch: its rows of the views, all rows of teachers and scores."""
        if count == 1:
            return self
        return dataclasses.replace(self, views=tuple(view.share(place, count) for view in self.views))

    def to(self, device: torch.device) -> Batch:
        """Return the batch on another device."""
        return Batch(
            tuple(view.to(device) for view in self.views),
            tuple(tuple(vectors.to(device) for vectors in teacher) for teacher in self.teachers),
            None if self.scores is None else self.scores.to(device),
        )


@dataclasses.dataclass(frozen=True)
class StepOutput:
    """The result of a forward pass.

    Attributes:
        loss: scalar to minimise.
        metrics: detached scalars for the log.
        state_update: detached tensors for :meth:`TrainingModule.after_step`, for example the new rows of a queue.
    """

    loss: Tensor
    metrics: Mapping[str, Tensor] = dataclasses.field(default_factory=dict)
    state_update: Mapping[str, Tensor] = dataclasses.field(default_factory=dict)


class TrainingModule(nn.Module, ABC):
    """A trainable module: networks, queues and pointers as parameters and buffers, and a loss.

    Attributes:
        batch_spec: requirements of the module for a batch.
        encoder: the model that is evaluated, checkpointed and exported.
    """

    batch_spec: ClassVar[BatchSpec]
    encoder: SentenceEncoder | PairEncoder

    @abstractmethod
    def forward(self, batch: Batch) -> StepOutput:
        """Return the loss of a batch. Must not change any state."""

    def after_step(self, outputs: Sequence[StepOutput]) -> None:
        """Update queues and averages.

        Called only if the optimizer made a step, with the outputs of every accumulated batch.
        """


class Method(TrainingModule):
    """A training method: a module that trains a sentence encoder.

    Attributes:
        settings_class: dataclass of the settings, the table ``[settings]`` of a run.
        paper: the publication.
        presets: the paper's settings for each size, overridden by the user's.
        paired: like ``presets``, but keyed by a setting's value, e.g. ``"predictor=code"``.
        matches_teacher_space: whether embeddings approximate the teacher's vectors dimension by dimension.
    """

    settings_class: ClassVar[type[Any]]
    paper: ClassVar[str]
    presets: ClassVar[Presets] = {}
    paired: ClassVar[Presets] = {}
    matches_teacher_space: ClassVar[bool] = False
    encoder: SentenceEncoder

    @classmethod
    def needs(cls, config: Any) -> BatchSpec:  # noqa: ARG003 - used by methods whose settings change the spec
        """Return what the method needs in a batch with these settings."""
        return cls.batch_spec

    @classmethod
    def settings_problem(cls, config: Any, teachers: int) -> str | None:  # noqa: ARG003 - as for ``needs``
        """Return the error in these settings for this number of teachers, or None."""
        return None

    @classmethod
    def teacher_arguments(cls, teacher_dimensions: Sequence[int]) -> dict[str, Any]:
        """Return the constructor's arguments about teachers: the widths of all, or of the one it imitates."""
        if cls.batch_spec.several_teachers:
            return {"teacher_dimensions": teacher_dimensions}
        return {"teacher_dimension": teacher_dimensions[0]} if cls.matches_teacher_space else {}


class PairTrainingModule(TrainingModule):
    """Trains a cross-encoder on the labels of pairs; a batch is one view of pairs.

    ``loss`` takes logits and labels, each ``(Q, group) float32``, of ``group`` consecutive pairs of each query.
    """

    batch_spec: ClassVar[BatchSpec] = BatchSpec(scores=True)
    encoder: PairEncoder

    def __init__(self, encoder: PairEncoder, loss: Callable[[Tensor, Tensor], Tensor], *, group: int = 1) -> None:
        super().__init__()
        self.encoder, self.loss, self.group = encoder, loss, group

    def forward(self, batch: Batch) -> StepOutput:
        """Return the loss of the logits, in float32."""
        (view,) = batch.views
        assert batch.scores is not None
        logits, labels = (rows.float().view(-1, self.group) for rows in (_rows(self.encoder, view), batch.scores))
        return StepOutput(self.loss(logits, labels))


def pooled(encoder: SentenceEncoder, view: View) -> Tensor:
    """Return pooled embeddings of a view before any head: ``(B, H)``, in batch order."""
    return _rows(encoder.pooled, view)


def embed(encoder: SentenceEncoder, view: View) -> Tensor:
    """Return the embeddings of a view: ``(B, D) float32, unit rows``, in batch order."""
    return unit_embeddings(encoder, pooled(encoder, view))


def unit_embeddings(encoder: SentenceEncoder, states: Tensor) -> Tensor:
    """Apply the head, if there is one, to pooled embeddings and normalise: ``(B, H) -> (B, D) float32``."""
    rows = states if encoder.head is None else encoder.head(states)
    return functional.normalize(rows.float(), dim=1)


def _rows(network: Callable[..., Tensor], view: View) -> Tensor:
    """Apply a network to the whole batch, gathering the rows encoded by other processes."""
    inputs: list[tuple[Tensor, ...]] = list(view.chunks)
    if view.token_types:
        inputs = [(*chunk, types) for chunk, types in zip(view.chunks, view.token_types, strict=True)]
    tokens = sum(ids.numel() for ids, _ in view.chunks)
    encode = network if tokens <= _MOST_TOKENS or not torch.is_grad_enabled() else _recomputed(network)
    with processes.own_randomness(view.order.device):
        rows = [encode(*tensors) for tensors in inputs]
    return processes.gather(torch.cat(rows)[view.order])


def _recomputed(network: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return the network without its activations, which are computed again for the gradient, chunk by chunk.

    Values and gradients stay the same, and memory becomes that of one chunk, so a batch may be of any size.
    Smaller parts, or keeping the activations of some chunks, take more, not less (benchmarks/adaptation/NOTES.md).

    Source: Gao et al., "Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup", 2021.
    """
    return functools.partial(checkpoint, network, use_reentrant=False)


_RIDGE = 1e-2


@dataclasses.dataclass(frozen=True, kw_only=True)
class DistillationConfig:
    """Settings shared by all distillation methods."""

    head: Activation = setting(
        "tanh",
        "layer that maps the student to the teacher's width: dense with tanh, if the widths differ, as in the "
        "papers; or linear, fitted by ridge regression before the first step",
    )


class Distillation(Method):
    """A method that imitates a teacher.

    A tanh head is added unless the encoder has the teacher's width, a linear head unless a head has that width.
    """

    matches_teacher_space: ClassVar[bool] = True
    config: DistillationConfig

    def __init__(
        self, encoder: SentenceEncoder, config: DistillationConfig, *, seed: int, teacher_dimension: int
    ) -> None:
        super().__init__()
        fits = encoder.dimension == teacher_dimension
        self.head_is_new = not fits or (encoder.head is None and config.head != "tanh")
        if self.head_is_new:
            with seeded(seed):
                encoder.set_head(teacher_dimension, config.head)
        self.encoder, self.config = encoder, config

    @property
    def awaits_start(self) -> bool:
        """Whether there is a new linear head for :meth:`start_head` to fit."""
        head = self.encoder.head
        return self.head_is_new and head is not None and head.activation == "linear"

    def renew_head(self, *, seed: int) -> None:
        """Replace a head that the encoder brought by a new one of the same kind, for another teacher's space."""
        if self.encoder.head is not None and not self.head_is_new:
            with seeded(seed):
                self.encoder.set_head(self.encoder.dimension, self.encoder.head.activation)
            self.head_is_new = True

    @torch.no_grad()
    def start_head(self, views: Iterable[View], vectors: Tensor) -> None:
        """Fit a new linear head to the teacher's vectors ``(N, T) float32`` of some texts by ridge regression."""
        head = self.encoder.head
        if head is None or not self.awaits_start:
            return
        with evaluating(self):  # every process encodes all texts, so nothing is gathered
            rows = [
                torch.cat([self.encoder.pooled(*chunk) for chunk in view.chunks])[view.order] for view in views
            ]
        weight, bias = fit_affine(torch.cat(rows), vectors, ridge=_RIDGE)
        head.linear.weight.copy_(weight)
        head.linear.bias.copy_(bias)


class QueueDistillation(Distillation):
    """A distillation against a queue of the teacher's past vectors, which is ``config.queue_size`` long."""

    config: Any

    def __init__(self, encoder: SentenceEncoder, config: Any, *, seed: int, teacher_dimension: int) -> None:
        super().__init__(encoder, config, seed=seed, teacher_dimension=teacher_dimension)
        self.queue = VectorQueue(config.queue_size, teacher_dimension, seed=seed)

    def after_step(self, outputs: Sequence[StepOutput]) -> None:
        """Add the batch's teacher vectors to the queue."""
        for output in outputs:
            self.queue.enqueue(output.state_update["teacher"])


def congen_preset(*, lr: float, **settings: float) -> Mapping[str, Mapping[str, Any]]:
    """Return ConGen's training setup for one size, which its authors also use for the baselines."""
    return {
        "optim": {"lr": lr, "batch_size": 128, "epochs": 20},
        "dev": {"every": 512, "patience": 7},
        "settings": settings,
    }
