"""Unit rows to search among: clustered random ones, or embeddings of texts; and an encoder that returns them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from embedkit import Encoder
from embedkit.records import read_records

FloatArray = npt.NDArray[np.float32]


class Given:
    """An encoder with precomputed embeddings; texts are their row numbers."""

    name, fingerprint, max_length = "given", "0" * 64, 512

    def __init__(self, rows: FloatArray) -> None:
        self.rows, self.dimension = rows, rows.shape[1]

    def encode(self, texts: Sequence[str], /) -> FloatArray:
        """Embed texts: ``(N, D) float32, unit rows``."""
        return np.asarray(self.rows[[int(text) for text in texts]])


class Topics:
    """Random unit rows around centres of different sizes, like those of topics.

    The spread around a centre is mostly in 32 dimensions, similar to embeddings of texts.

    Args:
        count: number of rows that will be drawn; determines the number of centres.
        dimension: D, the width of a row.
    """

    def __init__(self, count: int, *, dimension: int = 128) -> None:
        self._chance = np.random.default_rng(0)
        topics = max(16, count // 1_000)
        self._centres = self._chance.standard_normal((topics, dimension), dtype=np.float32)
        self._spread = (self._chance.standard_normal((32, dimension)) / 32**0.5).astype(np.float32)
        sizes = self._chance.pareto(1.5, topics) + 1
        self._shares = sizes / sizes.sum()

    def draw(self, rows: FloatArray) -> None:
        """Fill ``rows``, ``(N, D) float32``, block by block; they may be mapped from a file."""
        for start in range(0, len(rows), 65_536):
            block = rows[start : start + 65_536]
            block[:] = self._centres[self._chance.choice(len(self._centres), size=len(block), p=self._shares)]
            near = self._chance.standard_normal((len(block), len(self._spread)), dtype=np.float32)
            block += 0.9 * near @ self._spread
            block += 0.2 * self._chance.standard_normal(block.shape, dtype=np.float32)
            block /= np.linalg.norm(block, axis=1, keepdims=True)


def clustered(count: int, queries: int, *, dimension: int = 128) -> tuple[FloatArray, FloatArray]:
    """Return rows of :class:`Topics`, and queries of the same topics."""
    topics = Topics(count, dimension=dimension)
    rows, asked = (np.empty((size, dimension), dtype=np.float32) for size in (count, queries))
    topics.draw(rows)
    topics.draw(asked)
    return rows, asked


def embedded(path: Path, model: str, count: int, queries: int) -> tuple[FloatArray, FloatArray]:
    """Return embeddings of the distinct texts of a file; queries are evenly spaced texts of the same file."""
    texts = list(dict.fromkeys(record["text"] for _, record in read_records(path) if record["text"].strip()))
    texts = texts[: count + queries]
    chosen = set(range(0, len(texts), max(2, len(texts) // queries)))
    encoder = Encoder.load(model)
    asked = encoder.encode([texts[place] for place in sorted(chosen)][:queries])
    return encoder.encode([text for place, text in enumerate(texts) if place not in chosen]), asked
