"""The plan of an adaptation: its runs, their settings and their teachers."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from pathlib import Path
from typing import Any

from embedkit.adaptation.data import Data, sample, spans
from embedkit.adaptation.proof import hybrid_search
from embedkit.adaptation.rerankers import RECIPE as _RERANKER
from embedkit.adaptation.rerankers import labelled_pairs
from embedkit.adaptation.teachers import WORDS, random_texts, table
from embedkit.atomic import atomic_file
from embedkit.config import merge
from embedkit.errors import ConfigError
from embedkit.runtime.bundle import read_bundle
from embedkit.runtime.encoder import Encoder
from embedkit.runtime.manifest import Manifest
from embedkit.training.config import RunConfig, override
from embedkit.training.pairs import Judgement, LabelledQueries
from embedkit.training.run import resolve
from embedkit.training.teachers import TeacherConfig

_STUDENT = {"dropout": 0.0, "word_table": "int4"}
_LABELS: Mapping[str, Any] = {
    "method": "contrastive",
    "student": _STUDENT,
    "optim": {"lr": 1e-3},
    "settings": {"anchor": 1.0},
}
"""Settings of the training on labels."""

_DOCUMENTS: Mapping[str, Any] = {
    "method": "sct-distillation",
    "student": _STUDENT,
    "optim": {
        "algorithm": "muon",
        "lr": 2e-3,
        "warmup": 0.1,
        "schedule": "cosine",
        "correct_bias": True,
        "keep": 0.25,
    },
    "settings": {
        "views": 1,
        "regression": 3.0,
        "queues": "one",
        "temperature": 0.05,
        "reference_temperature": 0.05,
    },
}
"""Settings of the training towards teachers: those of the bundled encoders, for a short run."""

DATA = ".data"
"""The training data, in a run folder."""

VECTORS = "vectors.npy"
"""The vectors that are learned from teachers, in the folder of the training data."""

MOST_DOCUMENTS = 3000
"""Passages that teachers embed."""

_BATCH = 32
_DOCUMENTS_BATCH = 128
_QUEUE = 4096
_RERANKER_QUERIES = 4  # in a batch
_EPOCHS = 5
_STEPS = 30, 1000  # the fewest and the most on labels
_STEPS_ON_TEXTS = 200, 1500
_TOKENS = 1_500_000  # to train on towards teachers: four minutes of a thread for an encoder like tiny
_TOKENS_BEFORE_LABELS = 600_000
_KEEP_BEFORE_LABELS = 0.3
_TEXTS_FOR_A_RANDOM_ONE = 3
_RANDOM_TEXTS = 64  # in a batch on labels after documents
_CHARACTERS = 4.5  # of a token
_MOST_SPANS = 1000  # that a cross-encoder reads


@dataclass(frozen=True)
class Part:
    """One run: its configuration, its data, its folder, and the encoders whose vectors it learns."""

    config: RunConfig
    data: Data
    folder: Path
    teachers: tuple[TeacherConfig, ...] = ()


@dataclass(frozen=True)
class Planner:
    """The options of an adaptation."""

    path: Path
    encoder: Encoder
    manifest: Manifest
    teachers: tuple[str, ...]
    scored: bool  # by the teacher, a cross-encoder
    queries_only: bool
    settings: Mapping[str, Any]
    start: Path | None = None  # the run that the student comes from, if it is not the bundle
    labels_follow: bool = False  # this run

    def on_documents(self, data: Data, folder: Path) -> Part:
        """Return the run towards encoders before one on labels, to which the settings of the method belong."""
        if data.labelled is not None:
            documents = data.labelled.passages  # the documents are among them
        else:
            documents = data.documents or (
                [] if data.graded is None else [*data.graded.first, *data.graded.second]
            )
        texts = dataclasses.replace(data, documents=documents, labelled=None, held_out=None, graded=None)
        settings = {name: value for name, value in self.settings.items() if name != "settings"}
        return dataclasses.replace(self, settings=settings, labels_follow=True).part(texts, folder)

    def part(self, data: Data, folder: Path) -> Part:
        """Write the training data into ``folder``, and decide on the runs.

        Raises:
            ConfigError: there is nothing to learn from the data, or a setting is invalid.
        """
        place = folder / DATA
        student: dict[str, Any] = {"source": str(self.start or self.path)}
        corpus: dict[str, Any] = {"path": str(place / "documents.jsonl"), "name": "documents"}
        if self.manifest.kind == "cross-encoder":
            mapping = self._on_pairs(data, place)
            corpus = {"path": str(place / "judged.jsonl"), "view_columns": ["query", "passage"]}
        else:
            student["max_length"] = self.manifest.max_length
            learns = self._on_labels if data.labelled is not None or data.graded is not None else self._on_texts
            mapping = learns(data, place)
            trained = self.manifest.config.get("optim")
            limit = trained.get("activation_limit") if isinstance(trained, Mapping) else None
            if limit is not None:  # an encoder that was trained without the limit would be damaged by it
                mapping = merge(mapping, {"optim": {"activation_limit": limit}})
        teachers = [TeacherConfig(**table(each)) for each in self.teachers if "teacher" in mapping]
        mapping = merge({"corpus": [corpus]}, merge(mapping, {"student": student}))
        return Part(resolve(override(mapping, self.settings)), data, folder, tuple(teachers))

    def _on_labels(self, data: Data, place: Path) -> dict[str, Any]:
        """Return the settings of training on labels, and write these."""
        files: dict[str, list[str]] = {}
        texts = [*data.documents]
        if data.labelled is not None:
            texts += data.labelled.passages
            rows = (dict(zip(_JUDGEMENT, row, strict=True)) for row in data.labelled.judgements())
            files["pairs"] = [save(place / "pairs.jsonl", rows)]
        if data.graded is not None:
            texts += data.graded.first
            columns = data.graded.first, data.graded.second, data.graded.scores.tolist()
            rows = (dict(zip(_GRADED, row, strict=True)) for row in zip(*columns, strict=True))
            files["graded"] = [save(place / "graded.jsonl", rows)]
        save_texts(place / "documents.jsonl", texts)
        sizes = [len(each) for each in (data.labelled, data.graded) if each is not None]
        steps = round(min(_STEPS[1], max(_STEPS[0], _EPOCHS * max(sizes) / _BATCH))) * len(sizes)
        settings: dict[str, Any] = {**files, "freeze_documents": self.queries_only}
        general = None if self.start is None else self.start / DATA / WORDS
        if general is not None and general.stat().st_size:
            settings |= {"texts": _RANDOM_TEXTS, "general": str(general), "origin": str(self.path)}
        taught: dict[str, Any] = {}
        if self.scored and data.labelled is not None:
            taught = {"teachers": [*map(table, self.teachers)], "settings": {"loss": "kl"}}
        optim = {"steps": steps, "batch_size": min(_BATCH, *sizes)}
        return merge(merge(_LABELS, {"optim": optim, "settings": settings}), taught)

    def _guessed(self, data: Data) -> LabelledQueries:
        """Label each query with the first result of the old encoder's hybrid search, which is better; add titles.

        Where a cross-encoder scores the passages, spans are queries, too (Wang et al., "GPL", 2022, whose queries
        are generated).
        """
        documents = {str(row): text for row, text in enumerate(data.documents)}
        found = hybrid_search(self.encoder, documents, data.queries, 1)
        pairs = zip(data.queries, found, strict=True)
        guesses = (Judgement(query, documents[hits[0]], 1.0) for query, hits in pairs if hits)
        titles = [] if data.titles is None else data.titles.judgements()
        sources = sample(data.documents, _MOST_SPANS) if self.scored else []
        pieces = map(Judgement, spans(sources, each=1), sources, repeat(1.0))
        return LabelledQueries.of(chain(guesses, titles, pieces), data.documents)

    def _on_pairs(self, data: Data, place: Path) -> dict[str, Any]:
        """Return the settings of a re-ranker's training, and write its pairs."""
        if data.labelled is None:
            raise ConfigError(
                "a re-ranker learns from labelled queries: name them with pairs", parameters=["pairs"]
            )
        save(place / "judged.jsonl", labelled_pairs(data.labelled, self.encoder))
        steps = round(min(_STEPS[1], max(_STEPS[0], _EPOCHS * len(data.labelled) / _RERANKER_QUERIES)))
        return merge(_RERANKER, {"optim": {"steps": steps}, "settings": {"length": self.manifest.max_length}})

    def _on_texts(self, data: Data, place: Path) -> dict[str, Any]:
        """Return the settings of training towards teachers, and write the texts that they embed."""
        guesses = self.scored or (data.queries and (self.queries_only or not self.teachers))
        if data.documents and guesses:
            return self._on_labels(dataclasses.replace(data, labelled=self._guessed(data)), place)
        if self.queries_only:
            raise ConfigError("training queries only needs labelled queries, or a log of queries with documents")
        if not self.teachers:
            raise ConfigError(
                "documents without labels need a teacher, a better encoder on this machine: name it, or give "
                "labelled queries, or documents with a log of queries",
                parameters=["teacher"],
            )
        titles = [] if data.titles is None else data.titles.queries
        documents = sample(data.documents, MOST_DOCUMENTS)
        texts = save_texts(place / "documents.jsonl", [*documents, *spans(documents), *titles, *data.queries])
        words = [*random_texts(read_bundle(self.path).tokenizer_json)]
        save(place / WORDS, ({"text": text} for text in words))
        return merge(_DOCUMENTS, self._towards_teachers(texts, place, with_words=bool(words)))

    def _towards_teachers(self, texts: Sequence[str], place: Path, *, with_words: bool) -> dict[str, Any]:
        """Return the settings that depend on the texts.

        Before labels the run is short, and holds random words where they are, because labels make the encoder
        forget, too.
        """
        tokens, optim = _TOKENS, dict[str, Any]()
        corpus: list[dict[str, Any]] = [{"path": str(place / "documents.jsonl"), "name": "documents"}]
        if self.labels_follow and with_words:
            tokens, optim = _TOKENS_BEFORE_LABELS, {"keep": _KEEP_BEFORE_LABELS}
            most = max(1, len(texts) // _TEXTS_FOR_A_RANDOM_ONE)
            corpus += [{"path": str(place / WORDS), "name": "random words", "limit": most}]
        batch = min(_DOCUMENTS_BATCH, max(1, len(texts) * 9 // 10))
        steps = round(min(_STEPS_ON_TEXTS[1], max(_STEPS_ON_TEXTS[0], tokens / mean_tokens(texts) / batch)))
        return {
            "optim": {"batch_size": batch, "steps": steps, **optim},
            "settings": {"queue_size": min(_QUEUE, len(texts))},
            "teacher": {
                "source": str(place / VECTORS),
                "name": " + ".join(table(each)["name"] for each in self.teachers),
            },
            "corpus": corpus,
        }


def mean_tokens(texts: Sequence[str]) -> float:
    """Return about how many tokens a text has."""
    return sum(map(len, texts)) / max(1, len(texts)) / _CHARACTERS


_JUDGEMENT = "query", "passage", "label"
_GRADED = "sentence1", "sentence2", "score"


def save(path: Path, rows: Iterator[dict[str, Any]]) -> str:
    """Write rows as JSON lines; return the path."""
    with atomic_file(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    return str(path)


def save_texts(path: Path, texts: list[str]) -> list[str]:
    """Write each text once; return them."""
    distinct = list(dict.fromkeys(texts))
    save(path, ({"text": text} for text in distinct))
    return distinct
