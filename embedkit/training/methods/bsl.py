"""BSL: bootstrapped sentence representations, without negatives.

An online encoder with a predictor on top learns to predict a target encoder's embedding of another view of the
same sentence. The target is a slow moving average of the online encoder: always slightly better, it keeps
embeddings apart without negatives. The predictor is discarded after training.

Source: Zhang et al., "Bootstrapped Unsupervised Sentence Representation Learning", ACL 2021, equations
1 to 4; details that the text leaves open follow the authors' code.

Differs from the paper: equation 3 is printed with the sign of an ascent; it is a descent. Differs from the
authors' code: predictor and scale of the loss are the paper's (``predictor``, ``scale``); model selection uses the
cosine only, not the best of four similarities; the development set is scored every ``dev.every`` steps, not
ten times an epoch (``dev.most`` = 10 does that for one epoch); batch normalisation keeps no running statistics,
because they would never be used.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from embedkit.config import setting
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.modeling.initialisation import SIZES
from embedkit.modeling.pretrained import seeded
from embedkit.training.method import Batch, BatchSpec, Method, Presets, StepOutput, View, pooled

Scale = Literal["paper", "code"]


def bootstrap_loss(
    predictions: tuple[Tensor, Tensor], targets: tuple[Tensor, Tensor], *, scale: Scale = "paper"
) -> Tensor:
    """Pull each view's prediction towards the target embedding of the other view, by cosine.

    Args:
        predictions: z1, z2 of the online network, each ``(B, D) float``.
        targets: h1, h2 of the target network, each ``(B, D) float``; they get no gradient.
        scale: ``"paper"`` is ``- cos(z1, h2) / 2 - cos(z2, h1) / 2``; ``"code"`` is
            ``(2 - 2 cos(z1, h2)) + (2 - 2 cos(z2, h1))``: the same optimum, four times the gradient.

    Returns:
        a scalar, averaged over the batch, in [-1, 1] or [0, 8].
    """
    mean = (_cosine(predictions[0], targets[1]) + _cosine(predictions[1], targets[0])) / 2
    return -mean if scale == "paper" else 4 - 4 * mean


def _cosine(predictions: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cosine of rows, in float32 regardless of autocast."""
    with torch.autocast(predictions.device.type, enabled=False):
        return functional.cosine_similarity(predictions.float(), targets.detach().float(), dim=1).mean()


class MovingAverage(nn.Module):
    """An exponential moving average of a network's parameters, which get no gradients.

    It starts equal to the network. ``momentum`` is the weight of the old average in an update: 1 never moves, 0
    copies.
    """

    network: SentenceEncoder

    def __init__(self, network: SentenceEncoder, *, momentum: float) -> None:
        super().__init__()
        self.momentum = momentum
        self.network = copy.deepcopy(network).requires_grad_(False)

    @torch.no_grad()
    def update(self, source: SentenceEncoder) -> None:
        """Move towards ``source``: average = momentum * average + (1 - momentum) * source."""
        for average, current in zip(self.network.parameters(), source.parameters(), strict=True):
            average.lerp_(current, 1 - self.momentum)


class Predictor(nn.Module):
    """BSL's predictor: MLPs in series, each Linear(D -> kD), ReLU, Linear(kD -> kD), ReLU, Linear(kD -> D).

    The defaults are those of the paper (BSL, section 3): one block, k = 8, and batch normalisation (``normalised``
    layers) before both activations; the authors' code uses ``blocks=3, expansion=10, normalised=1``. Batch
    normalisation always uses the batch's own statistics and keeps none: a predictor is never evaluated, and a
    forward pass must not change any state.
    """

    def __init__(self, dimension: int, *, blocks: int = 1, expansion: int = 8, normalised: int = 2) -> None:
        super().__init__()
        width = expansion * dimension
        layers: list[nn.Module] = []
        for _ in range(blocks):
            for number, size in enumerate((dimension, width)):
                layers.append(nn.Linear(size, width))
                if number < normalised:
                    layers.append(nn.BatchNorm1d(width, track_running_stats=False))
                layers.append(nn.ReLU())
            layers.append(nn.Linear(width, dimension))
        self.layers = nn.Sequential(*layers)

    def forward(self, embeddings: Tensor) -> Tensor:
        """Map ``(B, D)`` to ``(B, D)``; B must be at least 2."""
        predicted: Tensor = self.layers(embeddings)
        return predicted


_PREDICTORS = {
    "paper": {"blocks": 1, "expansion": 8, "normalised": 2},
    "code": {"blocks": 3, "expansion": 10, "normalised": 1},
}
# Published for BERT-base only; the paper has no settings for smaller encoders.
_PRESET: Mapping[str, Mapping[str, Any]] = {
    "optim": {
        "lr": 5e-4,
        "batch_size": 64,
        "epochs": 1,
        "weight_decay": 0.0,
        "epsilon": 1e-8,
        "correct_bias": True,
    },
    "student": {"max_length": 64},
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class BSLConfig:
    """Settings of BSL; the defaults are the paper's for unsupervised training."""

    predictor: Literal["paper", "code"] = setting(
        "paper", "one MLP, with optim.lr 5e-4; code: three in series, with 1e-4, as in the authors' code"
    )
    momentum: float = setting(
        0.999, "weight of the old target in an update; 0.9999 for post-training", minimum=0, maximum=1
    )
    scale: Scale = setting("paper", "scale of the loss; the authors' code uses four times the gradient")


class BSL(Method):
    """Bootstrapping of an encoder without a head from two views."""

    settings_class: ClassVar[type[Any]] = BSLConfig
    paper: ClassVar[str] = "Zhang et al., ACL 2021"
    batch_spec: ClassVar[BatchSpec] = BatchSpec(views=2, rows=2)
    presets: ClassVar[Presets] = dict.fromkeys(SIZES, _PRESET)
    paired: ClassVar[Presets] = {"predictor=code": {"optim": {"lr": 1e-4}}}

    def __init__(self, encoder: SentenceEncoder, config: BSLConfig, *, seed: int) -> None:
        super().__init__()
        encoder.set_head(None)
        self.encoder, self.config = encoder, config
        self.target = MovingAverage(encoder, momentum=config.momentum)
        with seeded(seed):
            self.predictor = Predictor(encoder.pooled_width, **_PREDICTORS[config.predictor])

    def forward(self, batch: Batch) -> StepOutput:
        """Return the loss of predicting the target's embedding of each view from the other view."""
        first, second = batch.views
        embeddings = pooled(self.encoder, first), pooled(self.encoder, second)
        # A view at a time, so that batch normalisation sees each view alone.
        predictions = self.predictor(embeddings[0]), self.predictor(embeddings[1])
        loss = bootstrap_loss(
            predictions, (self._target_embeddings(first), self._target_embeddings(second)), scale=self.config.scale
        )
        return StepOutput(loss)

    def after_step(self, outputs: Sequence[StepOutput]) -> None:  # noqa: ARG002 - the weights are sufficient
        """Update the target after an optimizer step."""
        self.target.update(self.encoder)

    @torch.no_grad()
    def _target_embeddings(self, view: View) -> Tensor:
        """Return target embeddings, in train mode and therefore with independent dropout."""
        return pooled(self.target.network, view)
