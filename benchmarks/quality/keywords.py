"""Retrieval by BM25 alone: embedkit's keyword search, without embeddings."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from embedkit import Collection, Encoder
from embedkit.evaluation.retrieval import Ranking, RetrievalSet, ndcg

_DEPTH = 100


def keyword_ndcg(retrieval: RetrievalSet) -> float:
    """Return nDCG@10 of keyword search, in [0, 1]."""
    documents = [{"id": key, "text": text} for key, text in retrieval.documents.items() if text.strip()]
    gains = []
    with tempfile.TemporaryDirectory() as folder:
        encoder = Encoder.load("tiny")  # a collection has embeddings, too; they are not used
        path = Path(folder) / "index"
        collection = Collection.build(documents, encoder=encoder, path=path, lexical=True, index="exact")
        for query in retrieval.queries:
            hits = collection.search(query.text, k=_DEPTH, mode="lexical")
            ranked = [query.relevance.get(hit.id, 0.0) for hit in hits if hit.id != query.hidden]
            wanted = sorted((grade for grade in query.relevance.values() if grade > 0), reverse=True)
            gains.append(ndcg(Ranking(np.array(ranked), np.array(wanted))))
    return float(np.mean(gains))
