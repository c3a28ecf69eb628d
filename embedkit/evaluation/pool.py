"""The embeddings of all texts of an evaluation, each distinct text encoded once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from embedkit.progress import Progress
from embedkit.protocols import FloatArray, TextEncoder

__all__ = ["EmbeddingPool"]

_TEXTS_PER_CALL = 2048
"""Enough for an encoder to sort by length inside one call, few enough for the progress to move."""


class EmbeddingPool:
    """Embeddings by text.

    Args:
        encoder: what encodes the texts.
        texts: all texts that will be asked for; repeated ones are encoded once.
        label: what the progress on stderr is called.

    ``pool[texts]`` is ``(len(texts), D) float32``, one row per text in the order asked.
    """

    def __init__(self, encoder: TextEncoder, texts: Iterable[str], *, label: str) -> None:
        self._rows = {text: row for row, text in enumerate(dict.fromkeys(texts))}
        distinct = list(self._rows)
        self._embeddings = np.empty((len(distinct), encoder.dimension), dtype=np.float32)
        with Progress(label, len(distinct), unit="texts") as progress:
            for start in range(0, len(distinct), _TEXTS_PER_CALL):
                chunk = distinct[start : start + _TEXTS_PER_CALL]
                self._embeddings[start : start + len(chunk)] = encoder.encode(chunk)
                progress.advance(len(chunk))

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, texts: Sequence[str]) -> FloatArray:
        return self._embeddings[[self._rows[text] for text in texts]]
