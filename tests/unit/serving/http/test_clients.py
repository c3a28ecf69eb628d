"""Clients of other servers, in their own packages: their requests are answered, with correct results."""

from __future__ import annotations

import base64

import cohere
import httpx
import numpy as np
import pytest
from huggingface_hub import InferenceClient, close_session
from openai import OpenAI

from embedkit import Encoder

TEXTS = ["a dog in the garden", "the sea", "snow on the mountain"]
LONG = ["a", "word " * 40]
IMAGE = {"type": "image_url", "image_url": {"url": "data:"}}


@pytest.fixture(autouse=True)
def no_session_left():
    yield
    close_session()  # of the hub's client, shared by all its objects


@pytest.fixture
def connection():
    with httpx.Client() as connection:
        yield connection


@pytest.fixture
def expected(toy_encoder):
    return toy_encoder.encode(TEXTS)


def test_the_hubs_client_embeds(url, expected):
    client = InferenceClient(model=f"{url}/embed")
    np.testing.assert_array_equal(client.feature_extraction(TEXTS), expected)
    one = client.feature_extraction(TEXTS[0], normalize=True, truncate=True, truncation_direction="right")
    np.testing.assert_allclose(one, expected[:1], atol=1e-6)


def test_the_hubs_client_compares(url, expected):
    found = InferenceClient(model=f"{url}/similarity").sentence_similarity(TEXTS[0], TEXTS[1:])
    np.testing.assert_allclose(found, expected[1:] @ expected[0], atol=1e-6)


def test_coheres_client_of_version_2_embeds(url, expected, connection):
    client = cohere.ClientV2(api_key="none", base_url=url, httpx_client=connection)
    types = ["float", "base64", "binary", "ubinary"]
    done = client.embed(model="toy", input_type="clustering", texts=TEXTS, embedding_types=types)
    np.testing.assert_array_equal(np.float32(done.embeddings.float_), expected)
    np.testing.assert_array_equal(np.uint8(done.embeddings.ubinary), np.packbits(expected > 0, axis=1))
    np.testing.assert_array_equal(np.int16(done.embeddings.binary), np.int16(done.embeddings.ubinary) - 128)
    rows = [np.frombuffer(base64.b64decode(row), "<f4") for row in done.model_dump()["embeddings"]["base64"]]
    np.testing.assert_array_equal(rows, expected)
    assert done.meta.billed_units.input_tokens > 0


def test_coheres_inputs_are_texts(url, toy_encoder, connection):
    client = cohere.ClientV2(api_key="none", base_url=url, httpx_client=connection)
    parts = [["a dog", "in the garden"], ["the sea"]]
    inputs = [cohere.EmbedInput(content=[cohere.TextEmbedContent(text=text) for text in texts]) for texts in parts]
    done = client.embed(model="toy", input_type="clustering", inputs=inputs, embedding_types=["float"])
    texts = ["a dog\nin the garden", "the sea"]
    np.testing.assert_array_equal(np.float32(done.embeddings.float_), toy_encoder.encode(texts))
    assert done.texts == texts


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of cohere's own models
def test_coheres_client_of_version_1_embeds(url, expected, connection):
    client = cohere.Client(api_key="none", base_url=url, httpx_client=connection)
    done = client.embed(model="toy", input_type="search_document", texts=TEXTS)
    np.testing.assert_array_equal(np.float32(done.embeddings), expected)
    assert done.meta.api_version.version == "1"
    done = client.embed(model="toy", input_type="search_document", texts=TEXTS, embedding_types=["float"])
    np.testing.assert_array_equal(np.float32(done.embeddings.float_), expected)


def test_openais_client_retrieves_models(url):
    with OpenAI(base_url=f"{url}/v1", api_key="none") as client:
        assert client.models.retrieve("toy").id == "toy"
        assert client.models.retrieve("text-embedding-3-small").id == "toy"
    assert httpx.get(f"{url}/v1/models/another").status_code == 404


def test_jinas_objects_are_texts(client, expected):
    content = {"model": "toy", "input": [{"text": text} for text in TEXTS], "task": "retrieval.passage"}
    done = client.post("/v1/embeddings", json=content)
    np.testing.assert_array_equal(np.float32([row["embedding"] for row in done.json()["data"]]), expected)


@pytest.mark.parametrize("name", ["embedding_type", "output_dtype", "embedding_types"])
def test_the_type_of_numbers_has_the_name_of_each_client(client, toy_encoder, expected, name):
    def embed(kind, **more):
        content = {"input": TEXTS, name: [kind] if name == "embedding_types" else kind, **more}
        done = client.post("/v1/embeddings", json=content)
        assert done.status_code == 200, done.text
        return [row["embedding"] for row in done.json()["data"]]

    np.testing.assert_array_equal(embed("ubinary"), np.packbits(expected > 0, axis=1))
    np.testing.assert_array_equal(
        embed("binary", dimensions=8), toy_encoder.pack(expected, "binary", truncate_dim=8)
    )
    np.testing.assert_array_equal(np.float32(embed("float")), expected)
    coded = [np.frombuffer(base64.b64decode(row), "<f4") for row in embed("base64")]
    np.testing.assert_array_equal(coded, expected)
    coded = [np.frombuffer(base64.b64decode(row), "u1") for row in embed("ubinary", encoding_format="base64")]
    np.testing.assert_array_equal(coded, np.packbits(expected > 0, axis=1))


@pytest.fixture(scope="module")
def prompted(write_toy_bundle, tmp_path_factory):
    """An encoder with prompts for queries and documents."""
    path = tmp_path_factory.mktemp("prompted") / "prompted.onnx"
    return Encoder.load(write_toy_bundle(path, prompts={"query": "sea ", "document": "dog "}), threads=1)


@pytest.mark.parametrize(
    ("option", "role"),
    [
        ({"task": "retrieval.query"}, "query"),
        ({"task": "retrieval.passage"}, "document"),
        ({"task": "text-matching"}, None),
        ({"input_type": "query"}, "query"),
        ({"input_type": "document"}, "document"),
        ({"input_type": "query", "prompt_name": "document"}, "document"),
    ],
)
def test_the_task_of_jina_and_the_type_of_voyage_select_the_prompt(serve, prompted, option, role):
    encode = {"query": prompted.encode_query, "document": prompted.encode_document, None: prompted.encode}[role]
    with serve(encoder=prompted) as url:
        done = httpx.post(f"{url}/v1/embeddings", json={"input": TEXTS, **option}).json()
        ids = httpx.post(f"{url}/v1/embeddings", json={"input": [5], "tokenizer": prompted.name, **option})
    np.testing.assert_array_equal(np.float32([row["embedding"] for row in done["data"]]), encode(TEXTS))
    assert ids.status_code == (200 if role is None else 400)


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/v2/embed", {"texts": []}, "texts"),
        ("/v2/embed", {}, "expected either texts or inputs"),
        (
            "/v2/embed",
            {"texts": ["a"], "inputs": [{"content": [{"type": "text", "text": "a"}]}]},
            "either texts or",
        ),
        ("/v2/embed", {"inputs": [{"content": []}]}, "inputs.0.content"),
        ("/v2/embed", {"inputs": [{"content": [{"type": "text"}]}]}, "inputs.0.content.0.text: Field required"),
        ("/v2/embed", {"inputs": [{"content": [IMAGE]}]}, "inputs.0.content.0: images are not supported, only"),
        ("/v2/embed", {"images": ["data:image/png;base64,"]}, "images: images are not supported, only texts"),
        ("/v2/embed", {"texts": ["a"], "truncate": "START"}, "truncate"),
        ("/v2/embed", {"texts": ["a"], "embedding_types": ["int4"]}, "embedding_types"),
        ("/v2/embed", {"texts": ["a"], "embedding_types": ["int8"]}, "--calibration"),
        ("/v2/embed", {"texts": ["a"], "output_dimension": 17}, "from 1 to 16"),
        ("/v2/embed", {"texts": ["a"], "output_dtype": "int8"}, "list the types in embedding_types"),
        ("/v2/embed", {"texts": ["a"], "embedding_type": "float"}, "list the types in embedding_types"),
        ("/v1/embeddings", {"input": LONG, "truncate": False}, "longer than 12 tokens, the first at position 1"),
        ("/v1/embeddings", {"input": LONG, "truncation": False}, "longer than 12 tokens, the first at position 1"),
        (
            "/v1/embeddings",
            {"input": "a", "truncate": True, "truncation": False},
            "truncate and truncation: expected",
        ),
        ("/v1/embeddings", {"input": "a", "dimensions": 3, "output_dimension": 4}, "expected one value, got 3, 4"),
        ("/v1/embeddings", {"input": "a", "late_chunking": True}, "late_chunking: not supported"),
        ("/v1/embeddings", {"input": "a", "normalized": False}, "normalized: false is not supported"),
        ("/v1/embeddings", {"input": "a", "embedding_type": "int4"}, "embedding_type"),
        ("/v1/embeddings", {"input": "a", "embedding_type": "int8"}, "--calibration"),
        ("/v1/embeddings", {"input": "a", "embedding_type": ["float", "binary"]}, "expected one type, got binary"),
        (
            "/v1/embeddings",
            {"input": "a", "embedding_type": "float", "output_dtype": "binary"},
            "expected one type",
        ),
        ("/v1/embeddings", {"input": "a", "output_dtype": "binary", "dimensions": 17}, "from 1 to 16"),
    ],
)
def test_an_option_of_another_server_that_cannot_be_met_is_refused_by_name(client, path, body, words):
    done = client.post(path, json={"model": "toy", **body})
    assert done.status_code == 400
    assert words in done.json()["error"]["message"]


def test_ollamas_client_embeds(url, expected):
    ollama = pytest.importorskip("ollama")
    client = ollama.Client(host=url)
    assert [model.model for model in client.list().models] == ["toy:latest"]
    assert client.show("toy").capabilities == ["embedding"]
    for model in ("toy", "toy:latest", "text-embedding-3-small"):
        done = client.embed(model=model, input=TEXTS, options={"num_ctx": 512}, keep_alive="5m")
        np.testing.assert_array_equal(np.float32(done.embeddings), expected)
        assert done.prompt_eval_count > 0
    one = np.float32(client.embed(model="toy", input=TEXTS[0]).embeddings)
    np.testing.assert_allclose(one, expected[:1], atol=1e-6)
    one = np.float32(client.embeddings(model="toy", prompt=TEXTS[0]).embedding)
    np.testing.assert_allclose(one, expected[0], atol=1e-6)
    with pytest.raises(ollama.ResponseError, match="no model 'another'"):
        client.embed(model="another", input="a")
    client._client.close()


def test_ollamas_client_loads_a_model_without_a_text(url):
    ollama = pytest.importorskip("ollama")
    client = ollama.Client(host=url)
    done = client.embed(model="toy", input=[], dimensions=4)
    assert (done.embeddings, done.prompt_eval_count) == ([], 0)
    assert client.embeddings(model="toy").embedding == []
    assert client._request_raw("POST", "/api/embed", json={"model": "toy"}).json()["embeddings"] == []
    with pytest.raises(ollama.ResponseError, match="no model 'another'"):
        client.embed(model="another", input=[])
    client._client.close()


@pytest.mark.parametrize("name", ["nomic-embed-text:latest", "toy:latest", "toy"])
def test_an_alias_may_have_ollamas_tag(serve, toy_encoder, name):
    with serve(aliases=("nomic-embed-text:latest",)) as url:
        done = httpx.post(f"{url}/api/embed", json={"model": name, "input": TEXTS}).json()
    np.testing.assert_array_equal(np.float32(done["embeddings"]), toy_encoder.encode(TEXTS))


def test_ollamas_routes_answer_in_its_form(client, toy_encoder, expected):
    done = client.post("/api/embed", json={"model": "toy", "input": TEXTS, "dimensions": 4}).json()
    np.testing.assert_array_equal(np.float32(done["embeddings"]), toy_encoder.encode(TEXTS, truncate_dim=4))
    done = client.post("/api/embeddings", json={"model": "toy", "prompt": TEXTS[0]}).json()
    np.testing.assert_allclose(np.float32(done["embedding"]), expected[0], atol=1e-6)
    long = {"model": "toy", "input": "word " * 40, "truncate": False}
    assert "longer than" in client.post("/api/embed", json=long).json()["error"]
    (model,) = client.get("/api/tags").json()["models"]
    assert (model["name"], model["digest"]) == ("toy:latest", toy_encoder.fingerprint)
    assert client.get("/api/version").json()["version"]
    info = client.post("/api/show", json={"model": "toy"}).json()["model_info"]
    assert info["encoder.embedding_length"] == 16


@pytest.mark.parametrize(
    ("truncate", "status"), [({}, 200), ({"truncate": True}, 200), ({"truncate": False}, 400)]
)
def test_the_request_decides_whether_long_texts_are_truncated(client, truncate, status):
    assert client.post("/embed", json={"inputs": LONG, **truncate}).status_code == status


def test_info_describes_the_model_and_the_limits(client, toy_encoder):
    info = client.get("/info").json()
    assert info["model_id"] == "toy"
    assert info["model_sha"] == toy_encoder.fingerprint
    assert info["model_numerics"] == toy_encoder.numerics
    assert info["max_input_length"] == toy_encoder.max_length
    assert info["max_client_batch_size"] == 2048


def test_tokens_come_with_their_characters(client, toy_encoder):
    text = "A dog, sleeping"
    (found,) = client.post("/tokenize", json={"inputs": text}).json()
    assert [one["id"] for one in found] == list(toy_encoder.tokenize([text]).ids[0])
    assert [one["text"] for one in found if not one["special"]] == ["A", "dog", ",", "sleep", "ing"]
    assert all(text[one["start"] : one["stop"]] == one["text"] for one in found if not one["special"])
    assert [(one["text"], one["start"]) for one in found if one["special"]] == [("[CLS]", None), ("[SEP]", None)]


def test_tokens_are_not_cut_and_may_be_without_special_ones(client):
    found = client.post("/tokenize", json={"inputs": LONG, "add_special_tokens": False}).json()
    assert list(map(len, found)) == [1, 40]
