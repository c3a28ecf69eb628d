"""DCLR: contrast of two dropout passes without false negatives, and with noise as additional negatives.

The teacher of the run, an encoder trained beforehand and frozen, identifies sentences of a batch that are too
similar to be each other's negatives; these are excluded. Gaussian noise, moved in the direction of increasing
loss, is added to the negatives, so that embeddings spread over the sphere. The head is discarded after training.

Source: Zhou, Zhang, Zhao and Wen, "Debiased Contrastive Learning of Unsupervised Sentence Representations",
ACL 2022; its settings for BERT-base.

Differs from the paper: it has no models smaller than BERT-base, so all sizes use its values; model selection
uses one development set, not two. Differs from the authors' code, which multiplies logits by the weights, so that
a false negative keeps a logit of 0, and takes an element-wise cross-entropy of the softmax: this module implements
the paper's equation. The teacher's vectors come from its cache, without dropout.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from embedkit.config import setting
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.training.components import training_head
from embedkit.training.method import Batch, BatchSpec, Method, Presets, StepOutput, pooled
from embedkit.training.optim import trainer_presets


def true_negatives(complementary: Tensor, *, threshold: float) -> Tensor:
    """Return which sentences may be each other's negatives: ``(B, B) bool``, False on the diagonal.

    These are pairs whose cosine is below the threshold in ``(B, T) float32, unit rows`` of another encoder.
    """
    cosines = complementary.float() @ complementary.float().T
    return (cosines < threshold).fill_diagonal_(fill_value=False)


def debiased_info_nce(
    anchors: Tensor, positives: Tensor, noise: Tensor, negatives: Tensor, *, temperature: float
) -> Tensor:
    """InfoNCE of every anchor over its positive, the true negatives and the noise, in float32.

    Anchors and positives are ``(B, D)`` of any length, row by row; ``noise``, ``(K, D)``, are negatives of every
    anchor; ``negatives[i, j]``, ``(B, B) bool``, tells whether positive j is a negative of anchor i.
    """
    with torch.autocast(anchors.device.type, enabled=False):
        first, second, third = (functional.normalize(rows.float(), dim=1) for rows in (anchors, positives, noise))
        rows = torch.arange(len(first), device=first.device)
        left_out = (~negatives).index_put((rows, rows), torch.tensor(False, device=rows.device))
        logits = torch.cat([(first @ second.T).masked_fill(left_out, -torch.inf), first @ third.T], dim=1)
        return functional.cross_entropy(logits / temperature, rows)


def ascend_noise(
    noise: Tensor,
    anchors: Tensor,
    positives: Tensor,
    negatives: Tensor,
    *,
    temperature: float,
    steps: int,
    size: float,
) -> Tensor:
    """Move noise in the direction that increases :func:`debiased_info_nce`, whose arguments these are.

    Every row moves by ``steps`` steps of length ``size``. The result, ``(K, D) float32``, and the arguments get no
    gradient.
    """
    first, second = anchors.detach(), positives.detach()
    for _ in range(steps if len(noise) else 0):
        with torch.enable_grad():
            noise = noise.detach().requires_grad_()
            loss = debiased_info_nce(first, second, noise, negatives, temperature=temperature)
        (gradient,) = torch.autograd.grad(loss, noise)
        noise = noise + size * functional.normalize(gradient, dim=1, eps=1e-30)
    return noise.detach()


@dataclasses.dataclass(frozen=True, kw_only=True)
class DCLRConfig:
    """Settings of DCLR; the defaults are the paper's for BERT-base."""

    temperature: float = setting(0.05, "temperature of the softmax over batch and noise", above=0)
    threshold: float = setting(
        0.9, "phi; sentences whose cosine under the teacher is at least this are not negatives", minimum=-1
    )
    noise_times: int = setting(1, "number of noise vectors per sentence; 0 is an ablation", minimum=0)
    noise_steps: int = setting(4, "number of gradient ascent steps on the noise", minimum=0)
    noise_step_size: float = setting(1e-3, "length of a step; the noise has unit variance", above=0)


class DCLR(Method):
    """Debiased contrast of two dropout passes, with a teacher that finds false negatives.

    An existing head is removed.
    """

    settings_class: ClassVar[type[Any]] = DCLRConfig
    paper: ClassVar[str] = "Zhou et al., ACL 2022"
    batch_spec: ClassVar[BatchSpec] = BatchSpec(teacher=True)
    presets: ClassVar[Presets] = trainer_presets(batch_size=128, epochs=3)

    def __init__(self, encoder: SentenceEncoder, config: DCLRConfig, *, seed: int) -> None:
        super().__init__()
        encoder.set_head(None)
        self.encoder, self.config = encoder, config
        self.head = training_head(encoder, seed=seed)

    def forward(self, batch: Batch) -> StepOutput:
        """Return InfoNCE of two passes over true negatives and noise; log the share of excluded negatives."""
        config = self.config
        embeddings, again = (pooled(self.encoder, batch.views[0]) for _ in range(2))
        first, second = self.head(embeddings), self.head(again)
        negatives = true_negatives(batch.teacher[0], threshold=config.threshold)
        count, width = config.noise_times * len(first), first.shape[1]
        noise = ascend_noise(
            torch.randn(count, width, device=first.device),
            first,
            second,
            negatives,
            temperature=config.temperature,
            steps=config.noise_steps,
            size=config.noise_step_size,
        )
        loss = debiased_info_nce(first, second, noise, negatives, temperature=config.temperature)
        others = max(1, len(first) * (len(first) - 1))
        parts = {"false_negatives": 1 - negatives.sum() / others}
        return StepOutput(loss, parts)
