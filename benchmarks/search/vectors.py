"""Unit rows to search among: clustered random ones, or embeddings of texts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from embedkit import Encoder
from embedkit.records import read_records

FloatArray = npt.NDArray[np.float32]


def clustered(count: int, queries: int, *, dimension: int = 128) -> tuple[FloatArray, FloatArray]:
    """Return rows and queries around centres of different sizes, like those of topics.

    The spread around a centre is mostly in 32 dimensions, similar to embeddings of texts.
    """
    chance = np.random.default_rng(0)
    topics = max(16, count // 1_000)
    centres = chance.standard_normal((topics, dimension), dtype=np.float32)
    spread = (chance.standard_normal((32, dimension)) / 32**0.5).astype(np.float32)
    sizes = chance.pareto(1.5, topics) + 1
    return (
        _around(centres, spread, chance, sizes / sizes.sum(), count),
        _around(centres, spread, chance, sizes / sizes.sum(), queries),
    )


def _around(
    centres: FloatArray,
    spread: FloatArray,
    chance: np.random.Generator,
    sizes: npt.NDArray[np.float64],
    count: int,
) -> FloatArray:
    rows = np.empty((count, centres.shape[1]), dtype=np.float32)
    for start in range(0, count, 65_536):
        block = rows[start : start + 65_536]
        block[:] = centres[chance.choice(len(centres), size=len(block), p=sizes)]
        block += 0.9 * chance.standard_normal((len(block), len(spread)), dtype=np.float32) @ spread
        block += 0.2 * chance.standard_normal(block.shape, dtype=np.float32)
        block /= np.linalg.norm(block, axis=1, keepdims=True)
    return rows


def embedded(path: Path, model: str, count: int, queries: int) -> tuple[FloatArray, FloatArray]:
    """Return embeddings of the distinct texts of a file; queries are evenly spaced texts of the same file."""
    texts = list(dict.fromkeys(record["text"] for _, record in read_records(path) if record["text"].strip()))
    texts = texts[: count + queries]
    chosen = set(range(0, len(texts), max(2, len(texts) // queries)))
    encoder = Encoder.load(model)
    asked = encoder.encode([texts[place] for place in sorted(chosen)][:queries])
    return encoder.encode([text for place, text in enumerate(texts) if place not in chosen]), asked
