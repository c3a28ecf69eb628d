"""LlamaIndex' own classes over embedkit's embeddings, in-process."""

from __future__ import annotations

import asyncio
import copy
import pickle

import numpy as np
import pytest
from llama_index.core import Document, VectorStoreIndex
from llama_index.core.ingestion import IngestionPipeline

from embedkit import Encoder
from embedkit.errors import InputError
from embedkit.integrations.llama_index import EmbedkitEmbedding

TEXTS = ["a cat sleeps", "the dog barks", "two cats play"]


@pytest.fixture(scope="module")
def embedding():
    return EmbedkitEmbedding(model_name="tiny", threads=1)


def test_an_index_finds_neighbours(embedding):
    documents = [Document(text=text) for text in TEXTS]
    index = VectorStoreIndex.from_documents(documents, embed_model=embedding, transformations=[embedding])
    (found,) = index.as_retriever(similarity_top_k=1).retrieve("a dog is barking")
    assert found.get_content() == "the dog barks"


def test_embeddings_are_the_encoders_with_its_prompts(write_toy_bundle, tmp_path):
    path = write_toy_bundle(tmp_path / "prompted.onnx", prompts={"query": "question: ", "document": "text: "})
    encoder, embedding = Encoder.load(path), EmbedkitEmbedding(model_name=str(path), truncate_dim=5)
    documents, query = encoder.encode_document(TEXTS, truncate_dim=5), encoder.encode_query("a", truncate_dim=5)
    alone = encoder.encode_document("a", truncate_dim=5)
    np.testing.assert_array_equal(np.float32(embedding.get_text_embedding_batch(TEXTS)), documents)
    np.testing.assert_array_equal(np.float32(asyncio.run(embedding.aget_text_embedding("a"))), alone)
    np.testing.assert_array_equal(np.float32(asyncio.run(embedding.aget_text_embedding_batch(TEXTS))), documents)
    np.testing.assert_array_equal(np.float32(asyncio.run(embedding.aget_query_embedding("a"))), query)


def test_it_can_be_pickled(embedding):
    assert_same(pickle.loads(pickle.dumps(embedding)), embedding)


def test_it_can_be_copied(embedding):
    for copied in (copy.copy(embedding), copy.deepcopy(embedding), embedding.model_copy(deep=True)):
        assert_same(copied, embedding)


def assert_same(found, embedding):
    assert found is not embedding
    assert found.get_query_embedding("the sea") == embedding.get_query_embedding("the sea")
    assert found.fingerprint == embedding.fingerprint


def test_the_cache_of_a_pipeline_distinguishes_models_of_one_path(write_toy_bundle, tmp_path):
    path, found = tmp_path / "model.onnx", []
    pipeline = IngestionPipeline(transformations=[])
    for prompts in ({}, {"document": "text: "}):
        write_toy_bundle(path, prompts=prompts)
        pipeline.transformations = [EmbedkitEmbedding(model_name=str(path))]
        found.append(pipeline.run(documents=[Document(text="the sea", id_="1")])[0].embedding)
    assert found[0] != found[1]


def test_the_model_has_the_name_that_it_has_elsewhere(write_toy_bundle, tmp_path):
    path = str(write_toy_bundle(tmp_path / "mine.onnx"))
    for embedding in (EmbedkitEmbedding(path), EmbedkitEmbedding(model=path), EmbedkitEmbedding(model_name=path)):
        assert embedding.model == embedding.model_name == path
        assert embedding.dimension == len(embedding.get_query_embedding("a"))
    assert EmbedkitEmbedding(path, truncate_dim=5).dimension == 5
    with pytest.raises(InputError, match="expected one model"):
        EmbedkitEmbedding(path, model_name="tiny")


@pytest.mark.parametrize(("argument", "near"), [("truncate_dims", "truncate_dim"), ("model_names", "model_name")])
def test_unknown_arguments_are_refused(argument, near):
    with pytest.raises(InputError, match=f"no argument '{argument}'; did you mean '{near}'"):
        EmbedkitEmbedding(**{argument: "mine.onnx"})


@pytest.mark.parametrize("name", ["model", "model_name", "threads", "fingerprint"])
def test_the_model_of_a_live_embedding_cannot_be_changed(embedding, name):
    with pytest.raises(InputError, match=f"{name} of a loaded model cannot be changed"):
        setattr(embedding, name, "other.onnx")
