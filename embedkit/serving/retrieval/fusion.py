"""Fusion of a dense and a lexical ranking."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from embedkit.errors import InputError
from embedkit.protocols import FloatArray
from embedkit.serving.retrieval.exact_index import Ranking

__all__ = ["Fusion", "fusion_of"]

_METHODS: Final = ("rrf", "weighted")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fusion:
    """How dense and lexical rankings are fused.

    Attributes:
        method: ``"rrf"`` adds ``weight / (constant + rank)`` over the rankings (reciprocal rank fusion, Cormack,
            Clarke and Büttcher, SIGIR 2009), scaled so that 1 is first in both, and ignores scores; ``"weighted"``
            adds the scores of each ranking, normalised to [0, 1].
        dense_weight: weight of the dense ranking, in [0, 1]; the lexical one has the rest.
        constant: constant of reciprocal rank fusion; larger values reduce the influence of the first ranks.

    Raises:
        InputError: the method does not exist, or a number is out of range.
    """

    method: str = "rrf"
    dense_weight: float = 0.5
    constant: int = 60

    def __post_init__(self) -> None:
        if self.method not in _METHODS:
            raise InputError(f"hybrid: there is no fusion {self.method!r}; the methods are {', '.join(_METHODS)}")
        if not 0 <= self.dense_weight <= 1:
            raise InputError(f"hybrid: expected a dense_weight of 0...1, got {self.dense_weight}")
        if self.constant < 1:
            raise InputError(f"hybrid: expected a constant of at least 1, got {self.constant}")

    def fuse(self, dense: Ranking, lexical: Ranking) -> Ranking:
        """Return all rows of both, best first, with ties ordered by row."""
        parts = [(dense, self.dense_weight), (lexical, 1 - self.dense_weight)]
        rows = np.union1d(dense.rows, lexical.rows)
        scores = np.zeros(len(rows), dtype=np.float64)
        for ranking, weight in parts:
            scores[np.searchsorted(rows, ranking.rows)] += weight * self._credit(ranking.scores)
        order = np.lexsort((rows, -scores))
        return Ranking(scores[order].astype(np.float32), rows[order])

    def _credit(self, scores: FloatArray) -> FloatArray:
        if self.method == "rrf":
            ranks = np.arange(1, len(scores) + 1)
            return np.asarray((self.constant + 1) / (self.constant + ranks), dtype=np.float32)
        if not len(scores) or scores[0] == scores[-1]:
            return np.ones_like(scores)
        return np.asarray((scores - scores[-1]) / (scores[0] - scores[-1]), dtype=np.float32)


def fusion_of(hybrid: bool | str | Fusion | None) -> Fusion | None:  # noqa: FBT001  # True is the short form
    """Resolve the argument ``hybrid`` of a search: none, the default, a method's name, or a configuration.

    Raises:
        InputError: the method does not exist.
    """
    if isinstance(hybrid, Fusion):
        return hybrid
    if isinstance(hybrid, str):
        return Fusion(method=hybrid)
    return Fusion() if hybrid else None
