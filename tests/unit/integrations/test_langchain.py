"""LangChain's own classes over embedkit's embeddings, in-process."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from embedkit import Encoder
from embedkit.errors import InputError, ModelNotFoundError
from embedkit.integrations.langchain import EmbedkitEmbeddings

TEXTS = ["a cat sleeps", "the dog barks", "two cats play"]


def test_a_vector_store_finds_neighbours():
    from langchain_core.vectorstores import InMemoryVectorStore

    store = InMemoryVectorStore.from_texts(TEXTS, EmbedkitEmbeddings("tiny", threads=1))
    assert store.similarity_search("a dog is barking", k=1)[0].page_content == "the dog barks"


def test_embeddings_are_the_encoders_with_its_prompts(write_toy_bundle, tmp_path):
    path = write_toy_bundle(tmp_path / "prompted.onnx", prompts={"query": "question: ", "document": "text: "})
    encoder, embeddings = Encoder.load(path), EmbedkitEmbeddings(str(path), truncate_dim=5)
    np.testing.assert_array_equal(
        np.float32(embeddings.embed_documents(TEXTS)), encoder.encode_document(TEXTS, truncate_dim=5)
    )
    np.testing.assert_array_equal(
        np.float32(asyncio.run(embeddings.aembed_query("the sea"))),
        encoder.encode_query("the sea", truncate_dim=5),
    )


def test_no_documents_are_no_embeddings():
    assert EmbedkitEmbeddings().embed_documents([]) == []


def test_mistakes_raise_the_same_errors_as_elsewhere(tmp_path):
    with pytest.raises(ModelNotFoundError):
        EmbedkitEmbeddings(str(tmp_path / "none.onnx"))
    with pytest.raises(InputError):
        EmbedkitEmbeddings().embed_query(7)


def test_model_and_dimension_can_be_read():
    embeddings = EmbedkitEmbeddings("tiny", truncate_dim=8)
    assert (embeddings.model, embeddings.dimension) == ("tiny", 8)
    with pytest.raises(AttributeError):
        embeddings.model = "other.onnx"
