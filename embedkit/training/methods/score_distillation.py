"""Distillation of a cross-encoder's scores.

A batch is one view of pairs in groups: consecutive pairs of one query. Mean squared error fits every logit.
MarginMSE fits the differences between the logits of a query's passages, so that student and teacher may differ in
what they give a whole query.

Source: Hofstaetter et al., "Improving Efficient Neural Ranking Models with Cross-Architecture Knowledge
Distillation", 2020, equation 4, here over all pairs of a group, not only one relevant and one irrelevant passage.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from torch import Tensor
from torch.nn import functional

from embedkit.errors import TrainingError
from embedkit.modeling.cross_encoder import PairEncoder
from embedkit.training.method import Batch, BatchSpec, Learner, StepOutput, scored

PairLoss = Literal["mse", "margin-mse", "both"]


class ScoreDistillation(Learner):
    """Trains a cross-encoder on the logits of another one.

    Args:
        encoder: the student.
        loss: what to minimise; ``"both"`` is the sum of mean squared error and MarginMSE.
        group: number of consecutive pairs of a query.
    """

    batch_spec: ClassVar[BatchSpec] = BatchSpec(scores=True)
    encoder: PairEncoder

    def __init__(self, encoder: PairEncoder, *, loss: PairLoss, group: int) -> None:
        super().__init__()
        self.encoder, self.loss, self.group = encoder, loss, group

    def forward(self, batch: Batch) -> StepOutput:
        """Return the loss of the student's logits, in float32."""
        if batch.scores is None:
            raise TrainingError("this method needs scores, but the batch has none")
        (view,) = batch.views
        logits = scored(self.encoder, view).float().view(-1, self.group)
        targets = batch.scores.float().view(-1, self.group)
        return StepOutput(pair_loss(self.loss, logits, targets))


def pair_loss(name: PairLoss, logits: Tensor, targets: Tensor) -> Tensor:
    """Return a loss, averaged over pairs.

    Args:
        name: the loss.
        logits: ``(Q, G)``, the student's logits of each query's passages.
        targets: ``(Q, G)``, the teacher's logits.
    """
    squares = functional.mse_loss(logits, targets)
    if name == "mse":
        return squares
    margins = functional.mse_loss(_margins(logits), _margins(targets))
    return margins if name == "margin-mse" else squares + margins


def _margins(scores: Tensor) -> Tensor:
    """Differences between all scores of a query, ``(Q, G, G)``."""
    return scores[:, :, None] - scores[:, None, :]
