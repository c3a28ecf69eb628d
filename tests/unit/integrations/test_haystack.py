"""Haystack's own pipelines over embedkit's embeddings, in-process."""

from __future__ import annotations

import numpy as np
import pytest

from embedkit import Encoder
from embedkit.errors import InputError, ModelNotFoundError

pytestmark = pytest.mark.filterwarnings("ignore")  # Haystack's dependencies emit many
haystack = pytest.importorskip("haystack")

TEXTS = ["a cat sleeps", "the dog barks", "two cats play"]


@pytest.fixture
def embedders():
    from embedkit.integrations import haystack as ours

    return ours.EmbedkitTextEmbedder, ours.EmbedkitDocumentEmbedder


def test_a_pipeline_finds_neighbours_and_can_be_stored(embedders):
    from haystack.components.retrievers.in_memory import InMemoryEmbeddingRetriever
    from haystack.document_stores.in_memory import InMemoryDocumentStore

    of_texts, of_documents = embedders
    store = InMemoryDocumentStore(embedding_similarity_function="cosine")
    documents = [haystack.Document(content=text) for text in TEXTS]
    store.write_documents(of_documents("tiny", threads=1).run(documents)["documents"])
    pipeline = haystack.Pipeline()
    pipeline.add_component("embedder", of_texts("tiny", truncate_dim=None, threads=1))
    pipeline.add_component("retriever", InMemoryEmbeddingRetriever(store))
    pipeline.connect("embedder.embedding", "retriever.query_embedding")
    found = pipeline.run({"embedder": {"text": "a dog is barking"}})["retriever"]["documents"]
    assert found[0].content == "the dog barks"
    stored = pipeline.to_dict()["components"]["embedder"]
    assert stored["init_parameters"] == {"model": "tiny", "truncate_dim": None, "threads": 1}
    again = haystack.Pipeline.loads(pipeline.dumps(), allowed_modules=[of_texts.__module__]).get_component(
        "embedder"
    )
    assert again.run("the sea") == of_texts("tiny").run("the sea")


def test_embeddings_are_the_encoders_with_its_prompts(embedders, write_toy_bundle, tmp_path):
    path = write_toy_bundle(tmp_path / "prompted.onnx", prompts={"query": "question: ", "document": "text: "})
    encoder = Encoder.load(path)
    of_texts, of_documents = (kind(str(path), truncate_dim=5) for kind in embedders)
    documents = [haystack.Document(content=text) for text in TEXTS]
    found = of_documents.run(documents)["documents"]
    rows = np.float32([document.embedding for document in found])
    np.testing.assert_array_equal(rows, encoder.encode_document(TEXTS, truncate_dim=5))
    assert [document.embedding for document in documents] == [None] * 3
    query = np.float32(of_texts.run("the sea")["embedding"])
    np.testing.assert_array_equal(query, encoder.encode_query("the sea", truncate_dim=5))
    assert (of_texts.model, of_texts.dimension) == (str(path), 5)
    assert of_documents.run([])["documents"] == []


def test_mistakes_raise_the_same_errors_as_elsewhere(embedders, tmp_path):
    of_texts, of_documents = embedders
    with pytest.raises(ModelNotFoundError):
        of_texts(str(tmp_path / "none.onnx"))
    with pytest.raises(InputError):
        of_texts("tiny").run(7)
    for wrong in (["a text"], 3):
        with pytest.raises(InputError):
            of_documents("tiny").run(wrong)
