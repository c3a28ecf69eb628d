"""KeyBERT over embedkit's embeddings, in-process."""

from __future__ import annotations

import numpy as np
import pytest

from embedkit import Encoder
from embedkit.errors import InputError, ModelNotFoundError

pytestmark = pytest.mark.filterwarnings("ignore")  # KeyBERT's dependencies emit many
keybert = pytest.importorskip("keybert")

TEXT = "Bees dance to show other bees where flowers are. The weather was fine."


def backend(*arguments, **settings):
    from embedkit.integrations.keybert import EmbedkitBackend

    return EmbedkitBackend(*arguments, **settings)


def test_keywords_are_those_nearest_to_the_document():
    found = keybert.KeyBERT(backend("tiny", threads=1)).extract_keywords(TEXT, top_n=3)
    assert "bees" in dict(found)
    encoder = Encoder.load("tiny")
    for word, score in found:
        assert score == pytest.approx(float(encoder.encode(word) @ encoder.encode(TEXT)), abs=1e-3)


def test_rows_are_the_encoders(toy_bundle):
    embedder = backend(str(toy_bundle), truncate_dim=5)
    rows = Encoder.load(toy_bundle).encode(["a dog", "the sea"], truncate_dim=5)
    np.testing.assert_array_equal(embedder.embed(np.array(["a dog", "the sea"])), rows)
    assert (embedder.model, embedder.dimension) == (str(toy_bundle), 5)


def test_mistakes_raise_the_same_errors_as_elsewhere(tmp_path, toy_bundle):
    with pytest.raises(ModelNotFoundError):
        backend(str(tmp_path / "none.onnx"))
    with pytest.raises(InputError):
        backend(str(toy_bundle), truncate_dim=99)
    with pytest.raises(InputError, match="documents"):
        backend(str(toy_bundle)).embed([3])
