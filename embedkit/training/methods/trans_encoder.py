"""Trans-Encoder's two steps: a cross-encoder learns from cosines, an encoder from a cross-encoder's scores.

An encoder labels raw pairs by their cosines. A cross-encoder trained on these labels becomes better than its
labels, because it sees both texts at once; an encoder trained on its scores becomes better than the first encoder.
The recipe ``trans-encoder`` repeats both steps and provides the labels.

Source: Liu et al., "Trans-Encoder: Unsupervised sentence-pair modelling through self- and mutual-distillations",
ICLR 2022, equations 2 and 3 (the leading minus of the squared error there is a misprint); the authors' code.

Differs from the paper: each pair is learned in both orders, and the cross-encoder's head is that of transformers'
classifiers, both as in the authors' code.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor
from torch.nn import functional

from embedkit.errors import TrainingError
from embedkit.modeling.cross_encoder import PairEncoder
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.training.method import Batch, BatchSpec, Learner, Method, StepOutput, pooled, scored, unit_embeddings

__all__ = ["CrossToEncoder", "EncoderToCross"]


class EncoderToCross(Learner):
    """Trains a cross-encoder on labels in [0, 1]; a batch is one view of pairs."""

    batch_spec: ClassVar[BatchSpec] = BatchSpec(scores=True)
    encoder: PairEncoder

    def __init__(self, encoder: PairEncoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, batch: Batch) -> StepOutput:
        """Return the cross-entropy of the scores with the labels, averaged over the batch, in float32."""
        (view,) = batch.views
        logits = scored(self.encoder, view).float()
        return StepOutput(functional.binary_cross_entropy_with_logits(logits, _scores(batch).float()))


class CrossToEncoder(Method):
    """Trains an encoder on scores in (0, 1); the two views are the two texts of each pair."""

    batch_spec: ClassVar[BatchSpec] = BatchSpec(views=2, scores=True)

    def __init__(self, encoder: SentenceEncoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, batch: Batch) -> StepOutput:
        """Return the squared error of the pairs' cosines, averaged over the batch, in float32."""
        first, second = (unit_embeddings(self.encoder, pooled(self.encoder, view)) for view in batch.views)
        cosines = functional.cosine_similarity(first, second)
        return StepOutput(functional.mse_loss(cosines, _scores(batch).float()))


def _scores(batch: Batch) -> Tensor:
    if batch.scores is None:
        raise TrainingError("this method needs labels, but the batch has none")
    return batch.scores
