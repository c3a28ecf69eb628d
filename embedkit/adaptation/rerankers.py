"""Adapting a cross-encoder: pairs of positives and mined negatives, and the order of candidates as proof."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from embedkit.adaptation.proof import Rankings
from embedkit.evaluation.retrieval import Ranking
from embedkit.protocols import FloatArray
from embedkit.runtime.cross_encoder import CrossEncoder
from embedkit.runtime.encoder import Encoder
from embedkit.training.corpus import Rows
from embedkit.training.mining import nearest_negatives
from embedkit.training.pairs import LabelledQueries

MINER = "tiny"
"""The encoder whose nearest passages are negatives and candidates."""

RECIPE: Mapping[str, Any] = {
    "method": "labelled-pairs",
    "student": {"dropout": 0.0, "word_table": "int4"},
    "optim": {"lr": 1e-4, "batch_size": 32, "correct_bias": True},
    "settings": {"loss": "listwise", "group": 8},
}
_NEGATIVES = 15  # of a query, of which each batch draws some
_CANDIDATES = 20


def labelled_pairs(labelled: LabelledQueries, encoder: Encoder) -> Iterator[dict[str, Any]]:
    """Yield pairs with labels: 1 for positives, 0 for given and mined negatives."""
    vectors = _vectors(labelled, encoder)
    mined = nearest_negatives(
        *vectors, labelled.positives, depth=_NEGATIVES, margin=0.95, known=labelled.negatives
    )
    for query, positives, given, found in zip(
        labelled.queries, labelled.positives, labelled.negatives, mined, strict=True
    ):
        for label, rows in ((1, positives), (0, np.unique(np.concatenate([given, found])))):
            yield from (
                {"query": query, "passage": labelled.passages[row], "label": label} for row in rows.tolist()
            )


def rerank(old: CrossEncoder, new: CrossEncoder, encoder: Encoder, held_out: LabelledQueries) -> Rankings:
    """Return the orders of both for the passages that an encoder finds for held-out queries."""
    none = [rows[:0] for rows in held_out.positives]
    candidates = nearest_negatives(*_vectors(held_out, encoder), none, depth=_CANDIDATES, margin=np.inf)
    before, after = ([*_rankings(scorer, held_out, candidates)] for scorer in (old, new))
    return {f" of {_CANDIDATES} candidates": (before, after)}


def _vectors(labelled: LabelledQueries, encoder: Encoder) -> tuple[FloatArray, FloatArray]:
    queries = encoder.encode_query(labelled.queries, show_progress_bar=False)
    return queries, encoder.encode_document(labelled.passages, show_progress_bar=False)


def _rankings(scorer: CrossEncoder, held_out: LabelledQueries, candidates: list[Rows]) -> Iterator[Ranking]:
    pairs = [
        (query, held_out.passages[row])
        for query, rows in zip(held_out.queries, candidates, strict=True)
        for row in rows.tolist()
    ]
    scores = scorer.predict(pairs, show_progress_bar=False)
    ends = np.cumsum([len(rows) for rows in candidates])[:-1]
    for rows, found, positives, weights in zip(
        candidates, np.split(scores, ends), held_out.positives, held_out.weights, strict=True
    ):
        grades = dict(zip(positives.tolist(), weights.tolist(), strict=True))
        order = rows[np.argsort(-found, kind="stable")].tolist()
        gains = np.array([grades.get(row, 0.0) for row in order], dtype=np.float64)
        yield Ranking(gains, np.sort(weights.astype(np.float64))[::-1])
