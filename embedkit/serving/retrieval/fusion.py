"""Two rankings made one: that by meaning and that by words."""

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
    """How rankings by meaning and by words become one.

    Attributes:
        method: ``"rrf"`` adds ``weight / (constant + rank)`` over the rankings (reciprocal rank fusion, Cormack,
            Clarke and Büttcher, SIGIR 2009), multiplied such that 1 is first in both, and needs no scores;
            ``"weighted"`` adds the scores, each ranking's brought to 0...1.
        dense_weight: weight of the ranking by meaning, 0...1; that by words has the rest.
        constant: of reciprocal rank fusion; larger ones care less about the first ranks.

    Raises:
        InputError: there is no such method, or a number is out of range.
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
        """All rows of both, best first; equal ones in the order of the rows."""
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
    """What `hybrid` of a search means: nothing, the default, a method's name, or all said.

    Raises:
        InputError: there is no such method.
    """
    if isinstance(hybrid, Fusion):
        return hybrid
    if isinstance(hybrid, str):
        return Fusion(method=hybrid)
    return Fusion() if hybrid else None
