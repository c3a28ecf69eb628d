"""PCL: peer-contrastive learning with diverse augmentations.

Every sentence gets many positives of different kinds, so that the encoder cannot mistake the traces of a single
augmentation for meaning: a copy with other dropout masks, and copies with word pieces shuffled, reversed, deleted
and repeated. A peer network of the same architecture is trained alongside the encoder, both by contrast and by
agreeing with each other on similarities. Peer and heads are discarded after training.

Source: Wu et al., "PCL: Peer-Contrastive Learning with Diverse Augmentations for Unsupervised Sentence
Embeddings", EMNLP 2022, equations 1 to 6, and the authors' code. ``preset`` selects the losses of either:
``pcl_code`` or ``pcl_paper``.

Differs from the paper: augmentations act on word pieces, as in the authors' code, not on words; the first term
of equation 5 compares each network's own distribution, as in the text and the code; the target of both
divergences is the peer's distribution, as in the authors' code, where equation 5 names the main network first;
with ``pcl_code`` the divergence is averaged over entries, and the contrast is SimCSE on the dropout copy plus a
binary cross-entropy over all positives. Differs from the authors' code: the peer has a head of its own and the
encoder's pooling, as in the paper, and uses the attention mask, which the code omits; deletion drops the selected
piece, not the first equal one. The ablation with a frozen SimCSE model as the peer is not implemented.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from embedkit.config import setting
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.training.losses import training_head, without_diagonal
from embedkit.training.method import Batch, BatchSpec, Method, Presets, StepOutput, pooled
from embedkit.training.optim import trainer_presets

Reduction = Literal["sentence", "entry"]


class Embedded(NamedTuple):
    """One network's embeddings of a batch.

    Attributes:
        anchors: ``(N, D) float``, N >= 2.
        positives: ``(N, K, D) float``; row i belongs to anchor i.
    """

    anchors: Tensor
    positives: Tensor


def peer_logits(queries: Embedded, keys: Embedded, temperature: float) -> Tensor:
    """Return the cosines over temperature of each anchor with its own positives, then with the other anchors.

    Negatives are the other anchors only: neither the anchor itself nor other anchors' positives. The result is
    ``(N, K + N - 1) float32`` regardless of autocast; the first K columns are the positives.
    """
    with torch.autocast(queries.anchors.device.type, enabled=False):
        anchors, positives, others = (
            functional.normalize(rows.float(), dim=-1) for rows in (queries.anchors, keys.positives, keys.anchors)
        )
        own = torch.einsum("nd,nkd->nk", anchors, positives)
        return torch.cat([own, without_diagonal(anchors @ others.T)], dim=1) / temperature


def cooperation_loss(
    main: Embedded, peer: Embedded, *, temperature: float, reduction: Reduction = "sentence"
) -> Tensor:
    """Penalise disagreement of main and peer network on similarities, within each network and across both.

    With ``P(a, b)`` the softmax of :func:`peer_logits` of a's anchors and b's keys, this is
    ``KL(P(peer, peer) | P(main, main)) + KL(P(peer, main) | P(main, peer))``; both sides get gradients.

    The reduction ``"sentence"`` sums over entries and averages over sentences (the paper), ``"entry"`` averages
    over all N * (K + N - 1) entries (the authors' code).
    """
    within = _divergence((peer, peer), (main, main), temperature, reduction)
    return within + _divergence((peer, main), (main, peer), temperature, reduction)


def every_positive_contrast_loss(embedded: Embedded, *, temperature: float) -> Tensor:
    """InfoNCE of each positive separately against the other anchors, summed over the K positives (the paper)."""
    logits = peer_logits(embedded, embedded, temperature)
    count = embedded.positives.shape[1]
    positives, negatives = logits[:, :count], logits[:, count:].logsumexp(dim=1, keepdim=True)
    return (torch.logaddexp(positives, negatives) - positives).sum(dim=1).mean()


def copy_contrast_loss(embedded: Embedded, *, temperature: float) -> Tensor:
    """SimCSE on the first positive, plus a binary cross-entropy over all positives (the authors' code).

    The negatives of SimCSE are the other sentences' first positives. As in the authors' code, the binary
    cross-entropy takes the *probabilities* of anchors over positives and other anchors as logits, with label 1
    for positives, and averages over all N * (K + N - 1) entries.
    """
    with torch.autocast(embedded.anchors.device.type, enabled=False):
        anchors = functional.normalize(embedded.anchors.float(), dim=1)
        copies = functional.normalize(embedded.positives[:, 0].float(), dim=1)
        own = torch.arange(len(anchors), device=anchors.device)
        simcse = functional.cross_entropy(anchors @ copies.T / temperature, own)
        probabilities = peer_logits(embedded, embedded, temperature).softmax(dim=1)
        labels = torch.zeros_like(probabilities)
        labels[:, : embedded.positives.shape[1]] = 1
        return simcse + functional.binary_cross_entropy_with_logits(probabilities, labels)


def _divergence(
    target: tuple[Embedded, Embedded], learner: tuple[Embedded, Embedded], temperature: float, reduction: Reduction
) -> Tensor:
    """Return KL(target | student) for two pairs of (queries, keys)."""
    aim, learnt = (peer_logits(*pair, temperature).log_softmax(dim=1) for pair in (target, learner))
    entries = aim.exp() * (aim - learnt)
    return entries.sum(dim=1).mean() if reduction == "sentence" else entries.mean()


class _Losses(NamedTuple):
    """The reduction of the cooperation loss, and the contrast of one network."""

    reduction: Reduction
    contrast: Callable[..., Tensor]


_LOSSES = {
    "pcl_code": _Losses("entry", copy_contrast_loss),
    "pcl_paper": _Losses("sentence", every_positive_contrast_loss),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class PCLConfig:
    """Settings of PCL; ``views.positives`` names the positives."""

    preset: Literal["pcl_code", "pcl_paper"] = setting("pcl_code", "losses of the authors' code or of the paper")
    temperature: float = setting(0.05, "temperature of all similarity distributions", above=0)
    peer: Literal["untied", "tied"] = setting(
        "untied",
        "tied: the encoder itself in a second pass with other dropout, the paper's choice for large models",
    )
    cooperation: float = setting(1.0, "weight of the cooperation loss", minimum=0)
    contrast: float = setting(1.0, "beta, weight of each network's contrastive loss", above=0)


class PCL(Method):
    """Peer contrast of an encoder without a head, with one view for the anchor and one for each positive."""

    settings_class: ClassVar[type[Any]] = PCLConfig
    paper: ClassVar[str] = "Wu et al., EMNLP 2022"
    batch_spec: ClassVar[BatchSpec] = BatchSpec(
        views=1, positives=("none", *("shuffle", "inversion", "deletion", "repetition") * 2), rows=2
    )
    # Published for BERT-base (BERT-large: lr 1e-5, a tied peer, 4 positives), not for smaller encoders.
    presets: ClassVar[Presets] = trainer_presets(batch_size=64, epochs=1)

    def __init__(self, encoder: SentenceEncoder, config: PCLConfig, *, seed: int) -> None:
        super().__init__()
        encoder.set_head(None)
        self.encoder, self.config = encoder, config
        tied = config.peer == "tied"
        self.peer = None if tied else copy.deepcopy(encoder)
        self.head = training_head(encoder, seed=seed)
        self.peer_head = None if tied else training_head(encoder, seed=seed + 1)

    def forward(self, batch: Batch) -> StepOutput:
        """Return the cooperation loss of both networks plus the contrastive loss of each."""
        main = _embed(self.encoder, self.head, batch)
        peer = _embed(self.peer or self.encoder, self.peer_head or self.head, batch)
        losses, temperature = _LOSSES[self.config.preset], self.config.temperature
        cooperation = cooperation_loss(main, peer, temperature=temperature, reduction=losses.reduction)
        contrast = losses.contrast(main, temperature=temperature) + losses.contrast(peer, temperature=temperature)
        loss = self.config.cooperation * cooperation + self.config.contrast * contrast
        parts = {"cooperation": cooperation.detach(), "contrast": contrast.detach()}
        return StepOutput(loss, parts)


def _embed(encoder: SentenceEncoder, head: nn.Module, batch: Batch) -> Embedded:
    embeddings = [pooled(encoder, view) for view in batch.views]
    anchors, *positives = map(head, embeddings)
    return Embedded(anchors, torch.stack(positives, dim=1))
