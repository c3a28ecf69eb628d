"""What an adaptation gained on what was held out, and what the encoder forgot."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from embedkit.evaluation.results import Resampler
from embedkit.evaluation.retrieval import Ranking, RetrievalSet, ndcg, rank_documents, recall
from embedkit.evaluation.significance import Interval, Samples
from embedkit.evaluation.sts import ScoredPairs, correlation
from embedkit.export.probes import PROBE_TEXTS
from embedkit.protocols import FloatArray
from embedkit.runtime.encoder import Encoder
from embedkit.serving.retrieval.collection import Collection

_DEPTH = 100
_LEAST_AGREEMENT = 0.95  # share of the new encoder's gain that must be left on the old documents' vectors
_MOST_LOST = 0.01  # of a measure other than the first, before an adaptation counts as worse


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One measure of the old and the new encoder on the same rows, in [-1, 1].

    Attributes:
        rows: number of queries, or of pairs.
        gain: the 95 % interval of the difference.
    """

    before: float
    after: float
    rows: int
    gain: Interval

    @property
    def fell(self) -> bool:
        """Whether it fell by more than a hundredth, and the interval is below zero."""
        return self.after < self.before - _MOST_LOST and (self.gain.high or 0.0) < 0


@dataclass(frozen=True, kw_only=True)
class Proof:
    """The measures by name; the first decides whether the new encoder is better.

    Attributes:
        measures: of search and of graded pairs on what was held out, and of what may have been forgotten.
        agreement: mean cosine of old and new vectors of the documents, or of general text without any; None for
            re-rankers.
        keeps_collections: whether the new encoder's queries find as much among the old encoder's documents as the
            old encoder's did, so that an existing collection may stay; None without held-out queries.
    """

    measures: Mapping[str, Comparison]
    agreement: float | None
    keeps_collections: bool | None

    @property
    def is_better(self) -> bool:
        """Whether the first measure rose, and no other fell by more than a hundredth, and more than by chance."""
        first, *others = self.measures.values()
        return first.after > first.before and not any(each.fell for each in others)

    def to_json(self) -> dict[str, Any]:
        """Return the proof as stored in the card."""
        return asdict(self) | {"measures": {name: asdict(each) for name, each in self.measures.items()}}


def prove(
    old: Encoder,
    new: Encoder,
    *,
    held_out: RetrievalSet | None,
    graded: ScoredPairs | None,
    check: ScoredPairs | None,
    queries_only: bool,
) -> Proof:
    """Measure both encoders on what was held out, and on ``check``, pairs that nothing was trained on."""
    measures: dict[str, Comparison] = {}
    agreement, keeps = _agreement(old, new, PROBE_TEXTS), None
    if held_out is not None:
        documents = [*held_out.documents.values()]
        texts = [query.text for query in held_out.queries]
        old_rows = _embed(old, documents)
        new_rows = old_rows if queries_only else _embed(new, documents)
        asked = _embed(old, texts, "query"), _embed(new, texts, "query")
        before = _rankings(held_out, asked[0], old_rows)
        after = _rankings(held_out, asked[1], new_rows)
        measures["nDCG@10"] = compare(before, after, ndcg)
        measures["recall@10"] = compare(before, after, lambda ranking: recall(ranking, cutoff=10))
        crossed = _rankings(held_out, asked[1], old_rows)
        keeps = _mean(crossed) >= _mean(before)
        agreement = float((old_rows * new_rows).sum(axis=1).mean())
        if not queries_only:
            found = _hybrid(old, held_out), _hybrid(new, held_out)
            measures["nDCG@10, hybrid search"] = compare(found[0], found[1], ndcg)
    for name, pairs in {"Spearman, held-out graded pairs": graded, "Spearman, general pairs": check}.items():
        if pairs is not None:
            measures[name] = _correlations(old, new, pairs)
    return Proof(measures=measures, agreement=agreement, keeps_collections=keeps)


def _embed(encoder: Encoder, texts: list[str], role: str = "document") -> FloatArray:
    encode = encoder.encode_query if role == "query" else encoder.encode_document
    return np.asarray(encode(texts, show_progress_bar=False), dtype=np.float32)


def _agreement(old: Encoder, new: Encoder, texts: list[str]) -> float:
    if old.dimension != new.dimension:
        return 0.0
    return float((_embed(old, texts) * _embed(new, texts)).sum(axis=1).mean())


def _rankings(held_out: RetrievalSet, queries: FloatArray, documents: FloatArray) -> list[Ranking]:
    return list(rank_documents(queries, documents, held_out, depth=_DEPTH))


def _mean(rankings: list[Ranking]) -> float:
    return float(np.mean([ndcg(ranking) for ranking in rankings]))


def compare(before: list[Ranking], after: list[Ranking], measure: Callable[[Ranking], float]) -> Comparison:
    """Return the mean of a measure over the same queries, before and after."""
    old, new = (np.array([measure(ranking) for ranking in rankings]) for rankings in (before, after))
    return _comparison(Resampler.of_rows(old), Resampler.of_rows(new))


def _comparison(old: Resampler, new: Resampler) -> Comparison:
    before, after = Samples.of(old), Samples.of(new)
    gain = after.less(before).interval
    return Comparison(before=before.value, after=after.value, rows=sum(before.sizes), gain=gain)


def _correlations(old: Encoder, new: Encoder, pairs: ScoredPairs) -> Comparison:
    cosines: list[npt.NDArray[np.float32]] = [
        (_embed(encoder, pairs.first) * _embed(encoder, pairs.second)).sum(axis=1) for encoder in (old, new)
    ]
    return _comparison(*(correlation(each, pairs.scores) for each in cosines))


def _hybrid(encoder: Encoder, held_out: RetrievalSet) -> list[Ranking]:
    """Rank by the default search of a collection with a keyword index."""
    with tempfile.TemporaryDirectory() as folder:
        collection = Collection.build(
            held_out.documents.items(),
            encoder=encoder,
            path=Path(folder) / "collection",
            lexical=True,
            show_progress_bar=False,
        )
        found = collection.search([query.text for query in held_out.queries], 10)
        rankings = []
        for query, hits in zip(held_out.queries, found, strict=True):
            gains = np.array([query.relevance.get(hit.id, 0.0) for hit in hits], dtype=np.float64)
            wanted = np.array(sorted(filter(None, query.relevance.values()), reverse=True), dtype=np.float64)
            rankings.append(Ranking(gains, wanted))
        collection.close()
    return rankings
