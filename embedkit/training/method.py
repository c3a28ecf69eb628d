"""The interface between the loop and a training method."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from embedkit.modeling.cross_encoder import PairEncoder
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.training import processes

__all__ = [
    "Batch",
    "BatchSpec",
    "Learner",
    "Method",
    "Presets",
    "StepOutput",
    "View",
    "pooled",
    "scored",
    "unit_embeddings",
]


Presets = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""Size -> table of a run's configuration ("optim", "settings", "student") -> the paper's values for that size."""


@dataclasses.dataclass(frozen=True)
class BatchSpec:
    """What a method needs in every batch; checked before step 0.

    Attributes:
        views: views of a sentence, 1 or 2, made as the user's ``[views]`` says.
        teacher: whether it cannot do without teacher vectors, one for each view.
        several_teachers: whether it can learn from more than one teacher at once.
        positives: augmentations, by name, of more views of the sentence, one view each, which follow the
            others; a list in the user's ``views.positives`` takes its place.
        rows: the smallest batch that it can learn from.
        scores: whether it learns from a label for each row.
    """

    views: int = 1
    teacher: bool = False
    several_teachers: bool = False
    positives: tuple[str, ...] = ()
    rows: int = 1
    scores: bool = False

    def teacher_problem(self, count: int) -> str | None:
        """What is wrong with so many teachers; None if nothing is."""
        if self.teacher and count == 0:
            return "this method needs a teacher: name one with --teacher or [teacher]"
        if count > 1 and not self.several_teachers:
            return f"this method learns from one teacher, not from {count}: name it in [teacher]"
        return None


@dataclasses.dataclass(frozen=True)
class View:
    """One view of B sentences, or a process's share of them, as token chunks of similar length: little is padding.

    Attributes:
        chunks: ``(input_ids, attention_mask)``, each ``(b, l) int64``, the b summing to B.
        order: ``(B,) int64``; row i of the batch is row ``order[i]`` of the chunks laid end to end.
        token_types: for pairs of texts ``(b, l) int64`` for each chunk, else empty.
    """

    chunks: tuple[tuple[Tensor, Tensor], ...]
    order: Tensor
    token_types: tuple[Tensor, ...] = ()

    def share(self, place: int, count: int) -> View:
        """One of ``count`` equal runs of rows, for a process that encodes them; B is a multiple of ``count``."""
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
        """The same view on another device."""
        chunks = tuple((ids.to(device), mask.to(device)) for ids, mask in self.chunks)
        return View(chunks, self.order.to(device), tuple(types.to(device) for types in self.token_types))


@dataclasses.dataclass(frozen=True)
class Batch:
    """One batch.

    Attributes:
        views: as many as the method's spec asks for, then one for each positive.
        teachers: for each teacher one ``(B, T) float32, unit rows`` for each view; T may differ.
        scores: ``(B,) float32``, a label for each row, or None.
    """

    views: tuple[View, ...]
    teachers: tuple[tuple[Tensor, ...], ...] = ()
    scores: Tensor | None = None

    @property
    def teacher(self) -> tuple[Tensor, ...]:
        """The only teacher's vectors: one ``(B, T) float32, unit rows`` for each view, or empty."""
        return self.teachers[0] if self.teachers else ()

    def share(self, place: int, count: int) -> Batch:
        """The batch of one of ``count`` processes: its rows of the views; teachers and scores of all rows."""
        if count == 1:
            return self
        return dataclasses.replace(self, views=tuple(view.share(place, count) for view in self.views))

    def to(self, device: torch.device) -> Batch:
        """The same batch on another device."""
        return Batch(
            tuple(view.to(device) for view in self.views),
            tuple(tuple(vectors.to(device) for vectors in teacher) for teacher in self.teachers),
            None if self.scores is None else self.scores.to(device),
        )


@dataclasses.dataclass(frozen=True)
class StepOutput:
    """What a forward pass gives.

    Attributes:
        loss: scalar, to be minimised.
        metrics: detached scalars for the log.
        carry: detached tensors that :meth:`Learner.after_step` needs, a queue's new rows say.
    """

    loss: Tensor
    metrics: Mapping[str, Tensor] = dataclasses.field(default_factory=dict)
    carry: Mapping[str, Tensor] = dataclasses.field(default_factory=dict)


class Learner(nn.Module, ABC):
    """What the loop trains: networks, queues and pointers as parameters and buffers, and a loss.

    Attributes:
        batch_spec: what it needs in a batch.
        encoder: the product; evaluated, checkpointed, exported.
    """

    batch_spec: ClassVar[BatchSpec]
    encoder: SentenceEncoder | PairEncoder

    @abstractmethod
    def forward(self, batch: Batch) -> StepOutput:
        """The loss of a batch. Must not change any state."""

    def after_step(self, outputs: Sequence[StepOutput]) -> None:
        """Update queues and averages.

        Called only when the optimizer really stepped, with the outputs of every accumulated batch.
        """


class Method(Learner):
    """A training method: a learner whose product is an encoder.

    Attributes:
        settings_class: the dataclass of its settings, the table ``[settings]`` of a run.
        paper: where it was published.
        presets: the paper's settings for each size, laid under what the user says.
        paired: tables like those, but for a setting's value: ``"predictor=code"`` -> what goes with it.
        imitates: whether an embedding becomes its text's teacher vector, dimension by dimension.
    """

    settings_class: ClassVar[type[Any]]
    paper: ClassVar[str]
    presets: ClassVar[Presets] = {}
    paired: ClassVar[Presets] = {}
    imitates: ClassVar[bool] = False
    encoder: SentenceEncoder

    @classmethod
    def needs(cls, config: Any) -> BatchSpec:  # noqa: ARG003 - for those whose settings add to it
        """What it needs in a batch with these settings: ``batch_spec`` and what they add."""
        return cls.batch_spec

    @classmethod
    def told(cls, teacher_dimensions: Sequence[int]) -> dict[str, Any]:
        """What its constructor is told of teachers: the widths of several, or of the one that it imitates."""
        if cls.batch_spec.several_teachers:
            return {"teacher_dimensions": teacher_dimensions}
        return {"teacher_dimension": teacher_dimensions[0]} if cls.imitates else {}


def pooled(encoder: SentenceEncoder, view: View) -> Tensor:
    """Pooled embeddings of a view before any head: ``(B, H)``, in batch order."""
    return _rows(encoder.pooled, view)


def unit_embeddings(encoder: SentenceEncoder, states: Tensor) -> Tensor:
    """Pooled embeddings through the head, if there is one, and at unit length: ``(B, H) -> (B, D) float32``."""
    rows = states if encoder.head is None else encoder.head(states)
    return functional.normalize(rows.float(), dim=1)


def scored(encoder: PairEncoder, view: View) -> Tensor:
    """Logits of a view of pairs: ``(B,)``, in batch order."""
    return _rows(encoder, view)


def _rows(network: Callable[..., Tensor], view: View) -> Tensor:
    """What a network makes of the whole batch, wherever its rows are encoded."""
    inputs: list[tuple[Tensor, ...]] = list(view.chunks)
    if view.token_types:
        inputs = [(*chunk, types) for chunk, types in zip(view.chunks, view.token_types, strict=True)]
    with processes.own_randomness(view.order.device):
        rows = [network(*tensors) for tensors in inputs]
    return processes.gather(torch.cat(rows)[view.order])
