"""The gain of an adaptation on held-out data, and its loss on other tasks."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from embedkit.evaluation.results import Interval, Resampler, Samples
from embedkit.evaluation.retrieval import Ranking, RetrievalSet, ndcg, rank_documents, recall
from embedkit.evaluation.sts import ScoredPairs, correlation
from embedkit.protocols import FloatArray
from embedkit.runtime.cross_encoder import CrossEncoder
from embedkit.runtime.encoder import Encoder
from embedkit.serving.retrieval.collection import Collection

_DEPTH = 100
_MOST_TEXTS = 1000  # to measure the agreement of
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
        measures: of search and of graded pairs on held-out data, and of tasks that the model may have forgotten.
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


Rankings = Mapping[str, tuple[list[Ranking], list[Ranking]]]
"""Rankings of the same held-out queries by the old and the new model, by kind of search."""

_OLD_DOCUMENTS = ", old documents"


def search(old: Encoder, new: Encoder, held_out: RetrievalSet, *, queries_only: bool) -> Rankings:
    """Rank for held-out queries by both encoders, alone and in the default hybrid search."""
    documents = [*held_out.documents.values()]
    texts = [query.text for query in held_out.queries]
    old_rows = _embed(old, documents)
    new_rows = old_rows if queries_only else _embed(new, documents)
    asked = _embed(old, texts, "query"), _embed(new, texts, "query")
    before = _rankings(held_out, asked[0], old_rows)
    found = {
        "": (before, _rankings(held_out, asked[1], new_rows)),
        _OLD_DOCUMENTS: (before, _rankings(held_out, asked[1], old_rows)),
    }
    if not queries_only:
        found[", hybrid search"] = _hybrid(old, held_out, old_rows), _hybrid(new, held_out, new_rows)
    return found


def measure(searches: Sequence[Rankings]) -> tuple[dict[str, Comparison], bool | None]:
    """Return the measures of all searches together, and whether the new queries suit the old documents."""
    measures: dict[str, Comparison] = {}
    keeps = None
    for kind in dict.fromkeys(chain.from_iterable(searches)):
        before, after = (list(chain.from_iterable(part[kind][side] for part in searches)) for side in (0, 1))
        if kind == _OLD_DOCUMENTS:
            keeps = _mean(after) >= _mean(before)
            continue
        measures[f"nDCG@10{kind}"] = compare(before, after, ndcg)
        if not kind:
            measures["recall@10"] = compare(before, after, lambda ranking: recall(ranking, cutoff=10))
    return measures, keeps


def prove(
    old: Encoder | CrossEncoder,
    new: Encoder | CrossEncoder,
    searches: Sequence[Rankings],
    pairs: Mapping[str, ScoredPairs | None],
    texts: Sequence[str],
) -> Proof:
    """Measure both models on held-out data: the rankings of all parts together, and scored pairs by name.

    ``texts`` are documents, to measure the agreement of two encoders.
    """
    measures, keeps = measure(searches)
    if isinstance(old, CrossEncoder) or isinstance(new, CrossEncoder):
        return Proof(measures=measures, agreement=None, keeps_collections=None)
    for name, given in pairs.items():
        if given is not None:
            measures[f"Spearman, {name}"] = _correlations(old, new, given)
    return Proof(measures=measures, agreement=_agreement(old, new, texts[:_MOST_TEXTS]), keeps_collections=keeps)


def _embed(encoder: Encoder, texts: list[str], role: str = "document") -> FloatArray:
    encode = encoder.encode_query if role == "query" else encoder.encode_document
    return np.asarray(encode(texts, show_progress_bar=False), dtype=np.float32)


def _agreement(old: Encoder, new: Encoder, texts: Sequence[str]) -> float:
    if old.dimension != new.dimension:
        return 0.0
    return float((_embed(old, [*texts]) * _embed(new, [*texts])).sum(axis=1).mean())


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


def _hybrid(encoder: Encoder, held_out: RetrievalSet, rows: FloatArray) -> list[Ranking]:
    rankings = []
    queries = [query.text for query in held_out.queries]
    found = hybrid_search(encoder, held_out.documents, queries, 10, rows)
    for query, hits in zip(held_out.queries, found, strict=True):
        gains = np.array([query.relevance.get(hit, 0.0) for hit in hits], dtype=np.float64)
        wanted = np.array(sorted(filter(None, query.relevance.values()), reverse=True), dtype=np.float64)
        rankings.append(Ranking(gains, wanted))
    return rankings


def hybrid_search(
    encoder: Encoder, documents: Mapping[str, str], queries: list[str], count: int, rows: FloatArray | None = None
) -> list[list[str]]:
    """Return the ids that the default search of a collection with a keyword index finds for each query.

    ``rows`` are the documents' vectors, if they are known.
    """
    with tempfile.TemporaryDirectory() as folder:
        collection = Collection.build(
            documents.items(),
            encoder=encoder,
            path=Path(folder) / "collection",
            embeddings=rows,
            lexical=True,
            skip_empty=True,
            show_progress_bar=False,
        )
        found = [[hit.id for hit in hits] for hits in collection.search(queries, count)]
        collection.close()
    return found
