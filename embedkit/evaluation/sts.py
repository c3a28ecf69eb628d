"""Semantic textual similarity: Spearman's correlation of cosines with the scores that people gave."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from embedkit.errors import DataError
from embedkit.evaluation.pool import EmbeddingPool
from embedkit.protocols import FloatArray, TextEncoder

__all__ = ["ScoredPairs", "cosines", "evaluate_pairs", "spearman"]

Float64Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class ScoredPairs:
    """Pairs of texts and how alike people found them.

    Attributes:
        name: what the set is called in messages and reports.
        first: N texts.
        second: N texts; ``second[i]`` was compared with ``first[i]``.
        scores: ``(N,) float64``, finite, any scale: only their order counts.

    Raises:
        DataError: the set is empty, the three differ in length, or a score is not finite.
    """

    name: str
    first: list[str]
    second: list[str]
    scores: Float64Array

    def __post_init__(self) -> None:
        if not len(self.first) == len(self.second) == len(self.scores):
            raise DataError(
                f"{self.name}: expected as many first texts as second texts and scores, "
                f"got {len(self.first)}, {len(self.second)} and {len(self.scores)}"
            )
        if not self.first:
            raise DataError(f"{self.name}: no scored pair in it")
        if not np.isfinite(self.scores).all():
            raise DataError(f"{self.name}: a score is not a finite number")

    def __len__(self) -> int:
        return len(self.first)


def spearman(a: npt.ArrayLike, b: npt.ArrayLike) -> float:
    """Spearman's rank correlation; tied values share the average of their ranks.

    Args:
        a: ``(N,)`` numbers.
        b: ``(N,)`` numbers.

    Returns:
        The correlation in [-1, 1]; NaN where it is undefined: all values of one side are equal, there
        are fewer than two pairs, or a value is NaN.
    """
    left, right = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if len(left) < 2 or np.isnan(left).any() or np.isnan(right).any():
        return float("nan")
    x, y = _centred_ranks(left), _centred_ranks(right)
    spread = np.sqrt((x @ x) * (y @ y))
    return float(np.clip((x @ y) / spread, -1.0, 1.0)) if spread > 0 else float("nan")


def cosines(first: FloatArray, second: FloatArray) -> Float64Array:
    """Cosine of each row of ``first`` with the same row of ``second``.

    Args:
        first: ``(N, D) float32``.
        second: ``(N, D) float32``.

    Returns:
        ``(N,) float64``. A cosine that is not a number (a zero or broken embedding) counts as 0, as in
        the evaluation code of SimCSE and SCT.
    """
    x, y = first.astype(np.float64), second.astype(np.float64)
    norms = np.linalg.norm(x, axis=1) * np.linalg.norm(y, axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        quotients: Float64Array = np.einsum("nd,nd->n", x, y) / norms
    return np.where(np.isfinite(quotients), quotients, 0.0)


def evaluate_pairs(encoder: TextEncoder, pairs: ScoredPairs) -> float:
    """Spearman's correlation of the encoder's cosines with the scores of ``pairs``.

    Each distinct text is encoded once. Texts are taken as they are: neither lower-cased nor tokenized.

    Returns:
        The correlation in [-1, 1] (tables print it times 100); NaN where it is undefined, see
        :func:`spearman`.
    """
    pool = EmbeddingPool(encoder, [*pairs.first, *pairs.second], label=pairs.name)
    return spearman(cosines(pool[pairs.first], pool[pairs.second]), pairs.scores)


def _centred_ranks(values: Float64Array) -> Float64Array:
    """Ranks from 1 with ties averaged, less their mean."""
    _, group, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks = last - (counts - 1) / 2
    return np.asarray(ranks[group] - (len(values) + 1) / 2, dtype=np.float64)
