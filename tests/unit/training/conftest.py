"""Test doubles for training: tiny encoders, corpora of a few lines, teachers that count calls."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embedkit.modeling.encoder import SentenceEncoder
from embedkit.modeling.initialisation import Size, random
from embedkit.protocols import FloatArray
from embedkit.runtime.tokenization import Tokenizer
from embedkit.training.batches import BatchSource, ViewsConfig
from embedkit.training.corpus import Corpus, SourceConfig
from embedkit.training.method import Method

WORDS = ["the", "cat", "dog", "king", "sea", "garden", "red", "blue", "old", "reads", "swims", "sings", "today"]


class CountingTeacher:
    """Gives each text its own vector and records the texts it was given."""

    name, max_length = "counting", 16

    def __init__(self, fingerprint: str = "a" * 64, dimension: int = 8) -> None:
        self.fingerprint, self.dimension = fingerprint, dimension
        self.asked: list[str] = []

    def encode(self, texts: Sequence[str], /) -> FloatArray:
        self.asked += texts
        return np.stack([self.vector(text) for text in texts])

    def vector(self, text: str) -> FloatArray:
        seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
        row = np.random.default_rng(seed).standard_normal(self.dimension, dtype=np.float32)
        return row / np.linalg.norm(row)


@pytest.fixture
def counting_teacher() -> Callable[..., CountingTeacher]:
    return CountingTeacher


@pytest.fixture(scope="session")
def tokenizer(toy_tokenizer_json: str) -> Tokenizer:
    return Tokenizer(toy_tokenizer_json, 16)


@pytest.fixture
def make_encoder(tokenizer: Tokenizer) -> Callable[..., SentenceEncoder]:
    """``make_encoder(seed=0)``: H = 16, one layer."""

    def make(seed: int = 0) -> SentenceEncoder:
        return random(tokenizer, Size(1, 16, 2), max_length=16, seed=seed)

    return make


@pytest.fixture
def mapping(
    make_encoder: Callable[..., SentenceEncoder], sentences: Callable[[int], list[str]], tmp_path: Path
) -> dict[str, Any]:
    """The configuration of a run of two steps towards its own start."""
    make_encoder().save(tmp_path / "start")
    (tmp_path / "texts.txt").write_text("\n".join(sentences(20)))
    return {
        "method": "mse",
        "data": str(tmp_path),
        "cache": str(tmp_path / "cache"),
        "student": {"source": "start", "max_length": 16},
        "teacher": {"source": "start"},
        "corpus": [{"path": "texts.txt"}],
        "optim": {"batch_size": 5, "steps": 2},
    }


@pytest.fixture
def make_corpus(tmp_path: Path) -> Callable[..., Corpus]:
    """``make_corpus(rows)`` or ``make_corpus(pairs)``: a prepared corpus of one or two views."""

    def make(rows: Sequence[str | tuple[str, str]]) -> Corpus:
        suffix = ".txt" if isinstance(rows[0], str) else ".tsv"
        path = tmp_path / f"{hashlib.sha256(repr(rows).encode()).hexdigest()[:8]}{suffix}"
        lines = (row if isinstance(row, str) else "\t".join(row) for row in rows)
        path.write_text("\n".join(lines), encoding="utf-8")
        return Corpus.prepare([SourceConfig(path=str(path))], tmp_path, show_progress=False)

    return make


@pytest.fixture
def sentences() -> Callable[[int], list[str]]:
    """``sentences(n)``: n different sentences of toy words, of different lengths."""

    def make(count: int) -> list[str]:
        generator = np.random.default_rng(0)
        return [f"{' '.join(generator.choice(WORDS, 2 + i % 9))} {i}" for i in range(count)]

    return make


@pytest.fixture
def make_batches(make_corpus: Callable[..., Corpus], sentences: Callable[[int], list[str]]) -> Callable[..., Any]:
    """``make_batches(method, 8)``: batches of 8 of 24 sentences, or of ``texts``, for a method without teacher."""

    def make(method: Method, batch_size: int, *, texts: Sequence[str] | int = 24) -> BatchSource:
        rows = sentences(texts) if isinstance(texts, int) else texts
        corpus, tokenizer = make_corpus(rows), method.encoder.tokenizer
        about = {"spec": method.batch_spec, "views": ViewsConfig(), "seed": 0}
        return BatchSource(corpus, tokenizer, batch_size=batch_size, **about)

    return make
