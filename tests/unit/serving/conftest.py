"""An encoder that needs no model: words are hashed to directions, so texts that share words are similar."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from embedkit.serving.retrieval import Collection

DOCUMENTS = [
    {"id": "bees", "text": "how bees find their way home", "year": 1973},
    {"id": "ships", "text": "how ships find their way by stars", "year": 1802},
    {"id": "bread", "text": "bread of rye\nand water", "year": None},
    {"id": "雪", "text": "snow — 雪が降る \u2028 and ice", "tags": ["ü", "\x00"]},
    {"id": "tea", "text": "tea"},
]


class WordEncoder:
    """A deterministic TextEncoder; counts its calls."""

    max_length = 512

    def __init__(self, name: str = "words", dimension: int = 16) -> None:
        self.name, self.dimension = name, dimension
        self.fingerprint = hashlib.sha256(f"{name}/{dimension}".encode()).hexdigest()
        self.calls: list[list[str]] = []

    def encode(self, texts: Sequence[str], /) -> np.ndarray:
        self.calls.append(list(texts))
        rows = np.array([self._row(text) for text in texts], dtype=np.float32)
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)

    def _row(self, text: str) -> np.ndarray:
        words = text.lower().split() or [""]
        return np.sum([self._direction(word) for word in words], axis=0)

    def _direction(self, word: str) -> np.ndarray:
        seed = int.from_bytes(hashlib.sha256(f"{self.name}:{word}".encode()).digest()[:8], "little")
        return np.random.default_rng(seed).standard_normal(self.dimension)


class PromptedEncoder(WordEncoder):
    """Prefixes each text with a word, which differs between queries and documents."""

    def encode_query(self, texts: Sequence[str], /, *, show_progress_bar: bool | None = None) -> np.ndarray:
        return self.encode([f"query: {text}" for text in texts])

    def encode_document(self, texts: Sequence[str], /, *, show_progress_bar: bool | None = None) -> np.ndarray:
        return self.encode([f"passage: {text}" for text in texts])


@pytest.fixture
def encoder() -> WordEncoder:
    return WordEncoder()


@pytest.fixture
def prompted_encoder() -> PromptedEncoder:
    return PromptedEncoder()


@pytest.fixture
def other_encoder() -> WordEncoder:
    return WordEncoder("other-words")


@pytest.fixture
def documents() -> list[dict[str, object]]:
    return [dict(document) for document in DOCUMENTS]


@pytest.fixture
def collection(tmp_path: Path, encoder: WordEncoder) -> Collection:
    """The five documents."""
    return Collection.build(DOCUMENTS, encoder=encoder, path=tmp_path / "idx")
