"""What every collection store guarantees: a folder, a file of Milvus Lite, a folder of Qdrant's client.

With the URI of a Milvus server from version 2.5 on in `EMBEDKIT_TEST_MILVUS`, also on that server, in
collections that are dropped afterwards.
"""

from __future__ import annotations

import importlib.util
import os
import secrets
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import pytest

from embedkit import Collection, Encoder
from embedkit.errors import CollectionError, DataError, FingerprintError, InputError
from embedkit.serving.retrieval.documents import Document
from embedkit.serving.retrieval.filters import parse_filter

DOCUMENTS = [
    {"id": "a", "text": "a dog in the garden", "lang": "en", "year": 2019, "tags": ["pet", "green"]},
    {"id": "b", "text": "music and the sea", "lang": "de", "year": 2021.5},
    {"id": "c", "text": "the end of the day", "lang": "en", "year": 2024},
    {"id": "d", "text": "red apple"},
    {"id": "e", "text": "the horse and the dog", "lang": "sw"},
]
HAS_MILVUS = all(importlib.util.find_spec(name) for name in ("pymilvus", "milvus_lite"))
HAS_QDRANT = importlib.util.find_spec("qdrant_client") is not None
MILVUS_SERVER = os.environ.get("EMBEDKIT_TEST_MILVUS", "")
ADDRESSES = {
    "folder": "{}/idx",
    "milvus": "milvus:{}/milvus.db#docs",
    "milvus-server": f"milvus:{MILVUS_SERVER}#docs_",
    "qdrant": "qdrant:{}/points#docs",
}
STORES = [
    "folder",
    pytest.param("milvus", marks=pytest.mark.skipif(not HAS_MILVUS, reason="needs pymilvus and milvus-lite")),
    pytest.param(
        "milvus-server", marks=pytest.mark.skipif(not MILVUS_SERVER, reason="needs EMBEDKIT_TEST_MILVUS")
    ),
    pytest.param("qdrant", marks=pytest.mark.skipif(not HAS_QDRANT, reason="needs qdrant-client")),
]


@pytest.fixture(scope="module")
def encoder(toy_bundle: Path) -> Encoder:
    return Encoder.load(toy_bundle)


@pytest.fixture(params=STORES)
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    address = ADDRESSES[request.param].format(tmp_path)
    if request.param != "milvus-server":
        yield address
        return
    address += secrets.token_hex(6)
    yield address
    with suppress(CollectionError), closing(Collection.open(address)) as left:
        left.store.drop()


@pytest.fixture
def collection(address: str, encoder: Encoder) -> Iterator[Collection]:
    built = Collection.build(DOCUMENTS, encoder=encoder, path=address, lexical=True, source="here")
    yield built
    built.close()


def ids(hits: list) -> list[str]:
    return [hit.id for hit in hits]


def test_documents_are_found_with_correct_scores(collection: Collection, encoder: Encoder) -> None:
    queries = ["a dog", "the sea at the end"]
    for query, hits in zip(queries, collection.search(queries, 5, mode="dense"), strict=True):
        scores = encoder.encode([document["text"] for document in DOCUMENTS]) @ encoder.encode(query)
        expected = sorted(zip(-scores, "abcde", strict=True))
        assert ids(hits) == [id_ for _, id_ in expected]
        np.testing.assert_allclose([hit.score for hit in hits], [-score for score, _ in expected], atol=1e-6)
        assert list(hits.latency_ms) == ["encode", "dense", "read"]
    assert collection.search([], 3) == []
    assert ids(collection.search_embeddings(encoder.encode(["red apple"]), 1)[0]) == ["d"]
    assert len(collection.search("a dog", 50)) == 5


def test_documents_are_returned_unchanged(collection: Collection) -> None:
    metadata = {"lang": "en", "year": 2019, "tags": ["pet", "green"]}
    assert collection.get("a") == Document("a", "a dog in the garden", metadata)
    assert collection.get("d") == Document("d", "red apple", None)
    assert [found and found.id for found in collection.get(["e", "nobody", "a"])] == ["e", None, "a"]


def test_it_is_opened_with_its_own_model(
    collection: Collection,
    address: str,
    encoder: Encoder,
    write_toy_bundle,
    tmp_path: Path,
) -> None:
    collection.close()
    info = Collection.describe(address)
    assert (info.model, info.fingerprint, info.source) == ("toy", encoder.fingerprint, "here")
    assert (info.dimension, info.lexical, info.count, info.queries) == (16, True, 5, None)
    again = Collection.open(address, encoder=encoder)
    assert ids(again.search("red apple", 1)) == ["d"]
    again.close()
    other = Encoder.load(write_toy_bundle(tmp_path / "other.onnx", name="other"))
    with pytest.raises(FingerprintError, match="was built with toy"):
        Collection.open(address, encoder=other)
    with pytest.raises(InputError, match="without an encoder"):
        Collection.open(address).search("a dog")


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the log messages about arithmetics."""
    return [line for line in caplog.messages if "computed by" in line]


class Recomputed:
    """Return the same model under another arithmetic."""

    def __init__(self, encoder: Encoder, numerics: str) -> None:
        self.name, self.fingerprint, self.numerics = encoder.name, encoder.fingerprint, numerics
        self.dimension, self.max_length = encoder.dimension, encoder.max_length
        self.encode = encoder.encode


def test_the_arithmetic_is_recorded_and_a_mixture_is_logged(
    address: str, encoder: Encoder, caplog: pytest.LogCaptureFixture
) -> None:
    one, other = Recomputed(encoder, "one"), Recomputed(encoder, "other")
    Collection.build(DOCUMENTS, encoder=one, path=address).close()
    assert Collection.describe(address).numerics == ("one",)
    with closing(Collection.open(address, encoder=one)) as same:
        same.upsert([("a", "a boat")])
    assert not told(caplog)
    with closing(Collection.open(address, encoder=other)) as mixed:
        assert len(told(caplog)) == 1
        assert "holds embeddings computed by one, and other computes new ones" in told(caplog)[0]
        mixed.upsert([("f", "black tea")])
        assert len(told(caplog)) == 2
        mixed.upsert([("g", "green tea")])
        assert len(told(caplog)) == 2
    assert Collection.describe(address).numerics == ("one", "other")


def test_copied_embeddings_keep_their_arithmetic(
    address: str, encoder: Encoder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one, other = Recomputed(encoder, "one"), Recomputed(encoder, "other")
    with closing(Collection.build(DOCUMENTS, encoder=one, path=tmp_path / "one")) as built:
        Collection.build(built, encoder=other, path=address).close()
    assert Collection.describe(address).numerics == ("one",)
    assert len(told(caplog)) == 1


def test_given_embeddings_have_an_unknown_arithmetic(
    address: str, encoder: Encoder, caplog: pytest.LogCaptureFixture
) -> None:
    rows = encoder.encode([document["text"] for document in DOCUMENTS])
    Collection.build(DOCUMENTS, encoder=encoder, path=address, embeddings=rows).close()
    assert Collection.describe(address).numerics == ("unknown",)
    assert not told(caplog)


def test_a_student_encodes_the_queries(address: str, encoder: Encoder, write_toy_bundle, tmp_path: Path) -> None:
    teacher = {"name": "toy", "fingerprint": encoder.fingerprint}
    student = Encoder.load(write_toy_bundle(tmp_path / "student.onnx", name="student", teacher=teacher))
    Collection.build(DOCUMENTS, encoder=encoder, queries=student, path=address).close()
    opened = Collection.open(address, queries=student)
    assert opened.manifest.queries.fingerprint == student.fingerprint
    assert ids(opened.search("red apple", 1)) == ["d"]
    opened.close()


def test_an_upsert_adds_and_replaces(collection: Collection) -> None:
    assert collection.upsert([("a", "a boat"), ("new", "black tea")]) == (1, 1)
    assert len(collection) == 6
    assert collection.get("a") == Document("a", "a boat", None)
    assert ids(collection.search("black tea", 1)) == ["new"]


def test_a_rejected_write_changes_nothing(collection: Collection) -> None:
    for documents, message in [
        ([("x", "")], "the text is empty"),
        ([("x", "dog"), ("x", "cat")], "have the same id 'x'"),
        (["no id"], "need ids"),
        ([{"id": "x", "text": "dog", "at": float("nan")}], "JSON"),
    ]:
        with pytest.raises(DataError, match=message):
            collection.upsert(documents)
    assert len(collection) == 5
    assert collection.get("x") is None


def test_no_documents_change_nothing_and_say_so(collection: Collection, caplog: pytest.LogCaptureFixture) -> None:
    assert collection.upsert([]) == (0, 0)
    assert len(collection) == 5
    assert any("no documents to add" in line for line in caplog.messages)


def test_an_emptied_collection_has_an_empty_sample(collection: Collection) -> None:
    collection.delete("abcde"[row] for row in range(5))
    documents, embeddings = collection.sample(3)
    assert (documents, embeddings.shape) == ([], (0, 16))
    assert collection.search("a dog") == []


def test_a_deletion_returns_the_number_deleted(collection: Collection) -> None:
    assert collection.delete(["a", "nobody", "b", "a"]) == 2
    assert collection.delete("a") == 0
    assert len(collection) == 3
    assert set(ids(collection.search("a dog", 10))) == {"c", "d", "e"}


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ({"lang": "en"}, "ac"),
        ({"lang": {"ne": "en"}}, "bde"),
        ({"lang": {"in": ["de", "sw"]}}, "be"),
        ({"year": {"gte": 2019, "lt": 2024}}, "ab"),
        ({"year": {"lte": 2021.5}, "lang": "de"}, "b"),
        ({"tags": "pet"}, "a"),
        ({"year": {"exists": False}}, "de"),
        ({"lang": {"in": []}}, ""),
    ],
    ids=str,
)
def test_filters(collection: Collection, conditions: dict, expected: str) -> None:
    assert sorted(ids(collection.search("the dog", 10, filter=conditions))) == list(expected)


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ({"title": {"contains": "Hive"}}, "ab"),
        ({"place.city": {"prefix": "Ber"}}, "ac"),
        ({"not": {"title": {"contains": "Hive"}}}, "cd"),
        ({"or": [{"title": {"prefix": "A hive"}}, {"n": 4}]}, "bd"),
        ({"at": {"lt": "2024-05-01T09:00:00+00:00"}}, "a"),
        ({"at": "2024-05-01T09:30Z", "n": 2}, "b"),
    ],
    ids=str,
)
def test_parts_of_texts_and_times_in_zones(
    address: str, encoder: Encoder, conditions: dict, expected: str
) -> None:
    documents = [
        {
            "id": "a",
            "text": "dog",
            "n": 1,
            "title": "The Hive",
            "at": "2024-05-01T10:00+02:00",
            "place": {"city": "Bern"},
        },
        {"id": "b", "text": "dog", "n": 2, "title": "A hive, a Hive", "at": "2024-05-01T11:30+02:00"},
        {"id": "c", "text": "dog", "n": 3, "title": "hives", "place": {"city": "Berlin"}},
        {"id": "d", "text": "dog", "n": 4, "place": {"city": "Ulm"}},
    ]
    with closing(Collection.build(documents, encoder=encoder, path=address)) as collection:
        assert sorted(ids(collection.search("a dog", 10, filter=conditions))) == list(expected)
        assert ids(collection.search("a dog", 1, filter=conditions))[0] in expected
        assert sorted(document.id for document in collection.find(conditions)) == list(expected)


def test_documents_are_found_by_their_metadata_alone(collection: Collection) -> None:
    def found(**conditions: object) -> list[str]:
        return sorted(document.id for document in collection.store.find(parse_filter(conditions)))

    assert found(lang={"in": ["en", "sw"]}) == ["a", "c", "e"]
    many = [*map(str, range(20)), "pet", "en"]
    assert (found(lang={"in": many}), found(tags={"in": many})) == (["a", "c"], ["a"])
    assert found(year={"in": [*range(20), 2024]}) == ["c"]
    assert found(lang={"not_in": many}, year=2021.5) == ["b"]
    assert found(lang="en", tags="pet") == ["a"]
    assert found(lang="fr") == []
    collection.delete("a")
    assert found(lang="en") == ["c"]
    assert found() == ["b", "c", "d", "e"]


def test_mistakes_are_errors(collection: Collection) -> None:
    warnings = collection.search("a dog", filter={"lnag": "en"}).warnings
    assert warnings == [
        "filter: no document has the field 'lnag'; did you mean 'lang'?",
        "no hits: no document meets the filter",
    ]
    assert collection.search("a dog", filter={"lang": "en"}).warnings == []
    for options, message in [
        ({"k": 0}, "k"),
        ({"effort": 0}, "effort above 0"),
        ({"filter": {"lang": {"like": "e%"}}}, "has no operator 'like'"),
        ({"candidates": 1}, "candidates"),
        ({"mode": "both"}, "mode must be one of hybrid, dense, lexical"),
    ]:
        with pytest.raises(InputError, match=message):
            collection.search("a dog", **options)
    with pytest.raises(InputError):
        collection.search_embeddings(np.ones((1, 3), dtype=np.float32))


def test_words_of_other_scripts_are_found(address: str, encoder: Encoder) -> None:
    documents = [("hi", "हिन्दी में लिखा"), ("water", "नदी का पानी"), ("ja", "東京は日本の首都です"), ("tr", "İzmir")]
    with closing(Collection.build(documents, encoder=encoder, path=f"{address}_scripts", lexical=True)) as built:
        for query, id_ in [("हिन्दी", "hi"), ("首都", "ja"), ("izmir", "tr")]:
            assert [hit.id for hit in built.search(query, 4) if "lexical" in hit.scores] == [id_]


def test_keywords_are_stems_parts_of_identifiers_and_words_of_titles(address: str, encoder: Encoder) -> None:
    pytest.importorskip("Stemmer")
    documents = [
        {"id": "stem", "text": "the connections were refused"},
        {"id": "part", "text": "set max_body_bytes in 3.11.2"},
        {"id": "title", "text": "a house", "title": "The Hive"},
        {"id": "accent", "text": "a café"},
    ]
    path = f"{address}_stems"
    with closing(Collection.build(documents, encoder=encoder, path=path, language="english")) as built:
        for query, id_ in [
            ("connection refusing", "stem"),
            ("body bytes", "part"),
            ("3.11.2", "part"),
            ("hives", "title"),
            ("cafe", "accent"),
        ]:
            assert ids(built.search(query, 4, mode="lexical")) == [id_]


def test_words_are_found_and_fused(collection: Collection) -> None:
    hits = collection.search("horse", 5)
    (found,) = (hit for hit in hits if hit.id == "e")
    assert list(found.scores) == ["dense", "lexical", "fused"]
    assert [hit.id for hit in hits if "lexical" in hit.scores] == ["e"]
    assert all(hit.scores["lexical"] > 0 for hit in hits if "lexical" in hit.scores)
    assert collection.search("horse", 5, mode="lexical")[0].id == "e"
    assert len(collection.search("nowhere to be found", 5)) == 5


def test_candidates_of_both_rankings_have_embeddings(
    collection: Collection, address: str, encoder: Encoder
) -> None:
    view, query = collection.store.view(), encoder.encode(["a dog"])
    (scores,), (rows,) = view.search(query, 5, view.select(()))
    np.testing.assert_allclose(view.vectors(rows) @ query[0], scores, atol=1e-6)
    collection.delete(["e"])  # a folder still has the state of the view, and a database has lost a candidate
    assert (view.vectors(rows) is None) == (address.partition(":")[0] in {"milvus", "qdrant"})


def test_a_reranker_decides_the_order(collection: Collection) -> None:
    class Shortest:
        name, fingerprint, max_length = "shortest", "s", 100

        def predict(self, pairs, /):
            return np.array([-len(text) for _, text in pairs], dtype=np.float32)

    hits = collection.search("a dog", 2, rerank=Shortest(), candidates=5, rerank_weight=1)
    assert ids(hits) == ["d", "b"]
    assert hits[0].score == -len("red apple")


def test_documents_and_embeddings_are_copied_to_another_collection(
    collection: Collection, encoder: Encoder, tmp_path: Path
) -> None:
    collection.delete("b")
    copy = Collection.build(collection, encoder=encoder, path=tmp_path / "copy")
    assert len(copy) == 4
    assert copy.get("a") == collection.get("a")
    assert ids(copy.search("the dog", 4, mode="dense")) == ids(collection.search("the dog", 4, mode="dense"))


def test_given_embeddings_are_used_and_checked(address: str, encoder: Encoder) -> None:
    rows = encoder.encode([document["text"] for document in DOCUMENTS])
    with pytest.raises(FingerprintError, match="in the order of the documents"):
        Collection.build(DOCUMENTS, encoder=encoder, path=address, embeddings=rows[::-1])
    built = Collection.build(DOCUMENTS, encoder=encoder, path=address, embeddings=rows)
    assert ids(built.search("red apple", 1)) == ["d"]
    built.close()


def test_compacting_verifying_and_a_sample(collection: Collection) -> None:
    collection.upsert([("f", "green tea")])
    collection.delete("a")
    before = ids(collection.search("the dog", 10))
    while collection.merge():
        pass
    collection.compact()
    collection.verify()
    assert ids(collection.search("the dog", 10)) == before
    documents, embeddings = collection.sample(3)
    assert (len(documents), embeddings.shape) == (3, (3, 16))
    np.testing.assert_allclose(np.linalg.norm(embeddings, axis=1), 1, atol=1e-5)


def test_writes_of_others_are_visible(collection: Collection, address: str, encoder: Encoder) -> None:
    if address.startswith("qdrant:"):
        pytest.skip("a folder of Qdrant's local mode is open once")
    other = Collection.open(address, encoder=encoder)
    other.upsert([("g", "a violin")])
    collection.refresh()
    assert len(collection) == 6
    assert not collection.refresh()
    other.close()


HOSTILE = [
    "it's",
    'say "hi"',
    "back\\slash",
    "trailing\\",
    "line\nbreak",
    "return\r",
    "tab\t",
    "control\x01",
    "{x}",
    "%_",
    "a'] or id in ['plain",
    'a"] or id in ["plain',
    "' or '' == '",
    "x'] or id not in ['q",
    "北京 🐝",
    "../../etc",
]


def test_hostile_strings_are_only_strings(address: str, encoder: Encoder) -> None:
    texts = [f"text {number}" for number in range(len(HOSTILE))]
    documents = [
        {"id": id_, "text": text, "note": id_}
        for id_, text in zip([*HOSTILE, "plain"], [*texts, "p"], strict=True)
    ]
    collection = Collection.build(documents, encoder=encoder, path=address)
    assert [found and found.text for found in collection.get(HOSTILE)] == texts
    for id_ in HOSTILE:
        assert ids(collection.search("text", 20, filter={"note": id_})) == [id_]
        others = collection.search("text", 20, filter={"note": {"not_in": [id_]}})
        assert id_ not in ids(others)
        assert len(others) == len(HOSTILE)
    assert collection.upsert([(id_, "new") for id_ in HOSTILE]) == (0, len(HOSTILE))
    assert {found and found.text for found in collection.get(HOSTILE)} == {"new"}
    for left, id_ in enumerate(HOSTILE):
        assert collection.delete([id_]) == 1
        assert len(collection) == len(HOSTILE) - left
        assert collection.delete([id_]) == 0
    assert collection.get("plain") is not None
    collection.close()


def test_names_of_fields_are_only_names(address: str, encoder: Encoder) -> None:
    documents = [{"id": str(row), "text": "a dog", name: "yes"} for row, name in enumerate(HOSTILE)]
    with closing(Collection.build(documents, encoder=encoder, path=address)) as collection:
        for row, name in enumerate(HOSTILE):
            if address.startswith("qdrant:") and '"' in name:
                continue  # refused in a sentence
            assert ids(collection.search("a dog", 20, filter={name: "yes"})) == [str(row)]


def test_halves_of_surrogate_pairs_are_not_found(collection: Collection) -> None:
    assert collection.get("\ud800") is None
    assert collection.delete("\ud800") == 0
    with pytest.raises(DataError):
        collection.upsert([("\ud800", "a dog")])
    for conditions in ({"lang": "\ud800"}, {"\ud800": "en"}):
        with pytest.raises(InputError, match="filter"):
            collection.search("a dog", filter=conditions)
    assert len(collection) == 5


def test_true_is_not_one(address: str, encoder: Encoder) -> None:
    values = [1, True, 0, False, 1.0, [1], [True], 2]
    documents = [{"id": str(row), "text": f"dog {row}", "n": value} for row, value in enumerate(values)]
    with closing(Collection.build(documents, encoder=encoder, path=address)) as collection:
        for conditions, expected in [
            ({"n": True}, "16"),
            ({"n": 1}, "045"),
            ({"n": {"ne": True}}, "023457"),
            ({"n": {"ne": 1}}, "12367"),
            ({"n": {"in": [True, 2]}}, "167"),
            ({"n": {"not_in": [0]}}, "0134567"),
            ({"n": {"gt": 0, "lt": 2}}, "04"),
        ]:
            found = {k: ids(collection.search("a dog", k, filter=conditions)) for k in (1, 20)}
            wanted = set(expected) | (
                {"5"} if "gt" in str(conditions) and not address.startswith("milvus") else set()
            )
            assert set(found[20]) == wanted
            assert found[1] == found[20][:1]


def test_large_and_negative_numbers_are_found(address: str, encoder: Encoder) -> None:
    numbers = [2**60, 2**60 + 1, 2**63 - 1, -(2**60) - 1, -1.5]
    documents = [{"id": str(row), "text": f"dog {row}", "n": number} for row, number in enumerate(numbers)]
    with closing(Collection.build(documents, encoder=encoder, path=address)) as collection:
        for row, number in enumerate(numbers):
            assert ids(collection.search("a dog", filter={"n": number})) == [str(row)]
            assert len(collection.search("a dog", filter={"n": {"ne": number}})) == 4
        if address.startswith("qdrant:"):
            with pytest.raises(InputError, match="numbers up to"):
                collection.search("a dog", filter={"n": {"lt": 10**400}})
            for wanted in ({"gt": 2**60}, {"lte": -(2**60) - 1}, {"gte": 2.0**53}, 2.0**60, 2**63):
                with pytest.raises(InputError, match="cannot distinguish integers"):
                    collection.search("a dog", filter={"n": wanted})
        else:
            assert len(collection.search("a dog", filter={"n": {"lt": 10**400}})) == 5
            assert set(ids(collection.search("a dog", filter={"n": {"gt": 2**60}}))) == {"1", "2"}
        assert set(ids(collection.search("a dog", filter={"n": {"gt": 2**53 - 1}}))) == {"0", "1", "2"}
        assert set(ids(collection.search("a dog", filter={"n": {"lt": 1e20}}))) == {"0", "1", "2", "3", "4"}


def test_a_collection_is_not_replaced_by_accident(collection: Collection, address: str, encoder: Encoder) -> None:
    collection.close()
    with pytest.raises(CollectionError, match="already"):
        Collection.build(["new"], encoder=encoder, path=address)
    with closing(Collection.open(address, encoder=encoder)) as again:
        assert len(again) == 5
        assert repr(again).startswith(f"Collection({str(again.path)!r}, documents=5, model='toy'")


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_interrupted_build_leaves_no_collection(
    address: str, encoder: Encoder, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(Encoder, "encode_document", interrupted)
        with pytest.raises(error):
            Collection.build(DOCUMENTS, encoder=encoder, path=address)
    with closing(Collection.build(DOCUMENTS, encoder=encoder, path=address)) as collection:
        assert len(collection) == 5


def test_a_missing_source_is_an_error(address: str) -> None:
    with pytest.raises(CollectionError, match="there is no collection"):
        Collection.open(address)
