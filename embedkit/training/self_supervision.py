"""SCT's self-supervised loss and its state, on its own or added to a distillation loss.

Source: Limkonchotiwat et al., "An Efficient Self-Supervised Cross-View Training For Sentence
Embedding", TACL 2023, equations 1 to 4; its Table 7 adds the loss to MSE, CKD and ConGen.

The paper does not specify how the width of a student meets that of its teacher: here the loss is computed on the
projected pooled embedding, before any head, with queues of that width.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from embedkit.config import setting
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.modeling.seeding import seeded
from embedkit.training.components import CrossViewQueues, MovingAverage, QueueKind
from embedkit.training.losses import Keys, Reference, Shuffle, cross_entropy, own_cross_entropy, reference
from embedkit.training.method import Batch, BatchSpec, StepOutput, View, pooled

Objective = Literal["kl", "cross_entropy", "contrastive"]
References = Sequence[Keys]


def cross_view_loss(
    online: Sequence[Tensor],
    keys: Sequence[Keys],
    *,
    others: Sequence[Sequence[Keys]] = (),
    temperature: float,
    reference_temperature: float,
    objective: Objective = "kl",
    identical_view: bool = False,
    weight: float = 0.5,
    shuffle: Shuffle | None = None,
) -> Tensor:
    """Match each online view's similarity distribution to the reference distribution of the other view.

    With keys Q1, Q2 and r1, r2 their batch parts, ``t2 = softmax(r2 Q2 / reference_temperature)`` is the target
    of ``c1 = softmax(z1 Q2 / temperature)``, and ``t1`` that of ``c2 = softmax(z2 Q1 / temperature)``. The keys
    get no gradient.

    Args:
        online: z1, z2, each ``(B, D) float, unit rows``; or a single view that serves as both.
        keys: Q1, Q2 of view 1 and view 2; or Q1 only.
        others: keys of further references, for the same sentences row by row. t1 and t2 are then averages over
            all references; the online side is scored against ``keys`` only.
        temperature: temperature of the online distributions.
        reference_temperature: temperature of the reference distributions.
        objective: ``"kl"`` (SCT), ``"cross_entropy"`` (same gradient) or ``"contrastive"`` (InfoNCE on
            the sentence's own reference vector); the last two are the ablations of Tables 4 and 6.
        identical_view: the ablation without cross-view wiring: z1 is scored against Q1 and learns t1.
        weight: weight of each direction; 0.5 in the paper, 1.0 in the authors' code.
        shuffle: shuffles probabilities in t1 and t2, except those of each sentence's own key.
    """
    references = list(zip(keys, *others, strict=True))[:: 1 if identical_view else -1]
    loss_of = _OBJECTIVES[objective]
    targets = _Targets(reference_temperature, shuffle)
    views = zip(online, references, strict=True)
    losses = [loss_of(view, own, targets, temperature) for view, own in views]
    return weight * (losses[0] + losses[-1])


class _Targets:
    """Reference distributions, computed only once if both views share queues and vectors."""

    def __init__(self, temperature: float, shuffle: Shuffle | None) -> None:
        self._temperature, self._shuffle = temperature, shuffle
        self._known: dict[tuple[tuple[int, int], ...], Reference] = {}

    def __call__(self, references: References) -> Reference:
        identity = tuple((keys.queue.data_ptr(), keys.batch.data_ptr()) for keys in references)
        if identity not in self._known:
            self._known[identity] = reference(references, self._temperature, self._shuffle)
        return self._known[identity]


def _cross_entropy(online: Tensor, references: References, targets: _Targets, temperature: float) -> Tensor:
    return cross_entropy(online, references[0], targets(references).probabilities, temperature=temperature)


def _kl(online: Tensor, references: References, targets: _Targets, temperature: float) -> Tensor:
    """Cross-entropy minus the target's entropy, which has no gradient."""
    return _cross_entropy(online, references, targets, temperature) - targets(references).entropy


def _contrastive(online: Tensor, references: References, _: _Targets, temperature: float) -> Tensor:
    return own_cross_entropy(online, references[0], temperature=temperature)


_OBJECTIVES: dict[Objective, Callable[[Tensor, References, _Targets, float], Tensor]] = {
    "kl": _kl,
    "cross_entropy": _cross_entropy,
    "contrastive": _contrastive,
}


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
    """Settings of SCT; the defaults are the paper's for Tiny."""

    queue_size: int = setting(
        131_072, "K, number of vectors in a queue; Tiny and Mini 131,072, Small 65,536", minimum=0
    )
    temperature: float = setting(0.04, "temperature of the online distributions; Mini and Small 0.03", above=0)
    reference_temperature: float = setting(
        0.03, "temperature of the reference distributions; Mini 0.01, Small 0.02", above=0
    )
    weight: float = setting(0.5, "weight of each direction; 1.0 in the authors' code", above=0)
    projector_blocks: int = setting(3, "number of blocks in the projector; 0 trains without one", minimum=0)
    projector_expansion: int = setting(10, "ratio of a block's hidden width to the embedding's", minimum=1)
    objective: Objective = setting("kl", "cross_entropy and contrastive are ablations")
    wiring: Literal["cross", "identical"] = setting("cross", "identical views are an ablation")
    reference: Literal["online", "momentum"] = setting(
        "online", "momentum: a moving average of the encoder, an ablation"
    )
    momentum: float = setting(0.999, "weight of the old average in an update", minimum=0, maximum=1)
    queues: QueueKind = setting("two", "the others are ablations")


@dataclasses.dataclass(frozen=True, kw_only=True)
class JointConfig:
    """Settings of a distillation that can add the self-supervised loss."""

    joint: bool = setting(False, "add SCT's self-supervised loss, as in its paper")
    self_supervised: SCTConfig = setting(factory=SCTConfig, doc="settings of the loss added by joint")

    def add_views(self, spec: BatchSpec) -> BatchSpec:
        """Return the spec with the views that the added loss needs."""
        return dataclasses.replace(spec, views=2) if self.joint else spec


class SelfSupervision(nn.Module):
    """SCT's loss and its state apart from the encoder: projector, queues, averaged copy.

    The encoder is passed in at each call, so that it is registered only once, in the method.
    """

    def __init__(self, encoder: SentenceEncoder, config: SCTConfig, *, seed: int) -> None:
        super().__init__()
        self.config = config
        with seeded(seed):
            self.projector = Projector(
                encoder.pooled_width, blocks=config.projector_blocks, expansion=config.projector_expansion
            )
        self.queues = CrossViewQueues(config.queue_size, encoder.pooled_width, kind=config.queues, seed=seed)
        self.average = MovingAverage(encoder, momentum=config.momentum) if config.reference == "momentum" else None

    @classmethod
    def beside(cls, encoder: SentenceEncoder, config: JointConfig, *, seed: int) -> SelfSupervision | None:
        """Return the addition to a distillation's loss, or None unless it is joint."""
        return cls(encoder, config.self_supervised, seed=seed) if config.joint else None

    def forward(
        self, encoder: SentenceEncoder, batch: Batch, embeddings: Sequence[Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of two views, and the reference vectors for :meth:`after_step` to enqueue.

        ``embeddings`` are pooled embeddings of the views with gradient, each ``(B, H)``.
        """
        references = self._refer(encoder, batch.views[0]), self._refer(encoder, batch.views[1])
        queue1, queue2 = self.queues.rows
        loss = cross_view_loss(
            (self._project(embeddings[0]), self._project(embeddings[1])),
            (Keys(queue1, references[0]), Keys(queue2, references[1])),
            temperature=self.config.temperature,
            reference_temperature=self.config.reference_temperature,
            objective=self.config.objective,
            identical_view=self.config.wiring == "identical",
            weight=self.config.weight,
        )
        return loss, {"reference1": references[0], "reference2": references[1]}

    def add_to(
        self, output: StepOutput, encoder: SentenceEncoder, batch: Batch, embeddings: Sequence[Tensor]
    ) -> StepOutput:
        """Return a distillation's output with this loss added; the arguments are those of :meth:`forward`."""
        extra, references = self(encoder, batch, embeddings)
        return dataclasses.replace(
            output,
            loss=output.loss + extra,
            metrics={"distillation": output.loss.detach(), "self_supervised": extra.detach()},
            carry={**output.carry, **references},
        )

    def after_step(self, encoder: SentenceEncoder, outputs: Sequence[StepOutput]) -> None:
        """Enqueue the reference vectors; update the moving average, if any."""
        for output in outputs:
            self.queues.enqueue(output.carry["reference1"], output.carry["reference2"])
        if self.average is not None:
            self.average.update(encoder)

    def _project(self, embeddings: Tensor) -> Tensor:
        return functional.normalize(self.projector(embeddings).float(), dim=1)

    @torch.no_grad()
    def _refer(self, encoder: SentenceEncoder, view: View) -> Tensor:
        """Return reference embeddings, in train mode and therefore with independent dropout masks."""
        network = encoder if self.average is None else self.average.network
        return functional.normalize(pooled(network, view).float(), dim=1)
