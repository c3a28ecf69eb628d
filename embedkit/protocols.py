"""Protocols shared by the subpackages. They are structural: implementations need not inherit from them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]


class Model(Protocol):
    """The common attributes of encoders and cross-encoders."""

    @property
    def name(self) -> str:
        """Name of the model."""

    @property
    def fingerprint(self) -> str:
        """Hex SHA-256 of everything that determines the results: weights, tokenizer, pooling, length."""

    @property
    def max_length(self) -> int:
        """Maximum length of a text or pair in tokens, including special tokens; longer ones are truncated."""


@runtime_checkable
class TextEncoder(Model, Protocol):
    """Anything that encodes texts as unit vectors: a bundle, a torch model, a teacher."""

    @property
    def dimension(self) -> int:
        """D, the number of dimensions of an embedding."""

    def encode(self, texts: Sequence[str], /) -> FloatArray:
        """Embed texts: ``(N, D) float32, unit rows``, in the order given."""


@runtime_checkable
class PromptingEncoder(Protocol):
    """An encoder that distinguishes queries from documents, with sentence-transformers' method names."""

    def encode_query(self, texts: Sequence[str], /, *, show_progress_bar: bool | None = None) -> FloatArray:
        """Embed queries: ``(Q, D) float32, unit rows``."""

    def encode_document(self, texts: Sequence[str], /, *, show_progress_bar: bool | None = None) -> FloatArray:
        """Embed documents: ``(N, D) float32, unit rows``."""


@runtime_checkable
class StreamingEncoder(Protocol):
    """An encoder that embeds a stream of texts, and reports in one line how many of all were truncated."""

    def encode_batches(
        self, texts: Iterable[str], /, *, show_progress_bar: bool | None = None
    ) -> Iterator[FloatArray]:
        """Embed texts: arrays ``(n, D) float32, unit rows``, whose concatenation has a row for each text."""


@runtime_checkable
class PairScorer(Model, Protocol):
    """Anything that scores pairs of texts: the bundle of a cross-encoder, or its torch model."""

    def predict(self, pairs: Sequence[tuple[str, str]], /) -> FloatArray:
        """Score pairs: ``(N,) float32``, in the order given; higher means more similar or more relevant."""


@runtime_checkable
class VectorIndex(Protocol):
    """Nearest-neighbour search by inner product; rows are identified by their position."""

    def __len__(self) -> int:
        """The number of rows."""

    def search(self, queries: FloatArray, k: int, /) -> tuple[FloatArray, npt.NDArray[np.int64]]:
        """Return the best ``k`` rows for each query.

        Args:
            queries: ``(Q, D) float32, unit rows``.
            k: number of results, at least 1.

        Returns:
            scores ``(Q, min(k, N)) float32`` in descending order and rows ``(Q, min(k, N)) int64``.
        """
