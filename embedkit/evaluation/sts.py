"""Semantic textual similarity: Spearman's correlation of cosines with human scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from embedkit.errors import DataError
from embedkit.evaluation.pool import EmbeddingPool, Pool
from embedkit.protocols import PairScorer, TextEncoder

__all__ = ["Correlations", "ScoredPairs", "correlate", "evaluate_cross_encoder", "evaluate_pairs", "spearman"]

Float64Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class ScoredPairs:
    """Pairs of texts with human similarity scores.

    Attributes:
        name: name of the set in messages and reports.
        first: N texts.
        second: N texts; ``second[i]`` was compared with ``first[i]``.
        scores: ``(N,) float64``, finite, on any scale: only their order matters.

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
                f"{self.name}: expected equal numbers of first texts, second texts and scores, "
                f"got {len(self.first)}, {len(self.second)} and {len(self.scores)}"
            )
        if not self.first:
            raise DataError(f"{self.name}: expected scored pairs, found none")
        if not np.isfinite(self.scores).all():
            raise DataError(f"{self.name}: a score is not a finite number")

    def __len__(self) -> int:
        return len(self.first)


@dataclass(frozen=True)
class Correlations:
    """Spearman's correlations of one model on a set of one or more subsets, NaN where undefined.

    Attributes:
        all: over the pairs of all subsets together: the headline of papers since SimCSE.
        mean: plain average over the subsets, the figure of the original SentEval.
        wmean: average over the subsets weighted by their sizes.
        parts: correlations by subset name.
        undefined: why ``all`` is NaN, empty if it is not.
    """

    all: float
    mean: float
    wmean: float
    parts: dict[str, float]
    undefined: str


def spearman(a: npt.ArrayLike, b: npt.ArrayLike) -> float:
    """Return Spearman's rank correlation; ties get their average rank.

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


def correlate(pool: Pool, subsets: Sequence[ScoredPairs]) -> Correlations:
    """Correlate the cosines of pairs with their scores, over all subsets together and over each."""
    predicted = [pool.similarities(pairs.first, pairs.second) for pairs in subsets]
    parts = [spearman(found, pairs.scores) for found, pairs in zip(predicted, subsets, strict=True)]
    similarities, scores = np.concatenate(predicted), np.concatenate([pairs.scores for pairs in subsets])
    return Correlations(
        all=spearman(similarities, scores),
        mean=float(np.mean(parts)),
        wmean=float(np.average(parts, weights=[len(pairs) for pairs in subsets])),
        parts={pairs.name: part for pairs, part in zip(subsets, parts, strict=True)},
        undefined=_why_undefined(similarities, scores),
    )


def evaluate_pairs(encoder: TextEncoder, pairs: ScoredPairs) -> float:
    """Return Spearman's correlation of the encoder's cosines with the scores of ``pairs``.

    Each distinct text is encoded once, without progress output. Texts are not lower-cased.

    Returns:
        The correlation in [-1, 1] (tables print it times 100); NaN where it is undefined, see
        :func:`spearman`.
    """
    pool = EmbeddingPool(encoder, [*pairs.first, *pairs.second], label=pairs.name, progress=False)
    return spearman(pool.similarities(pairs.first, pairs.second), pairs.scores)


def evaluate_cross_encoder(scorer: PairScorer, pairs: ScoredPairs) -> float:
    """Return Spearman's correlation of a cross-encoder's scores with those of ``pairs``, each in its given order.

    Returns:
        The correlation in [-1, 1]; NaN where it is undefined, see :func:`spearman`.
    """
    return spearman(scorer.predict(list(zip(pairs.first, pairs.second, strict=True))), pairs.scores)


def _centred_ranks(values: Float64Array) -> Float64Array:
    """Return ranks from 1 with ties averaged, minus their mean."""
    _, group, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks = np.cumsum(counts) - (counts - 1) / 2
    return np.asarray(ranks[group] - (len(values) + 1) / 2, dtype=np.float64)


def _why_undefined(similarities: npt.NDArray[np.float32], scores: Float64Array) -> str:
    if len(scores) < 2:
        return "there is only one pair"
    if np.ptp(scores) == 0:
        return "all scores of the set are equal"
    return "all similarities of the model are equal" if np.ptp(similarities) == 0 else ""
