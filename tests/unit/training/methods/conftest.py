"""A toy encoder, its embeddings of five sentences, and batches made by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from embedkit.modeling.encoder import SentenceEncoder
from embedkit.modeling.initialisation import Size, random
from embedkit.runtime.tokenization import Tokenizer
from embedkit.training.method import View

TEXTS = ["the cat will sleep", "a good dog", "my sister likes to read", "the sea", "an old king in the garden"]


@pytest.fixture
def make_encoder(toy_tokenizer_json) -> Callable[..., SentenceEncoder]:
    """Weights are larger than BERT's, with which all embeddings would be alike."""

    def make(pooling: str = "cls") -> SentenceEncoder:
        tokenizer = Tokenizer(toy_tokenizer_json, 16)
        encoder = random(tokenizer, Size(2, 16, 2), max_length=16, seed=3, pooling=pooling)
        with torch.no_grad():
            for parameter in encoder.parameters():
                parameter.mul_(20 if parameter.ndim > 1 else 1)
        return encoder

    return make


@pytest.fixture
def make_view(toy_tokenizer_json) -> Callable[..., View]:
    """Five sentences in two chunks, in another order; ``suffix`` makes another view of them."""

    def make(suffix: str = "") -> View:
        tokenizer = Tokenizer(toy_tokenizer_json, 16)
        order = [3, 0, 4, 1, 2]
        ids = tokenizer.tokenize([TEXTS[place] + suffix for place in order]).ids
        chunks = [tokenizer.pad(ids[:2]), tokenizer.pad(ids[2:])]
        return View(
            tuple((torch.from_numpy(chunk.input_ids), torch.from_numpy(chunk.attention_mask)) for chunk in chunks),
            torch.tensor(order).argsort(),
        )

    return make


@pytest.fixture
def embeddings() -> Callable[..., torch.Tensor]:
    """Return the embedding of each text in evaluation mode, one at a time: ``(5, D)``."""

    def embed(encoder: SentenceEncoder, suffix: str = "") -> torch.Tensor:
        rows = []
        with torch.no_grad():
            for text in TEXTS:
                tokens = encoder.tokenizer.pad(encoder.tokenizer.tokenize([text + suffix]).ids)
                rows.append(
                    encoder.eval()(torch.from_numpy(tokens.input_ids), torch.from_numpy(tokens.attention_mask))
                )
        return torch.cat(rows)

    return embed
