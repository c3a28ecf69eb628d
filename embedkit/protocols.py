"""The shapes that rooms of the house agree on. Structural: nothing needs to inherit from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

__all__ = ["FloatArray", "PairScorer", "TextEncoder", "VectorIndex"]

FloatArray = npt.NDArray[np.float32]


@runtime_checkable
class TextEncoder(Protocol):
    """Anything that turns texts into unit rows: a bundle, a torch model, a teacher."""

    @property
    def name(self) -> str:
        """What people call the model."""

    @property
    def fingerprint(self) -> str:
        """Hex SHA-256 of everything that decides the embeddings: weights, tokenizer, pooling, length."""

    @property
    def dimension(self) -> int:
        """D, the width of an embedding."""

    @property
    def max_length(self) -> int:
        """The longest text in tokens, special tokens included; longer texts are truncated."""

    def encode(self, texts: Sequence[str], /) -> FloatArray:
        """Embed texts: ``(N, D) float32, unit rows``, in the order given."""


@runtime_checkable
class PairScorer(Protocol):
    """Anything that scores pairs of texts: the bundle of a cross-encoder, or its torch model."""

    @property
    def name(self) -> str:
        """What people call the model."""

    @property
    def fingerprint(self) -> str:
        """Hex SHA-256 of everything that decides the scores: weights, tokenizer, length."""

    @property
    def max_length(self) -> int:
        """The longest pair in tokens, special tokens included; longer pairs are truncated."""

    def predict(self, pairs: Sequence[tuple[str, str]], /) -> FloatArray:
        """Score pairs: ``(N,) float32``, in the order given; higher is more alike, or a better answer."""


@runtime_checkable
class VectorIndex(Protocol):
    """Nearest neighbours by inner product over rows that keep the position they were added at."""

    def __len__(self) -> int:
        """The number of rows held."""

    def search(self, queries: FloatArray, k: int, /) -> tuple[FloatArray, npt.NDArray[np.int64]]:
        """The best ``k`` rows for each query.

        Args:
            queries: ``(Q, D) float32, unit rows``.
            k: results wanted, at least 1.

        Returns:
            scores ``(Q, min(k, N)) float32`` in descending order and rows ``(Q, min(k, N)) int64``.
        """
