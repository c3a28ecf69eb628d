"""Makes the example importable as ``rewrite``."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from embedkit.runtime.tokenization import Tokenizer

sys.path.insert(0, str(Path(__file__).parents[3] / "examples" / "rewriting"))


@pytest.fixture(scope="session")
def tokenizer(toy_tokenizer_json: str) -> Tokenizer:
    return Tokenizer(toy_tokenizer_json, 16)
