"""Milvus, with a file of Milvus Lite: the methods of `Collection`, and the results of an exact scan."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from embedkit import Collection, Encoder
from embedkit.errors import CollectionError, DataError, InputError, MissingExtraError
from embedkit.extras import require
from embedkit.serving.retrieval.filters import parse_filter

pytest.importorskip("pymilvus")
pytest.importorskip("milvus_lite")

from pymilvus import DataType, MilvusClient

from embedkit.serving import milvus
from embedkit.serving.milvus import MOST_RESULTS, filter_expression

DOCUMENTS = [
    {"id": "a", "text": "a dog in the garden", "lang": "en", "year": 2019, "tags": ["pet", "green"]},
    {"id": "b", "text": "music and the sea", "lang": "de", "year": 2021.5, "tags": []},
    {"id": "c", "text": "the end of the day", "lang": "en", "year": 2024},
    {"id": "d", "text": "red apple", "lang": None, "note": "x\"\\\n'北"},
    {"id": "e", "text": "the horse and the dog", "draft": True, 'odd "name"': "here"},
]


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return str(tmp_path / "milvus.db")


@pytest.fixture
def encoder(toy_bundle: Path) -> Encoder:
    return Encoder.load(toy_bundle)


@pytest.fixture
def collection(uri: str, encoder: Encoder):
    collection = Collection.build(
        DOCUMENTS, encoder=encoder, path=f"milvus:{uri}#docs", index="FLAT", source="here"
    )
    yield collection
    collection.close()


@pytest.fixture(scope="module")
def oracle(toy_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Collection:
    """The same documents in a local collection."""
    path = tmp_path_factory.mktemp("oracle") / "idx"
    return Collection.build(DOCUMENTS, encoder=Encoder.load(toy_bundle), path=path)


@pytest.fixture(scope="module")
def unchanged(toy_bundle: Path, tmp_path_factory: pytest.TempPathFactory):
    """A collection that no test changes."""
    uri = str(tmp_path_factory.mktemp("milvus") / "milvus.db")
    collection = Collection.build(DOCUMENTS, encoder=Encoder.load(toy_bundle), path=f"milvus:{uri}#docs")
    yield collection
    collection.close()


@pytest.mark.parametrize(
    "conditions",
    [
        {"lang": "en"},
        {"lang": {"ne": "en"}},
        {"lang": {"in": ["de", "fr"]}},
        {"lang": {"not_in": ["de", "fr"]}},
        {"year": {"gte": 2019, "lt": 2024}},
        {"year": {"gt": 2021}},
        {"year": {"lte": 2021.5}, "lang": "de"},
        {"lang": {"gt": "de"}},
        {"tags": "pet"},
        {"tags": {"ne": "pet"}},
        {"tags": {"in": ["green", "blue"]}},
        {"tags": {"not_in": ["green"]}},
        {"year": {"exists": True}},
        {"year": {"exists": False}},
        {"draft": True},
        {"note": "x\"\\\n'北"},
        {'odd "name"': "here"},
        {"lang": {"in": []}},
        {"lang": {"not_in": []}},
        {},
    ],
    ids=str,
)
def test_filters_select_what_they_select_in_a_local_collection(
    unchanged: Collection, oracle: Collection, conditions: dict
) -> None:
    found = {hit.id for hit in unchanged.search("the dog", 10, filter=conditions)}
    assert found == {hit.id for hit in oracle.search("the dog", 10, filter=conditions)}


def test_filters_that_milvus_cannot_express_are_refused(unchanged: Collection) -> None:
    with pytest.raises(InputError, match="does not distinguish null from absent"):
        unchanged.search("a dog", filter={"lang": None})
    with pytest.raises(InputError, match="has no operator 'like'"):
        unchanged.search("a dog", filter={"lang": {"like": "e%"}})
    with pytest.raises(InputError, match="k must be at most 16,384"):
        unchanged.search("a dog", MOST_RESULTS + 1)
    with pytest.raises(InputError, match="16"):
        unchanged.search_embeddings(np.ones((1, 3), dtype=np.float32))
    with pytest.raises(InputError, match="finite"):
        unchanged.search_embeddings(np.full((1, 16), np.nan, dtype=np.float32))


def test_values_cannot_escape_a_filter() -> None:
    assert filter_expression(parse_filter({'x"] == 1 or id != "': '"'})) == (
        '(metadata["x\\"] == 1 or id != \\""] == "\\"" or '
        'json_contains(metadata["x\\"] == 1 or id != \\""], "\\""))'
    )


def test_more_documents_than_a_request_takes(uri: str, encoder: Encoder, monkeypatch) -> None:
    monkeypatch.setattr("embedkit.serving.milvus._ROWS_PER_REQUEST", 7)
    monkeypatch.setattr("embedkit.serving.milvus._IDS_PER_REQUEST", 7)
    monkeypatch.setattr("embedkit.serving.retrieval.sources._CHUNK", 25)
    texts = [f"dog {number}" for number in range(60)]
    collection = Collection.build(texts, encoder=encoder, path=f"milvus:{uri}#docs")
    assert len(collection) == 60
    assert [found.text for found in collection.get([str(number) for number in range(60)])] == texts
    assert collection.delete(str(number) for number in range(50)) == 50
    collection.close()


def test_all_documents_are_read_whatever_their_ids(uri: str, encoder: Encoder, monkeypatch) -> None:
    monkeypatch.setattr(milvus, "_ROWS_PER_READ", 1)
    documents = [
        {"id": id_, "text": f"text {number}", "half": number % 2}
        for number, id_ in enumerate(['a"b', "a\\", "line\nbreak", 'x" or id != "', "x'", "z"])
    ]
    collection = Collection.build(documents, encoder=encoder, path=f"milvus:{uri}#docs")
    source = collection.store.source()
    found = list(itertools.islice(source.documents, 10))
    assert {document.id: document.text for document in found} == {one["id"]: one["text"] for one in documents}
    assert len(found) == 6
    rows = np.concatenate(list(itertools.islice(source.embeddings(), 10)))
    np.testing.assert_allclose(rows, encoder.encode([document.text for document in found]), atol=1e-6)
    even = collection.store.find(parse_filter({"half": 0}))
    assert [document.id for document in even] == [
        document.id for document in found if not document.metadata["half"]
    ]
    collection.close()


def test_a_request_is_as_large_as_a_message_may_be(monkeypatch) -> None:
    monkeypatch.setattr(milvus, "_BYTES_PER_REQUEST", 1_000)
    rows = [{"embedding": [0.0] * 16, "text": "a" * length, "metadata": ""} for length in (5, 5, 400, 5, 5, 100)]
    assert [[len(row["text"]) for row in some] for some in milvus._requests(rows)] == [[5, 5], [400], [5, 5, 100]]
    assert [
        len(some) for some in milvus._requests([{"embedding": [0.0], "text": "", "metadata": ""}] * 10_001)
    ] == [250] * 40 + [1]


def test_words_are_refused_by_servers_without_them(uri: str, encoder: Encoder, monkeypatch) -> None:
    monkeypatch.setattr(milvus.MilvusClient, "get_server_version", lambda _: "v2.3.5")
    with pytest.raises(CollectionError, match=r"lexical: .* has version v2\.3\.5"):
        Collection.build(["a dog"], encoder=encoder, path=f"milvus:{uri}#docs", lexical=True)
    Collection.build(["a dog"], encoder=encoder, path=f"milvus:{uri}#docs", lexical=False).close()


def test_the_description_replaces_lost_properties(collection: Collection, uri: str, monkeypatch) -> None:
    told = json.dumps(collection.manifest.facts())
    monkeypatch.setattr(MilvusClient, "describe_collection", lambda *_: {"properties": {}, "description": told})
    assert Collection.open(f"milvus:{uri}#docs").manifest == collection.manifest


@pytest.mark.usefixtures("collection")
def test_collections_of_others_are_not_opened(uri):
    with pytest.raises(CollectionError, match=r"there is no collection nope at .*; there are docs"):
        Collection.open(f"milvus:{uri}#nope")
    client = MilvusClient(uri)
    schema = client.create_schema(description="theirs")
    schema.add_field("pk", DataType.INT64, is_primary=True)
    schema.add_field("v", DataType.FLOAT_VECTOR, dim=4)
    client.create_collection("theirs", schema=schema)
    with pytest.raises(CollectionError, match="holds no documents that embedkit has put there"):
        Collection.open(f"milvus:{uri}#theirs")
    client.close()


def test_a_dropped_collection_is_gone(collection: Collection, uri: str) -> None:
    collection.store.drop()
    with pytest.raises(CollectionError, match="there is no collection docs"):
        Collection.open(f"milvus:{uri}#docs")


@pytest.mark.parametrize(
    ("documents", "words"),
    [
        ([("x" * 600, "dog")], "the id of document x+ has 600 bytes; Milvus takes 512"),
        ([("x", "é" * 40_000)], "the text of document x has 80,000 bytes; Milvus takes 65,535"),
        (
            [{"id": "x", "text": "dog", "n": [2**64]}],
            "cannot hold the metadata of document x: Integer exceeds 64-bit",
        ),
        ([{"id": "x", "text": "dog", "at": {1, 2}}], r"at is \{1, 2\} \(set\), which JSON"),
    ],
    ids=["id", "text", "integer", "set"],
)
def test_impossible_documents_are_named(unchanged: Collection, documents: list, words: str) -> None:
    with pytest.raises(DataError, match=words):
        unchanged.upsert(documents)
    assert len(unchanged) == 5


def test_an_unreachable_server_is_reported_in_one_sentence(encoder: Encoder, monkeypatch) -> None:
    from pymilvus.exceptions import MilvusException

    def refuses(*_: object, **__: object) -> None:
        raise MilvusException(code=2, message="server unavailable")

    monkeypatch.setattr("embedkit.serving.milvus.MilvusClient", refuses)
    with pytest.raises(CollectionError, match="milvus:http://nobody:19530: server unavailable"):
        Collection.build(["x"], encoder=encoder, path="milvus:http://nobody:19530")


def test_a_missing_pymilvus_is_reported_in_one_sentence(monkeypatch) -> None:
    for name in [name for name in sys.modules if name.startswith("embedkit.serving.milvus")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pymilvus", None)
    with pytest.raises(MissingExtraError, match=r"embedkit-onnx\[milvus\]"):
        require("embedkit.serving.milvus", extra="milvus")


def test_collections_of_earlier_versions_are_refused(collection: Collection, uri: str, monkeypatch) -> None:
    facts = {name: value for name, value in collection.manifest.facts().items() if name != "analysis"}
    properties = {"embedkit": json.dumps(facts)}
    monkeypatch.setattr(MilvusClient, "describe_collection", lambda *_: {"properties": properties})
    with pytest.raises(CollectionError, match="has keywords of analysis 1, this embedkit has 5: build"):
        Collection.open(f"milvus:{uri}#docs")


def test_the_lexical_index_exists_from_the_start_or_never(unchanged: Collection) -> None:
    with pytest.raises(InputError, match="Milvus builds this index with the collection"):
        unchanged.compact(lexical=False)


@pytest.mark.parametrize("address", ["milvus:host", "milvus:", "milvus:docs#x"])
def test_addresses_are_checked(address: str) -> None:
    with pytest.raises(InputError, match=r"expected milvus:http://HOST:PORT#NAME"):
        Collection.open(address)


def test_the_token_comes_from_the_environment(monkeypatch) -> None:
    seen = []

    def refuses(uri: str, token: str) -> None:
        seen.append((uri, token))
        raise milvus.MilvusException(message="no")

    monkeypatch.setenv("EMBEDKIT_MILVUS_TOKEN", "root:secret")
    monkeypatch.setattr(milvus, "MilvusClient", refuses)
    with pytest.raises(CollectionError):
        Collection.open("milvus:http://host:19530")
    assert seen == [("http://host:19530", "root:secret")]
