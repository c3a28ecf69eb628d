"""Makes the example importable as ``rewrite``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from embedkit.modeling.encoder import SentenceEncoder
from embedkit.modeling.initialisation import random
from embedkit.modeling.sizes import Size
from embedkit.runtime.tokenization import Tokenizer

sys.path.insert(0, str(Path(__file__).parents[3] / "examples" / "rewriting"))


@pytest.fixture(scope="session")
def tokenizer(toy_tokenizer_json: str) -> Tokenizer:
    return Tokenizer(toy_tokenizer_json, 16)


@pytest.fixture
def make_encoder(tokenizer: Tokenizer) -> Callable[[], SentenceEncoder]:
    """``make_encoder()``: H = 16, one layer."""
    return lambda: random(tokenizer, Size(1, 16, 2), max_length=16, seed=0)
