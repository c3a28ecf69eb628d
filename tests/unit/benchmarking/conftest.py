"""The toy vocabulary."""

import pytest

from embedkit.runtime.tokenization import Tokenizer


@pytest.fixture(scope="session")
def tokenizer(toy_tokenizer_json):
    return Tokenizer(toy_tokenizer_json, 20)
