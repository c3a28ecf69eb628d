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
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from embedkit.config import setting
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.training.components.heads import training_head
from embedkit.training.losses.peer_contrast import (
    Embedded,
    Reduction,
    cooperation_loss,
    copy_contrast_loss,
    every_positive_contrast_loss,
)
from embedkit.training.method import Batch, BatchSpec, Method, Presets, StepOutput, pooled
from embedkit.training.optim import TRAINER_OPTIM

__all__ = ["PCL", "PCLConfig"]


class _Losses(NamedTuple):
    """The reduction of the cooperation loss, and the contrast of one network."""

    reduction: Reduction
    contrast: Callable[..., Tensor]


_LOSSES = {
    "pcl_code": _Losses("entry", copy_contrast_loss),
    "pcl_paper": _Losses("sentence", every_positive_contrast_loss),
}
# Published for BERT-base (BERT-large: lr 1e-5, a tied peer, 4 positives), not for smaller encoders.
_PRESET: Mapping[str, Mapping[str, Any]] = {
    "optim": {**TRAINER_OPTIM, "lr": 3e-5, "batch_size": 64, "epochs": 1},
    "student": {"pooling": "cls", "max_length": 32},
    "dev": {"every": 125},
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
    cooperation: float = setting(1.0, "weight of the cooperation loss; 0 is an ablation", minimum=0)
    contrast: float = setting(1.0, "beta, weight of each network's contrastive loss", above=0)


class PCL(Method):
    """Peer contrast of an encoder without a head, with one view for the anchor and one for each positive."""

    settings_class: ClassVar[type[Any]] = PCLConfig
    paper: ClassVar[str] = "Wu et al., EMNLP 2022"
    batch_spec: ClassVar[BatchSpec] = BatchSpec(
        views=1, positives=("none", *("shuffle", "inversion", "deletion", "repetition") * 2), rows=2
    )
    presets: ClassVar[Presets] = dict.fromkeys(("tiny", "mini", "small"), _PRESET)

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
        embeddings = _embed(self.encoder, batch)
        main = _through(self.head, embeddings)
        peer = _through(self.peer_head or self.head, _embed(self.peer or self.encoder, batch))
        losses, temperature = _LOSSES[self.config.preset], self.config.temperature
        cooperation = cooperation_loss(main, peer, temperature=temperature, reduction=losses.reduction)
        contrast = losses.contrast(main, temperature=temperature) + losses.contrast(peer, temperature=temperature)
        loss = self.config.cooperation * cooperation + self.config.contrast * contrast
        parts = {"cooperation": cooperation.detach(), "contrast": contrast.detach()}
        return StepOutput(loss, parts)


def _embed(encoder: SentenceEncoder, batch: Batch) -> list[Tensor]:
    """Return one network's embeddings of the anchors and of each positive, before its head."""
    return [pooled(encoder, view) for view in batch.views]


def _through(head: nn.Module, embeddings: list[Tensor]) -> Embedded:
    anchors, *positives = map(head, embeddings)
    return Embedded(anchors, torch.stack(positives, dim=1))
