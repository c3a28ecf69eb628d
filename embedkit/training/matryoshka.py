"""Matryoshka: any method, trained so that its embeddings can be cut to their first dimensions.

Source: Kusupati et al., "Matryoshka Representation Learning", NeurIPS 2022; what differs from it is said in
:mod:`~embedkit.training.losses.nested`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from embedkit.config import setting
from embedkit.errors import ConfigError, TrainingError
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.training.losses.nested import nested_similarity_loss
from embedkit.training.method import Batch, BatchSpec, Method, StepOutput

__all__ = ["Matryoshka", "MatryoshkaConfig"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class MatryoshkaConfig:
    """Widths to which embeddings may be cut."""

    dimensions: tuple[int, ...] = setting(doc="each below the embedding's width, e.g. [128, 64]")
    weight: float = setting(0.0, "of the nested loss beside the method's own; 0: the rotation alone", minimum=0)
    temperature: float = setting(0.2, "of its distributions", above=0)
    rotate: bool = setting(True, "turn teachers' vectors to their principal axes; their cosines stay")

    def __post_init__(self) -> None:
        if not self.dimensions or min(self.dimensions) < 1 or len({*self.dimensions}) < len(self.dimensions):
            raise ConfigError(
                f"dimensions are different widths of 1 or more, e.g. [128, 64], not {list(self.dimensions)}"
            )


class Matryoshka(Method):
    """A method with the nested loss beside its own, on the embeddings that it computes anyway.

    Args:
        method: any that says its embeddings.
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

    @property
    def batch_spec(self) -> BatchSpec:  # type: ignore[override]  # the method's, which differs from one to another
        """What the method needs."""
        return self.method.batch_spec

    @property
    def encoder(self) -> SentenceEncoder:  # type: ignore[override]  # registered once, in the method
        """The method's product."""
        return self.method.encoder

    def forward(self, batch: Batch) -> StepOutput:
        """The method's loss plus the weighted nested one."""
        output: StepOutput = self.method(batch)
        if output.embeddings is None:
            raise TrainingError("this method does not say its embeddings, which [matryoshka] needs")
        config = self.config
        if config.weight == 0:
            return output
        nested = nested_similarity_loss(output.embeddings, config.dimensions, temperature=config.temperature)
        return dataclasses.replace(
            output,
            loss=output.loss + config.weight * nested,
            metrics={**output.metrics, "matryoshka": nested.detach()},
        )

    def after_step(self, outputs: Sequence[StepOutput]) -> None:
        """What the method does after a step."""
        self.method.after_step(outputs)
