"""Several models in one server: each request selects one by name, and the collection the one that built it."""

from __future__ import annotations

import httpx
import numpy as np
import pytest

from embedkit import Collection, CrossEncoder, Encoder
from embedkit.errors import ConfigError, FingerprintError, ModelError
from embedkit.serving.http.registry import LoadedModels, Service
from embedkit.serving.http.settings import ServerSettings

from .conftest import serving

TEXTS = ["a dog in the garden", "the sea and a boat", "snow on the mountain in winter"]


@pytest.fixture(scope="module")
def short_bundle(write_toy_bundle, tmp_path_factory):
    """Another model: it reads at most five tokens."""
    return write_toy_bundle(tmp_path_factory.mktemp("short") / "short.onnx", name="short", max_length=5)


@pytest.fixture(scope="module")
def short(short_bundle):
    return Encoder.load(short_bundle, threads=1)


@pytest.fixture(scope="module")
def two(serve, short):
    with serve(more=[short], aliases=("other", "small=short")) as url, httpx.Client(base_url=url) as client:
        yield client


@pytest.mark.parametrize(
    ("path", "content", "rows"),
    [
        ("/v1/embeddings", {"input": TEXTS}, lambda done: [row["embedding"] for row in done["data"]]),
        ("/v2/embed", {"texts": TEXTS}, lambda done: done["embeddings"]["float"]),
        ("/embed", {"inputs": TEXTS}, lambda done: done),
    ],
)
@pytest.mark.parametrize(
    ("name", "real"), [(None, "toy"), ("other", "toy"), ("short", "short"), ("small", "short")]
)
def test_the_requested_model_answers(two, toy_encoder, short, path, content, rows, name, real):
    done = two.post(path, json={**content, "model": name}).json()
    encoder = {"toy": toy_encoder, "short": short}[real]
    np.testing.assert_array_equal(np.float32(rows(done)), encoder.encode(TEXTS))
    if path == "/v1/embeddings":
        assert done["model"] == real


def test_similarity_and_ranks_use_the_requested_model(two, short):
    query, *others = short.encode(TEXTS)
    content = {"inputs": {"source_sentence": TEXTS[0], "sentences": TEXTS[1:]}, "model": "short"}
    np.testing.assert_allclose(two.post("/similarity", json=content).json(), others @ query, atol=1e-6)
    done = two.post("/v1/rerank", json={"model": "short", "query": TEXTS[0], "documents": TEXTS[1:]}).json()
    assert done["model"] == "short"
    scores = [row["relevance_score"] for row in sorted(done["results"], key=lambda row: row["index"])]
    np.testing.assert_allclose(scores, others @ query, atol=1e-6)


def test_all_models_are_listed_and_described(two, toy_encoder, short):
    cards = two.get("/v1/models").json()["data"]
    assert {card["id"]: card["fingerprint"] for card in cards} == {
        "toy": toy_encoder.fingerprint,
        "short": short.fingerprint,
    }
    assert {card["numerics"] for card in cards} == {toy_encoder.numerics}
    assert two.get("/v1/models/small").json()["id"] == "short"
    assert two.get("/v1/models/other").json()["id"] == "toy"
    assert two.get("/info").json()["model_id"] == "toy"
    assert two.get("/info", params={"model": "short"}).json()["max_input_length"] == 5


@pytest.mark.parametrize("path", ["/v1/embeddings", "/embed", "/v1/models/nix"])
def test_an_unknown_model_is_refused_with_the_known_names(two, path):
    content = {"input": "a", "inputs": "a", "model": "nix"}
    done = two.get(path) if path.endswith("nix") else two.post(path, json=content)
    assert done.status_code == 404
    assert "'toy', 'short'" in done.text


def test_metrics_are_by_model(serve, short):
    with serve(more=[short]) as url, httpx.Client(base_url=url) as client:
        client.post("/embed", json={"inputs": TEXTS, "model": "short"})
        metrics = client.get("/metrics").text
    tokens = sum(map(len, short.tokenize(TEXTS).ids))
    assert f'embedkit_tokens_total{{model="short"}} {tokens}.0' in metrics
    assert 'embedkit_tokens_total{model="toy"} 0.0' in metrics
    assert 'embedkit_truncated_texts_total{model="short"} 3.0' in metrics
    assert 'embedkit_queue_tokens{model="short"} 0.0' in metrics


def test_the_reranker_ranks_unless_an_encoder_is_named(serve, short, toy_cross_bundle):
    cross = CrossEncoder.load(toy_cross_bundle, threads=1)
    content = {"query": TEXTS[0], "documents": TEXTS[1:]}
    with serve(more=[short], reranker=cross) as url, httpx.Client(base_url=url) as client:
        names = [
            client.post("/v2/rerank", json={**content, **more}).json()["model"]
            for more in ({}, {"model": "short"})
        ]
        refused = client.post("/v1/embeddings", json={"input": "a", "model": "toy-cross"})
    assert names == ["toy-cross", "short"]
    assert refused.status_code == 404  # it cannot embed


def test_a_collection_is_searched_with_the_model_that_built_it(
    serve, short, short_bundle, toy_bundle, tmp_path, monkeypatch
):
    built = Collection.build(TEXTS, encoder=short, path=tmp_path / "idx", show_progress_bar=False)
    settings = ServerSettings(port=0, collection=str(tmp_path / "idx"), threads=1)
    loaded = LoadedModels.load([str(toy_bundle), str(short_bundle)], settings)
    with serve(more=[loaded.encoders[1]], collection=loaded.collection) as url:
        done = httpx.post(f"{url}/v1/search", json={"query": "a dog"}).json()
        assert httpx.get(f"{url}/v1/collection").json()["model"] == "short"
    assert [hit["score"] for hit in done["hits"]] == [hit.score for hit in built.search("a dog")]
    monkeypatch.setattr("embedkit.serving.retrieval.models.LEAST_AGREEMENT", 1.1)
    with pytest.raises(FingerprintError, match=r"toy .*short"):
        LoadedModels.load([str(toy_bundle)], settings)


def test_without_models_the_collection_s_own_is_loaded(toy_encoder, toy_bundle, tmp_path, monkeypatch):
    path, threads, load = tmp_path / "idx", [], Encoder.load
    Collection.build(TEXTS, encoder=toy_encoder, path=path, source=str(toy_bundle), show_progress_bar=False)
    monkeypatch.setattr(
        Encoder, "load", lambda *source, **options: threads.append(options["threads"]) or load(*source)
    )
    loaded = LoadedModels.load([], ServerSettings(collection=str(path), threads=1))
    assert [encoder.fingerprint for encoder in loaded.encoders] == [toy_encoder.fingerprint]
    assert loaded.collection.query_encoder is loaded.encoders[0]
    assert threads == [1]


@pytest.mark.parametrize(
    ("aliases", "words"),
    [
        (("a=b",), "aliases: 'a=b' names an unknown model"),
        *((one, "would be the name of two models") for one in [("short=toy",), ("short",), ("a=toy", "a=short")]),
    ],
)
def test_a_name_of_no_model_or_of_two_does_not_start(toy_encoder, short, aliases, words):
    with pytest.raises(ConfigError, match=words):
        Service(ServerSettings(aliases=aliases), lambda: LoadedModels([toy_encoder, short]))
    with pytest.raises(ConfigError, match="two models are named 'toy'"):
        Service(ServerSettings(), lambda: LoadedModels([toy_encoder, toy_encoder]))


def test_a_model_that_computes_something_else_here_does_not_start(toy_bundle, monkeypatch):
    monkeypatch.setattr(
        Encoder, "verify", lambda _: {"passed": False, "same_bits": None, "difference": 0.5, "tolerance": 1e-4}
    )
    with pytest.raises(ModelError, match=r"toy computes other results .*difference 0\.5, tolerance 0\.0001"):
        LoadedModels.load([str(toy_bundle)], ServerSettings(threads=1))


@pytest.mark.parametrize("name", ["given.onnx", "given", "toy", "full path"])
def test_a_model_answers_to_the_name_under_which_it_was_given(toy_bundle, tmp_path, name):
    path = tmp_path / "given.onnx"
    path.write_bytes(toy_bundle.read_bytes())
    loaded = LoadedModels.load([str(path)], ServerSettings(threads=1))
    with serve_loaded(loaded) as url:
        wanted = str(path) if name == "full path" else name
        done = httpx.post(f"{url}/v1/embeddings", json={"input": "a dog", "model": wanted})
        assert (done.status_code, done.json()["model"]) == (200, "toy")


def test_a_name_of_two_files_is_no_name(toy_bundle, short_bundle, tmp_path):
    paths = [tmp_path / folder / "model.onnx" for folder in ("one", "two")]
    for path, bundle in zip(paths, (toy_bundle, short_bundle), strict=True):
        path.parent.mkdir()
        path.write_bytes(bundle.read_bytes())
    loaded = LoadedModels.load(list(map(str, paths)), ServerSettings(threads=1))
    with serve_loaded(loaded) as url:
        asked = [*map(str, paths), "model"]
        found = [httpx.post(f"{url}/v1/embeddings", json={"input": "a", "model": name}) for name in asked]
    assert [done.status_code for done in found] == [200, 200, 404]
    assert [done.json()["model"] for done in found[:2]] == ["toy", "short"]


def serve_loaded(loaded):
    return serving(Service(ServerSettings(port=0), lambda: loaded))
