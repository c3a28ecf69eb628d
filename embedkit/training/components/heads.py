"""Heads on top of an encoder, for training only or for good."""

from __future__ import annotations

from torch import Tensor, nn

from embedkit.modeling.encoder import Activation, DenseHead, SentenceEncoder
from embedkit.modeling.seeding import seeded

__all__ = ["Predictor", "Projector", "fit_head", "training_head"]

_BERT_SCALE = 0.02  # standard deviation of BERT's initialisation


class Predictor(nn.Module):
    """BSL's predictor: MLPs in series, each Linear(D -> kD), ReLU, Linear(kD -> kD), ReLU, Linear(kD -> D).

    Batch normalisation precedes the first activation or both. It always uses the batch's own statistics and
    keeps none: a predictor is never evaluated, and a forward pass must not change any state. The defaults are
    those of the paper (BSL, section 3); the authors' code uses ``blocks=3, expansion=10, normalised=1``.

    Args:
        dimension: D.
        blocks: number of MLPs.
        expansion: k, the ratio of the hidden width to D.
        normalised: number of batch-normalised hidden layers in each MLP, of two.
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


class Projector(nn.Module):
    """SCT's projector: blocks of Linear(D -> expansion*D), ReLU, Linear(expansion*D -> D), in series.

    There is no normalisation layer and no activation between blocks (SCT, section 3.3, and the authors' code).

    Args:
        dimension: D.
        blocks: number of blocks; 0 is the identity.
        expansion: ratio of the hidden width to D.
    """

    def __init__(self, dimension: int, *, blocks: int = 3, expansion: int = 10) -> None:
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


def training_head(encoder: SentenceEncoder, *, seed: int) -> DenseHead:
    """Return SimCSE's head, Linear(H -> H) and tanh with BERT's initialisation, as in the authors' code.

    It is not part of the encoder and therefore not exported.
    """
    with seeded(seed):
        head = DenseHead(encoder.pooled_width, encoder.pooled_width)
        nn.init.normal_(head.linear.weight, std=_BERT_SCALE)
    nn.init.zeros_(head.linear.bias)
    return head


def fit_head(encoder: SentenceEncoder, dimension: int, *, seed: int, activation: Activation = "tanh") -> bool:
    """Give an encoder a head of the teacher's width; return whether the head is new.

    With tanh, an encoder that has a head of that width, or that width without a head, is left unchanged. A linear
    head is also added to an encoder without a head whose width already fits.
    """
    fits = encoder.dimension == dimension
    if fits and (encoder.head is not None or activation == "tanh"):
        return False
    with seeded(seed):
        encoder.set_head(dimension, activation)
    return True
