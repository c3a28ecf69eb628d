"""Matryoshka: any method, trained so that its embeddings can be cut to their first dimensions.

The method computes its loss once for each width, from the same pass of its networks; queues and averages get what
whole embeddings give. Teachers' vectors stay whole, and are turned to their principal axes, so that they say most
in their first dimensions.

Source: Kusupati et al., "Matryoshka Representation Learning", NeurIPS 2022, equation 1.

Differs from the paper: the loss of whole embeddings counts as much as those of all other widths together, and
they share what stands behind the embedding, a predictor say, as in the paper's MRL-E.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from embedkit.config import setting
from embedkit.errors import ConfigError
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.training.cutting import Replay
from embedkit.training.method import Batch, BatchSpec, Method, StepOutput

__all__ = ["Matryoshka", "MatryoshkaConfig"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class MatryoshkaConfig:
    """Widths to which embeddings may be cut."""

    dimensions: tuple[int, ...] = setting(doc="each below the embedding's width, e.g. [128, 64]")
    weight: float | None = setting(
        None,
        "of the loss at these widths; default: 0 if the method imitates turned vectors, else 1",
        minimum=0,
    )
    rotate: bool = setting(True, "turn teachers' vectors to their principal axes; their cosines stay")

    def __post_init__(self) -> None:
        if not self.dimensions or min(self.dimensions) < 1 or len({*self.dimensions}) < len(self.dimensions):
            raise ConfigError(
                f"dimensions are different widths of 1 or more, e.g. [128, 64], not {list(self.dimensions)}"
            )


class Matryoshka(Method):
    """A method whose loss is also computed from its embeddings cut to their first dimensions.

    Args:
        method: any.
        config: settings.

    Raises:
        ConfigError: a dimension is not below the width of the method's embeddings.
    """

    def __init__(self, method: Method, config: MatryoshkaConfig) -> None:
        super().__init__()
        if max(config.dimensions) >= method.encoder.dimension:
            raise ConfigError(
                f"matryoshka.dimensions are below the embedding's width, here {method.encoder.dimension}, "
                f"not {list(config.dimensions)}"
            )
        self.method, self.config = method, config
        turned = config.rotate and method.imitates
        self.weight = config.weight if config.weight is not None else 0.0 if turned else 1.0

    @property
    def batch_spec(self) -> BatchSpec:  # type: ignore[override]  # the method's, which differs from one to another
        """What the method needs."""
        return self.method.batch_spec

    @property
    def encoder(self) -> SentenceEncoder:  # type: ignore[override]  # registered once, in the method
        """The method's product."""
        return self.method.encoder

    def forward(self, batch: Batch) -> StepOutput:
        """The method's loss, plus its weighted mean at the other widths."""
        if self.weight == 0:
            whole: StepOutput = self.method(batch)
            return whole
        replay = Replay()
        whole = self._at(None, replay, batch)
        nested = torch.stack([self._at(width, replay, batch).loss for width in self.config.dimensions]).mean()
        return dataclasses.replace(
            whole,
            loss=whole.loss + self.weight * nested,
            metrics={**whole.metrics, "matryoshka": nested.detach()},
        )

    def after_step(self, outputs: Sequence[StepOutput]) -> None:
        """What the method does after a step."""
        self.method.after_step(outputs)

    def _at(self, width: int | None, replay: Replay, batch: Batch) -> StepOutput:
        with replay.at(width):
            output: StepOutput = self.method(batch)
            return output
