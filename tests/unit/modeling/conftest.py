"""Small random encoders over the toy vocabulary."""

from collections.abc import Callable

import pytest

from embedkit.modeling.encoder import SentenceEncoder
from embedkit.modeling.initialisation import Size, random
from embedkit.runtime.tokenization import Tokenizer

TEXTS = [
    "the cat is asleep",
    "a good dog",
    "",
    "where is the train to the city today",
    "unknown gibberish xyzzy",
    "my mother and my sister drive to the sea in summer and swim in the blue water all day long",
]


@pytest.fixture(scope="session")
def texts() -> list[str]:
    return TEXTS


@pytest.fixture(scope="session")
def tokenizer(toy_tokenizer_json: str) -> Tokenizer:
    return Tokenizer(toy_tokenizer_json, 16)


@pytest.fixture
def make_encoder(tokenizer: Tokenizer) -> Callable[..., SentenceEncoder]:
    """``make_encoder(pooling="mean", head=None, seed=0, max_length=16)``: H = 32, two layers, evaluation mode."""

    def make(
        *, pooling: str = "mean", head: int | None = None, seed: int = 0, max_length: int = 16
    ) -> SentenceEncoder:
        encoder = random(tokenizer, Size(2, 32, 2), max_length=max_length, seed=seed, pooling=pooling)
        encoder.set_head(head)
        return encoder.eval()

    return make
