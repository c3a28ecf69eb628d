"""LangChain and LlamaIndex as clients: their classes for OpenAI's embeddings, against embedkit's server."""

from __future__ import annotations

import functools

import numpy as np
import openai
import pytest
import tiktoken
from langchain_openai import OpenAIEmbeddings
from llama_index.embeddings.openai_like import OpenAILikeEmbedding

from embedkit import Encoder

TEXTS = ["a dog in the garden", "Music!", "the sea"]

# The clients decide which texts share a batch.
near = functools.partial(np.testing.assert_allclose, rtol=0, atol=1e-6)


def langchain_client(url, *, model="toy", **settings):
    return OpenAIEmbeddings(model=model, base_url=f"{url}/v1", api_key="none", max_retries=0, **settings)


def test_langchain_gets_the_encoders_embeddings(url, toy_encoder):
    client = langchain_client(url, check_embedding_ctx_length=False, dimensions=5)
    expected = toy_encoder.encode(TEXTS, truncate_dim=5)
    near(np.float32(client.embed_documents(TEXTS, chunk_size=2)), expected)
    near(np.float32(client.embed_query(TEXTS[0])), expected[0])


def test_the_error_for_token_input_names_the_option_of_langchain(url, monkeypatch):
    letters = tiktoken.Encoding(
        "letters", pat_str=".", mergeable_ranks={bytes([n]): n for n in range(256)}, special_tokens={}
    )
    monkeypatch.setattr(tiktoken, "encoding_for_model", lambda _: letters)  # otherwise it is downloaded
    with pytest.raises(openai.BadRequestError, match="check_embedding_ctx_length=False"):
        langchain_client(url).embed_documents(TEXTS)


def test_llama_index_gets_the_encoders_embeddings(url, toy_encoder):
    client = OpenAILikeEmbedding(
        model_name="toy", api_base=f"{url}/v1", api_key="none", max_retries=0, embed_batch_size=2
    )
    expected = toy_encoder.encode(TEXTS)
    near(np.float32(client.get_text_embedding_batch(TEXTS)), expected)
    near(np.float32(client.get_query_embedding(TEXTS[0])), expected[0])


def test_a_prompt_can_be_named(serve, write_toy_bundle, tmp_path):
    encoder = Encoder.load(write_toy_bundle(tmp_path / "prompted.onnx", prompts={"query": "question: "}))
    more, expected = {"extra_body": {"prompt_name": "query"}}, encoder.encode_query("the sea")
    with serve(encoder=encoder) as url:
        one = langchain_client(url, model=encoder.name, check_embedding_ctx_length=False, model_kwargs=more)
        other = OpenAILikeEmbedding(
            model_name=encoder.name, api_base=f"{url}/v1", max_retries=0, additional_kwargs=more
        )
        near(one.embed_query("the sea"), expected)
        near(other.get_query_embedding("the sea"), expected)
