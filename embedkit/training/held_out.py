"""Held-out text: measures the student's distance from its teacher on text it was not trained on."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from embedkit.protocols import TextEncoder
from embedkit.training.corpus import Corpus
from embedkit.training.teachers import TeacherVectors

__all__ = ["HeldOut", "Split"]

_LARGEST_SHARE = 0.1

Rows = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class Split:
    """Training rows, repeated as in an epoch, and held-out rows of each source."""

    train: Rows
    held_out: Mapping[str, Rows]

    @classmethod
    def of(cls, corpus: Corpus, count: int | None) -> Split:
        """Hold out ``count`` rows of each source, at most a tenth of it; the choice does not depend on the seed.

        Args:
            corpus: sources with the same name are pooled in ``held_out``.
            count: None holds out nothing.
        """
        repeats = np.repeat([card.repeat for card in corpus.cards], [card.rows for card in corpus.cards])
        if count is None:
            return cls(np.repeat(np.arange(len(corpus)), repeats), {})
        ends = np.cumsum([card.rows for card in corpus.cards])
        drawn: dict[str, list[Rows]] = {}
        for number, (card, end) in enumerate(zip(corpus.cards, ends, strict=True)):
            most = min(count, int(card.rows * _LARGEST_SHARE))
            places = np.random.default_rng([0, number]).permutation(card.rows)[:most]
            drawn.setdefault(card.name, []).append(np.sort(end - card.rows + places))
        held_out = {name: np.concatenate(rows) for name, rows in drawn.items() if sum(map(len, rows))}
        kept = np.ones(len(corpus), dtype=bool)
        for rows in held_out.values():
            kept[np.isin(corpus.source_rows, corpus.source_rows[rows])] = False  # with their contrasts
        return cls(np.repeat(np.flatnonzero(kept), repeats[kept]), held_out)


class HeldOut:
    """Measures the distance from a teacher's vectors on held-out text of each source.

    Args:
        corpus: the text.
        rows: held-out rows of each source.
        teacher: the teacher's vectors of the corpus.
    """

    def __init__(self, corpus: Corpus, rows: Mapping[str, Rows], teacher: TeacherVectors) -> None:
        self._texts = {name: corpus.texts(of_source) for name, of_source in rows.items()}
        self._vectors = {name: teacher.read(of_source, 0) for name, of_source in rows.items()}

    def distances(self, encoder: TextEncoder) -> dict[str, float]:
        """Return the mean of 1 - cosine between student and teacher for each source, in [0, 2]."""
        return {
            name: float(1 - (encoder.encode(texts) * self._vectors[name]).sum(axis=1).mean())
            for name, texts in self._texts.items()
        }
