"""Fusion of the rankings by meaning and by keywords into one.

Both scores are standardised: how many standard deviations a document lies above the mean of all documents, so that
a query whose keywords single out a document counts on them, and one whose words are everywhere does not. The dense
score has four fifths of the weight. Then the query moves a third of the way towards the mean of the three best
documents (pseudo-relevance feedback, Rocchio 1971), weighted by their scores, and the candidates are scored again.
Weights were chosen on five collections and six encoders (benchmarks/search_quality).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from embedkit.protocols import FloatArray
from embedkit.serving.retrieval.store.exact import BoolArray, Ranking, RowNumbers, inner_products, reached

if TYPE_CHECKING:
    from embedkit.serving.retrieval.store.protocol import View

DENSE_WEIGHT: Final = 0.8
FEEDBACK: Final = 1 / 3
"""How far the query moves towards the best documents."""

FEEDBACK_DOCUMENTS: Final = 3

ANSWER: Final = 4.5
"""The gain of a sure answer, in standard deviations of the search's scores."""

FULL_RATIO: Final = 2.0
"""Ratio of the numbers of weights of re-ranker and encoder above which an answer counts in full."""

DOUBT: Final = 0.75
"""What is subtracted from a re-ranker's logits before they become probabilities."""

ENCODER_WEIGHT: Final = 0.5
"""Weight of an encoder as re-ranker."""

_LEAST_PROBABILITY = 1e-7

SAMPLE: Final = 1024
"""Number of documents from which the mean and the deviation of a query's scores are estimated."""

_LEAST = np.finfo(np.float32).tiny  # a score above 0
_NEGLIGIBLE = 1e-6  # a deviation below which all documents score the same


class Keywords(Protocol):
    """The keyword scores of one query."""

    def best(self, k: int, /) -> Ranking:
        """Return at most ``k`` rows that have a term of the query, best first, with ties ordered by row."""

    def standardised(self, rows: RowNumbers, /) -> FloatArray:
        """Return the scores of rows in standard deviations from the mean."""


class Sample:
    """Moments of a sample of all embeddings, ``(N, D) float32``, by which any query's scores are standardised."""

    def __init__(self, embeddings: FloatArray) -> None:
        rows = embeddings.astype(np.float64)
        self._mean = rows.sum(axis=0) / max(len(rows), 1)
        centred = rows - self._mean
        self._covariance = (centred.T @ centred / max(len(rows), 1)).astype(np.float32)

    def standardise(self, scores: FloatArray, query: FloatArray) -> FloatArray:
        """Return a query's inner products with documents in standard deviations from their mean."""
        variance = float(np.vecdot(np.vecdot(self._covariance, query), query))
        if variance < _NEGLIGIBLE**2:
            return np.zeros_like(scores)
        return np.asarray((scores - self._mean @ query) / np.sqrt(variance))


@dataclass(frozen=True, slots=True)
class AllKeywords:
    """Keyword scores of all rows, ``(N,) float32``, of which those ``allowed``, ``(N,) bool``, may be found."""

    scores: FloatArray
    allowed: BoolArray | None

    def best(self, k: int, /) -> Ranking:
        """See :class:`Keywords`."""
        scores = self.scores if self.allowed is None else self.scores * self.allowed
        rows = np.flatnonzero(scores >= max(reached(scores, k), _LEAST))
        order = np.lexsort((rows, -scores[rows]))[:k]
        return Ranking(scores[rows[order]], rows[order])

    def standardised(self, rows: RowNumbers, /) -> FloatArray:
        """See :class:`Keywords`."""
        mean = float(self.scores.sum()) / max(len(self.scores), 1)
        squares = float(np.vecdot(self.scores, self.scores)) / max(len(self.scores), 1)
        deviation = np.sqrt(max(squares - mean**2, 0.0))
        centred = self.scores[rows] - np.float32(mean)
        return np.asarray(centred / deviation if deviation > _NEGLIGIBLE else centred * 0, dtype=np.float32)


def fuse(view: View, query: FloatArray, dense: Ranking, lexical: Ranking, keywords: Keywords) -> Ranking:
    """Return all rows of both rankings, best first, with ties ordered by row.

    ``query`` is its embedding, ``(D,) float32, unit row``, and ``lexical`` the best rows of the keywords.
    """
    rows = np.union1d(dense.rows, lexical.rows)
    vectors, sample = view.vectors(rows), view.sample_vectors()
    if vectors is None:
        products = np.full(len(rows), dense.scores.min(initial=1.0), np.float32)
        products[np.searchsorted(rows, dense.rows)] = dense.scores
    else:
        products = inner_products(vectors, query)
    by_words = (1 - DENSE_WEIGHT) * keywords.standardised(rows)
    scores = DENSE_WEIGHT * sample.standardise(products, query) + by_words
    if vectors is not None and len(lexical.rows):
        moved = _moved(query, vectors, scores)
        scores = DENSE_WEIGHT * sample.standardise(inner_products(vectors, moved), moved) + by_words
    order = np.lexsort((rows, -scores))
    return Ranking(scores[order].astype(np.float32), rows[order])


def _moved(query: FloatArray, vectors: FloatArray, scores: FloatArray) -> FloatArray:
    """Return the query moved towards the best documents."""
    best = np.lexsort((np.arange(len(scores)), -scores))[:FEEDBACK_DOCUMENTS]
    weights = np.exp((scores[best] - scores[best[0]]) / DENSE_WEIGHT)
    centre = weights @ vectors[best] / weights.sum()
    return np.asarray((1 - FEEDBACK) * query + FEEDBACK * centre, dtype=np.float32)


def answer_weight(encoder: object | None, reranker: object) -> float:
    """Return the gain of a sure answer among candidates of an encoder; None stands for a search by keywords.

    It is proportional to the ratio of the numbers of weights in the layers of re-ranker and encoder, up to
    :data:`FULL_RATIO`: large encoders make mistakes that a small re-ranker cannot correct. Models without this
    number count as equally large.
    """
    if encoder is None:
        return ANSWER
    own, other = (getattr(model, "weight_count", None) for model in (reranker, encoder))
    ratio = 1.0 if own is None or other is None else own / max(other, 1)
    return ANSWER * min(1.0, ratio / FULL_RATIO)


def blend(
    before: Ranking, scores: FloatArray, weight: float | None, *, trusted: bool, answer: float = ANSWER
) -> Ranking:
    """Return the rows of a ranking by its scores and those of a re-ranker, best first.

    Scores of the ranking are standardised. With a weight, the re-ranker's logits or cosines are, too, and their
    weighted mean counts. Without one, a cross-encoder adds ``answer`` times the probability that a candidate
    answers the query, of its logit less :data:`DOUBT`: if none does, all probabilities are near 0, and the order
    of the search remains. An encoder, which is ``trusted``, has :data:`ENCODER_WEIGHT`.
    """
    found, values = _standardised(before.scores), scores.astype(np.float64)
    if not trusted and values.min() >= 0 and values.max() <= 1:  # probabilities
        clipped = np.clip(values, _LEAST_PROBABILITY, 1 - _LEAST_PROBABILITY)
        values = np.log(clipped / (1 - clipped))
    if weight is None and not trusted:
        blended = found + answer * np.exp(-np.logaddexp(0, DOUBT - values))
    else:
        weight = ENCODER_WEIGHT if weight is None else weight
        blended = (1 - weight) * found + weight * _standardised(values)
    order = np.lexsort((before.rows, -blended))
    return Ranking(blended[order].astype(np.float32), before.rows[order])


def _standardised(scores: npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.float64]:
    centred = scores - scores.mean(dtype=np.float64)
    deviation = float(centred.std())
    return np.asarray(centred / deviation if deviation > _NEGLIGIBLE else centred * 0)
