"""SCT's self-supervised loss and its state, on its own or added to a distillation loss.

Source: Limkonchotiwat et al., "An Efficient Self-Supervised Cross-View Training For Sentence
Embedding", TACL 2023, equations 1 to 4; its Table 7 adds the loss to MSE, CKD and ConGen.

The paper does not specify how the width of a student meets that of its teacher: here the loss is computed on the
projected pooled embedding, before any head, with queues of that width.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from embedkit.config import setting
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.modeling.seeding import seeded
from embedkit.training.components.cross_view_queues import CrossViewQueues, QueueKind
from embedkit.training.components.heads import Projector
from embedkit.training.components.moving_average import MovingAverage
from embedkit.training.losses.cross_view import Objective, cross_view_loss
from embedkit.training.losses.keys import Keys
from embedkit.training.method import Batch, BatchSpec, StepOutput, View, pooled

__all__ = ["JointConfig", "SCTConfig", "SelfSupervision"]


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
        """Return the loss, and the reference vectors for :meth:`after_step` to enqueue.

        Args:
            encoder: the online network.
            batch: a batch of two views.
            embeddings: pooled embeddings of the views with gradient, each ``(B, H)``.
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
