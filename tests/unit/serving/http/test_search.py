"""Search and documents: the collection's results, and writes only where the operator allows them."""

from __future__ import annotations

import json
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest

from embedkit import Collection, CrossEncoder, Encoder
from embedkit.serving.http import collection_service
from embedkit.serving.http.collection_service import to_plane
from embedkit.write_lock import write_lock

from .conftest import wait_for

DOCUMENTS = [
    {"id": "dog", "text": "a dog in the garden", "year": 1973, "big": 10**30},
    {"id": "sea/side", "text": "the sea and a boat", "year": 1802},
    {"id": "雪", "text": "snow on the mountain"},
]


@pytest.fixture
def collection(build):
    return build(DOCUMENTS, lexical=True)


@pytest.fixture
def reading(serve, collection):
    with serve(collection=collection) as url, httpx.Client(base_url=url) as client:
        yield client


@pytest.fixture
def writing(serve, collection):
    with (
        serve(collection=collection, allow_writes=True, refresh_s=0) as url,
        httpx.Client(base_url=url, timeout=60) as client,
    ):
        yield client


def test_hits_equal_the_collections(reading, collection):
    done = reading.post("/v1/search", json={"query": "a dog", "k": 2}).json()
    expected = collection.search("a dog", k=2)
    assert [(hit["id"], hit["score"]) for hit in done["hits"]] == [(hit.id, hit.score) for hit in expected]
    assert done["hits"][0]["metadata"] == {"year": 1973, "big": 10**30}
    assert set(done["latency_ms"]) >= {"encode", "dense"}


@pytest.mark.parametrize("way", [{}, {"mode": "hybrid"}])
def test_words_are_fused_in(reading, collection, way):
    done = reading.post("/v1/search", json={"query": "a dog", "k": 3, **way}).json()
    expected = collection.search("a dog", k=3, mode="hybrid")
    assert [(hit["id"], hit["scores"]) for hit in done["hits"]] == [(hit.id, hit.scores) for hit in expected]
    assert "lexical" in done["latency_ms"]


@pytest.mark.parametrize("weight", [{}, {"rerank_weight": 0.4}])
def test_the_reranker_decides_the_order(serve, collection, toy_cross_bundle, weight):
    reranker = CrossEncoder.load(toy_cross_bundle, threads=1)
    with serve(collection=collection, reranker=reranker) as url:
        done = httpx.post(f"{url}/v1/search", json={"query": "a dog", "rerank": True, **weight}).json()
        card = httpx.get(f"{url}/v1/collection").json()
    expected = collection.search("a dog", rerank=reranker, **weight)
    assert [hit["id"] for hit in done["hits"]] == [hit.id for hit in expected]
    assert list(done["hits"][0]["scores"]) == list(expected[0].scores)
    assert [hit["score"] for hit in done["hits"]] == pytest.approx([hit.score for hit in expected], abs=1e-5)
    assert card == {"model": "toy", "reranker": "toy-cross", "documents": 3, "lexical": True, "index": "exact"}


def test_without_a_reranker_reranking_is_refused(reading):
    done = reading.post("/v1/search", json={"query": "a", "rerank": True})
    assert done.status_code == 400
    assert "no re-ranker" in done.json()["error"]["message"]


def test_the_map_holds_every_document_and_follows_the_collection(writing):
    found = writing.get("/v1/collection/map").json()
    assert sorted(point["id"] for point in found["points"]) == sorted(document["id"] for document in DOCUMENTS)
    assert all(-1 <= point[axis] <= 1 for point in found["points"] for axis in "xy")
    writing.post("/v1/documents/delete", json={"ids": ["dog"]})
    assert len(writing.get("/v1/collection/map").json()["points"]) == 2


def test_a_filter_may_be_written(reading):
    done = reading.post("/v1/search", json={"query": "a dog", "filter": "year < 1900"}).json()
    assert [hit["id"] for hit in done["hits"]] == ["sea/side"]
    wrong = reading.post("/v1/search", json={"query": "a dog", "filter": "year 1900"})
    assert wrong.status_code == 400
    assert wrong.json()["error"]["message"].startswith("filter: 'year 1900' is not a condition")
    long = reading.post("/v1/search", json={"query": "a dog", "filter": f"lang = {'a' * 1_000_000}"})
    assert long.status_code == 413


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "query: Field required"),
        ({"query": 3}, "query: Input should be a valid string"),
        ({"query": "a", "k": 0}, "k: Input should be greater than or equal to 1"),
        ({"query": "a", "k": 1001}, "k: Input should be less than or equal to 1000"),
        ({"query": "a", "k": "5"}, "k: Input should be a valid integer"),
        ({"query": "a", "filter": {"year": {"nix": 1}}}, "has no operator 'nix'"),
        ({"query": "a", "filter": 5}, "filter: Input should be an object, or a valid string"),
        ({"query": "a", "mode": "bm25"}, "mode: Input should be 'hybrid', 'dense' or 'lexical'"),
        ({"query": "a", "effort": 0}, "effort"),
        ({"query": "a", "effort": 17}, "effort"),
        ({"query": "a", "filtre": {"year": 1}}, "filtre: unknown field; did you mean 'filter'?"),
        ({"query": "a", "metadata": {"year": 1}}, "metadata: unknown field; the fields are query, k"),
        ({"text": "a"}, "text: unknown field; the fields are query, k"),
        ({"query": "a", "k": 3, "top_k": 4}, "k is given twice"),
        ({"query": "a", "filter": {}, "filters": {}}, "filter is given twice"),
    ],
)
def test_a_search_that_cannot_be_made_is_refused_by_the_name_of_its_field(reading, body, words):
    done = reading.post("/v1/search", json=body)
    assert done.status_code == 400
    assert words in done.json()["error"]["message"]


@pytest.mark.parametrize("name", ["k", "top_k", "limit"])
def test_names_of_other_servers_are_understood(reading, name):
    done = reading.post("/v1/search", json={"q": "a dog", name: 1, "filters": {"year": {"lt": 1900}}})
    assert [hit["id"] for hit in done.json()["hits"]] == ["sea/side"]


def test_fields_beside_the_text_are_metadata_as_in_a_file(writing):
    flat = {"id": "flat", "text": "a cat", "lang": "en", "tags": ["a"], "place": {"city": "Bern"}}
    nested = {"id": "both", "text": "a cat", "lang": "en", "metadata": {"year": 7}}
    assert writing.post("/v1/documents", json={"documents": [flat, nested]}).json() == {"added": 2, "replaced": 0}
    assert writing.get("/v1/documents/flat").json()["metadata"] == {
        "lang": "en",
        "tags": ["a"],
        "place": {"city": "Bern"},
    }
    assert writing.get("/v1/documents/both").json()["metadata"] == {"lang": "en", "year": 7}
    hits = writing.post("/v1/search", json={"query": "a cat", "filter": {"lang": "en"}}).json()["hits"]
    assert {hit["id"] for hit in hits} == {"flat", "both"}


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/v1/documents", {"id": "x", "text": "a"}, "id: unknown field; the fields are documents"),
        ("/v1/documents", {"document": [{"id": "x", "text": "a"}]}, "did you mean 'documents'?"),
        ("/v1/documents", {"documents": [{"id": "x", "text": "a", "meta": {"n": 1}}]}, "did you mean 'metadata'?"),
        ("/v1/documents", {"documents": [{"id": "x", "text": "a", "n": 1, "metadata": {"n": 2}}]}, "'n' is given"),
        (
            "/v1/documents",
            {"documents": [{"id": "x", "text": "a"}, {"id": "y", "text": " "}]},
            "document 2: the text is empty; skip",
        ),
        ("/v1/documents/delete", {"id": ["dog"]}, "id: unknown field; did you mean 'ids'?"),
        ("/v1/documents/delete", {"ids": [], "filter": {"year": 1}}, "expected either ids or a filter"),
    ],
)
def test_a_wrong_field_of_a_write_is_an_error_and_changes_nothing(writing, collection, path, body, words):
    done = writing.post(path, json=body)
    assert done.status_code == 400
    assert words in done.json()["error"]["message"]
    assert len(Collection.open(collection.path)) == 3


@pytest.mark.parametrize("id_", ["dog", "sea/side", "雪"])
def test_a_document_is_found_by_its_id(reading, id_):
    assert reading.get(f"/v1/documents/{id_}").json()["id"] == id_


def test_a_missing_document_is_a_404(reading):
    assert reading.get("/v1/documents/cat").status_code == 404


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/documents", {"documents": []}),
        ("/v1/documents/update", {"documents": []}),
        ("/v1/documents/delete", {"ids": []}),
    ],
)
def test_writes_are_refused_unless_allowed(reading, path, body):
    assert reading.post(path, json=body).status_code in {404, 405}
    assert path not in reading.get("/openapi.json").json()["paths"]


def test_documents_are_added_replaced_and_deleted(writing, collection):
    documents = [{"id": "cat", "text": "a cat", "metadata": {"year": 7}}, {"id": "dog", "text": "another dog"}]
    assert writing.post("/v1/documents", json={"documents": documents}).json() == {"added": 1, "replaced": 1}
    assert writing.get("/v1/documents/cat").json() == documents[0]
    assert writing.get("/v1/documents/dog").json()["text"] == "another dog"
    assert writing.post("/v1/documents/delete", json={"ids": ["cat", "nix"]}).json() == {"deleted": 1}
    assert writing.get("/v1/documents/cat").status_code == 404
    assert len(Collection.open(collection.path)) == 3  # on disk when it was answered


def test_metadata_are_changed_without_embedding_texts(writing, collection, toy_encoder, monkeypatch):
    before = writing.get("/v1/documents/dog").json()
    monkeypatch.setattr(type(toy_encoder), "encode", None)
    changes = [{"id": "dog", "metadata": {"year": 7, "new": [1]}}, {"id": "nix"}, {"id": "雪", "year": 8}]
    assert writing.post("/v1/documents/update", json={"documents": changes}).json() == {"updated": 2}
    after = writing.get("/v1/documents/dog").json()
    assert after == before | {"metadata": before["metadata"] | {"year": 7, "new": [1]}}
    assert Collection.open(collection.path).count({"year": {"in": [7, 8]}}) == 2
    for wrong, message in [
        ([{"id": "dog", "text": "a"}], "metadata: 'text' is a field of the document itself; choose another name"),
        ([{"id": "dog"}, {"id": "dog"}], "documents: the id 'dog' occurs twice"),
    ]:
        done = writing.post("/v1/documents/update", json={"documents": wrong})
        assert done.status_code == 400
        assert done.json()["error"]["message"] == message


@pytest.mark.parametrize("written", [{"year": {"lt": 1900}}, "year < 1900"])
def test_documents_are_listed_counted_and_deleted_by_a_filter(writing, collection, written):
    listed = writing.post("/v1/documents/find", json={"limit": 2, "offset": 1}).json()["documents"]
    assert [document["id"] for document in listed] == ["sea/side", "雪"]
    found = writing.post("/v1/documents/find", json={"filter": written}).json()
    assert found == {"documents": [writing.get("/v1/documents/sea%2Fside").json()], "warnings": []}
    assert writing.post("/v1/documents/count", json={"filter": written}).json() == {"count": 1, "warnings": []}
    assert writing.post("/v1/documents/count", json={}).json()["count"] == 3
    assert writing.post("/v1/documents/delete", json={"filter": written}).json() == {"deleted": 1}
    assert len(Collection.open(collection.path)) == 2


def test_a_filter_on_an_unknown_field_is_named_and_deletes_nothing(writing, collection):
    for path, empty in [("find", []), ("count", 0)]:
        done = writing.post(f"/v1/documents/{path}", json={"filter": {"yaer": 1}}).json()
        assert done.pop("warnings") == ["filter: no document has the field 'yaer'; did you mean 'year'?"]
        assert list(done.values()) == [empty]
    for body in (
        {"filter": {"yaer": 1}},
        {"filter": {"not": {"yaer": 1}}},
        {"filter": {}},
        {},
        {"ids": [], "filter": ""},
    ):
        assert writing.post("/v1/documents/delete", json=body).status_code == 400
    assert len(Collection.open(collection.path)) == 3


def test_combined_filters_are_bounded_like_others(reading):
    many = {"or": [{"year": number} for number in range(2049)]}
    for path in ("/v1/search", "/v1/documents/count"):
        done = reading.post(
            path, json={"query": "a", "filter": many} if path == "/v1/search" else {"filter": many}
        )
        assert done.status_code == 413
    either = {"or": [{"year": 1973}, {"not": {"year": {"exists": True}}}]}
    assert reading.post("/v1/documents/count", json={"filter": either}).json()["count"] == 2


@pytest.mark.parametrize(
    "documents",
    [
        [],
        [{"id": "", "text": "a"}],
        [{"id": "x", "text": ""}],
        [{"id": "x", "text": "a"}, {"id": "x", "text": "b"}],
        [{"id": "x", "text": "a", "metadata": {"text": "b"}}],
        [{"id": "x", "text": "a", "metadata": {"n": float("nan")}}],
        [{"id": "x", "text": "a", "metadata": {"\ud800": 1}}],
        [{"id": "x", "text": "\udfff"}],
        [{"id": 7, "text": "a"}],
    ],
)
def test_malformed_documents_change_nothing(writing, collection, documents):
    content = json.dumps({"documents": documents}).encode()
    done = writing.post("/v1/documents", content=content, headers={"content-type": "application/json"})
    assert done.status_code == 400, done.text
    assert len(Collection.open(collection.path)) == 3


@pytest.fixture
def small_disk(tmp_path):
    """A file system of its own, mounted where that is allowed."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = shutil.which("mount")
    command = [mount or "", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)]
    if mount is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("needs the permission to mount a file system")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.mark.parametrize("state", ["full", "read-only"])
def test_a_disk_that_takes_nothing_is_a_507_without_its_path(serve, build, small_disk, state):
    collection = build(DOCUMENTS, path=small_disk / "idx")
    if state == "full":
        document = {"id": "large", "text": "a dog", "x": "y" * 2_000_000}
    else:
        document = {"id": "small", "text": "a dog"}
        subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with serve(collection=collection, allow_writes=True) as url:
        refused = httpx.post(f"{url}/v1/documents", json={"documents": [document]})
        assert refused.status_code == 507
        assert str(small_disk) not in refused.text
        assert httpx.post(f"{url}/v1/search", json={"query": "a dog"}).status_code == 200
    if state == "read-only":
        subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    with serve(collection=collection, allow_writes=True) as url:
        done = httpx.post(f"{url}/v1/documents", json={"documents": [{"id": "next", "text": "a dog"}]})
        assert done.json() == {"added": 1, "replaced": 0}


def test_writes_of_another_process_are_visible(writing, collection, toy_encoder):
    Collection.open(collection.path, encoder=toy_encoder).upsert([("new", "a new dog")])
    assert writing.get("/v1/documents/new").status_code == 200


def test_a_rebuild_with_another_model_leaves_all_searches_as_they_were(
    writing, collection, build, write_toy_bundle, tmp_path, caplog
):
    before = writing.post("/v1/search", json={"query": "a dog"}).json()["hits"]
    other = Encoder.load(write_toy_bundle(tmp_path / "other.onnx", name="other", max_length=5), threads=1)
    build([("new", "a dog")], encoder=other, path=collection.path, replace=True)
    for _ in range(5):
        done = writing.post("/v1/search", json={"query": "a dog"})
        assert (done.status_code, done.json()["hits"]) == (200, before)
    assert caplog.text.count("has changed and cannot be opened") == 1


def test_readers_and_writers_do_not_disturb_each_other(writing, collection):
    def write(number):
        body = {"documents": [{"id": f"n{number}-{i}", "text": f"text {number} {i}"} for i in range(3)]}
        return writing.post("/v1/documents", json=body).status_code

    def read(number):
        done = writing.post("/v1/search", json={"query": f"text {number}", "k": 1000})
        return done.status_code if done.status_code != 200 else len(done.json()["hits"]) % 3

    with ThreadPoolExecutor(8) as pool:
        written, seen = pool.map(write, range(8)), pool.map(read, range(24))
        assert set(written) == {200}
        assert set(seen) == {0}  # 3 and whole writes of 3 each: no search sees half of one
    assert len(Collection.open(collection.path)) == 27


def test_a_collection_on_milvus_is_served(build, toy_bundle, tmp_path):
    pytest.importorskip("pymilvus")
    pytest.importorskip("milvus_lite")
    from embedkit.serving.http.registry import Service
    from embedkit.serving.http.settings import ServerSettings

    from .conftest import serving

    address = f"milvus:{tmp_path}/m.db#docs"
    documents = [{**document, "big": 10} for document in DOCUMENTS]
    build(documents, path=address, lexical=True).close()
    settings = ServerSettings(port=0, collection=address, allow_writes=True, refresh_s=0)
    service = Service.load([str(toy_bundle)], settings)
    with serving(service) as url, httpx.Client(base_url=url) as client:
        body = {"query": "a dog", "k": 2, "filter": {"year": {"lt": 2000}}}
        assert [hit["id"] for hit in client.post("/v1/search", json=body).json()["hits"]] == ["dog", "sea/side"]
        new = {"documents": [{"id": "new", "text": "a violin"}]}
        assert client.post("/v1/documents", json=new).json() == {"added": 1, "replaced": 0}
        assert client.get("/v1/documents/new").json()["text"] == "a violin"
        assert client.get("/v1/collection").json()["documents"] == 4
        assert len(client.get("/v1/collection/map").json()["points"]) == 4
        assert client.post("/v1/documents/delete", json={"ids": ["new"]}).json() == {"deleted": 1}
        warnings = client.post("/v1/search", json={**body, "filter": {"yaer": 1}}).json()["warnings"]
        assert "did you mean 'year'?" in warnings[0]
    service.registry.needed_collection().collection.close()


def test_small_segments_are_merged_after_upserts(writing, collection):
    for number in range(9):
        writing.post("/v1/documents", json={"documents": [{"id": f"n{number}", "text": "the sea"}]})
    wait_for(lambda: len(Collection.describe(collection.path).segments) < 6)
    assert len(Collection.open(collection.path)) == 12


def test_a_write_waits_for_other_processes_for_a_limited_time(writing, collection, monkeypatch):
    monkeypatch.setattr(collection_service, "_PATIENCE_S", 0.2)
    content = {"documents": [{"id": "b", "text": "the sea"}]}
    with write_lock(collection.path):
        refused = writing.post("/v1/documents", json=content)
    assert writing.post("/v1/documents", json=content).status_code == 200
    assert refused.status_code == 503
    assert "another process is writing" in refused.json()["error"]["message"]
    assert str(collection.path.parent) not in refused.text


def test_axes_are_the_principal_ones():
    rows = np.random.default_rng(1).standard_normal((50, 6)).astype(np.float32) * [9, 1, 5, 1, 1, 1]
    points, explained = to_plane(rows.astype(np.float32))
    centred = rows - rows.mean(axis=0)
    _, lengths, axes = np.linalg.svd(centred, full_matrices=False)
    for number in (0, 1):
        assert abs(np.corrcoef(points[:, number], centred @ axes[number])[0, 1]) == pytest.approx(1, abs=1e-5)
    assert explained == pytest.approx((lengths[:2] ** 2).sum() / (lengths**2).sum(), rel=1e-5)
    assert points.max(axis=0).tolist() == [1, 1]


@pytest.mark.parametrize("count", [0, 1, 3])
def test_embeddings_without_variance_share_a_point(count):
    points, explained = to_plane(np.ones((count, 4), dtype=np.float32))
    np.testing.assert_array_equal(points, np.zeros((count, 2)))
    assert explained == 0
