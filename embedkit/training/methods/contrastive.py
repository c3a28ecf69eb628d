"""Contrastive training of an encoder on labelled queries, lists that a cross-encoder scored, and graded pairs.

InfoNCE with in-batch negatives is the cross-entropy of a query's positive among all passages of the batch. A
passage of several queries is one column, and a passage that also answers the query, or probably does, is left out
of its row. MarginMSE and KL fit the scores of a list to those of a cross-encoder. CoSENT orders the cosines of
graded pairs.

A few hundred labels would change an encoder everywhere. The anchor prevents it: the squared distance of the
trained texts, and of further ones, from the vectors of the encoder that training starts from.

Sources: van den Oord et al., 2018 (InfoNCE); Henderson et al., 2017 (in-batch negatives); Hofstaetter et al., 2020
(MarginMSE); Hinton et al., 2015 (KL); Su, "CoSENT", 2022. False negatives are left out as in Solatorio,
"GISTEmbed", 2024; the guide is the encoder at the start.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from embedkit.modeling.encoder import SentenceEncoder
from embedkit.training.losses import squared_distance
from embedkit.training.method import Batch, BatchSpec, StepOutput, TrainingModule, embed

ListLoss = Literal["info-nce", "margin-mse", "kl"]


def info_nce_of_lists(cosines: Tensor, labels: Tensor, *, temperature: float) -> Tensor:
    """Return the cross-entropy of the labelled passages' softmax, averaged over queries.

    Args:
        cosines: ``(B, P)``.
        labels: ``(B, P)``: the weight of a positive, 0 for a negative, NaN for a passage that counts as
            neither. At least one of each row is above 0.
        temperature: temperature of the softmax.
    """
    counts = ~labels.isnan()
    shares = labels.nan_to_num(0.0)
    shares = shares / shares.sum(dim=1, keepdim=True)
    logits = (cosines / temperature).masked_fill(~counts, torch.finfo(cosines.dtype).min)
    return -(shares * functional.log_softmax(logits, dim=1)).sum(dim=1).mean()


def kl_of_lists(cosines: Tensor, scores: Tensor, *, temperature: float) -> Tensor:
    """Return the KL divergence of the softmax of cosines from that of a cross-encoder's scores, over queries.

    ``cosines`` and ``scores`` are ``(B, P)``; a score that is NaN leaves its passage out.
    """
    left_out = scores.isnan()
    least = torch.finfo(cosines.dtype).min
    target = functional.softmax(scores.masked_fill(left_out, least), dim=1)
    found = functional.log_softmax((cosines / temperature).masked_fill(left_out, least), dim=1)
    return functional.kl_div(found, target, reduction="batchmean")


def margin_mse_of_lists(cosines: Tensor, scores: Tensor, *, temperature: float) -> Tensor:
    """Return the mean squared difference of margins, between each query's best passage and its others.

    The margins are those of ``cosines / temperature`` and of a cross-encoder's ``scores``, both ``(B, P)``; a
    score that is NaN leaves its passage out.
    """
    best = scores.nan_to_num(-torch.inf).argmax(dim=1, keepdim=True)
    margins = (cosines.gather(1, best) - cosines) / temperature - (scores.gather(1, best) - scores)
    others = ~scores.isnan()
    others.scatter_(1, best, value=False)
    return margins[others].square().mean()


def cosent(cosines: Tensor, scores: Tensor, *, temperature: float) -> Tensor:
    """Return ``log(1 + sum exp((cos_j - cos_i) / temperature))`` over all i, j with score i above score j.

    ``cosines`` and ``scores`` of pairs are ``(B,)``.
    """
    differences = (cosines[None, :] - cosines[:, None]) / temperature
    wrong = differences[scores[:, None] > scores[None, :]]
    return torch.cat([wrong.new_zeros(1), wrong]).logsumexp(dim=0)


_LOSSES = {"info-nce": info_nce_of_lists, "margin-mse": margin_mse_of_lists, "kl": kl_of_lists}


class Contrastive(TrainingModule):
    """An encoder learns to distinguish passages, held near the vectors that it started from.

    A batch has the views queries, passages and, if the anchor holds further texts, those; its ``scores`` are
    ``(B, P)``, labels or a cross-encoder's. With ``scores`` of ``(B,)`` its views are the two sides of graded
    pairs. The teacher is the start: its vectors of each view. A batch without a view of passages takes the
    teacher's vectors for them, so that only the encoder of queries is trained.
    """

    batch_spec = BatchSpec(views=2, teacher=True, scores=True)
    encoder: SentenceEncoder

    def __init__(
        self, encoder: SentenceEncoder, *, loss: ListLoss, temperature: float, anchor: float, frozen: bool = False
    ) -> None:
        super().__init__()
        self.encoder, self.loss, self.temperature = encoder, _LOSSES[loss], temperature
        self.anchor, self.frozen = anchor, frozen

    def forward(self, batch: Batch) -> StepOutput:
        """Return the loss, and its parts as metrics."""
        scores = batch.scores
        assert scores is not None
        rows = [embed(self.encoder, view) for view in batch.views]
        distance = torch.stack([squared_distance(*pair) for pair in zip(rows, self._targets(batch), strict=True)])
        others = batch.teacher[1] if self.frozen else rows[1]
        if scores.ndim == 1:
            loss = cosent((rows[0] * others).sum(dim=1), scores, temperature=self.temperature)
        else:
            loss = self.loss(rows[0] @ others.T, scores, temperature=self.temperature)
        parts = {"contrast": loss.detach(), "anchor": distance.detach().sum()}
        return StepOutput(loss + self.anchor * distance.sum(), parts)

    def _targets(self, batch: Batch) -> tuple[Tensor, ...]:
        """Return the start's vectors of each view that is encoded."""
        queries, _, *others = batch.teacher
        return (queries, *others) if self.frozen else batch.teacher
