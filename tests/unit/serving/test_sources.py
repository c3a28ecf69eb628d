"""Collections of documents that are already embedded."""

from __future__ import annotations

import json

import numpy as np
import pytest
from toys import write_parquet

from embedkit.errors import DataError, FingerprintError, InputError
from embedkit.serving.retrieval import Collection, sources
from embedkit.serving.retrieval.store.protocol import find_source

from .conftest import DOCUMENTS

TEXTS = [document["text"] for document in DOCUMENTS]
ROWS = [{"id": str(n), "text": f"word{n} word{n % 7}", "n": n} for n in range(150)]


@pytest.fixture
def embedded(encoder):
    rows = encoder.encode([row["text"] for row in ROWS])
    encoder.calls.clear()
    return rows


def write_shards(folder, encoder, rows=ROWS, per_file=40, *, maker=True, value_type="float32"):
    pa = pytest.importorskip("pyarrow")

    folder.mkdir(parents=True, exist_ok=True)
    about = (
        {b"embedkit": json.dumps({"model": encoder.name, "fingerprint": encoder.fingerprint})} if maker else None
    )
    for number, start in enumerate(range(0, len(rows), per_file)):
        part = rows[start : start + per_file]
        vectors = encoder.encode([row["text"] for row in part]).astype(value_type)
        table = pa.Table.from_pylist(part).append_column(
            "embedding", pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), vectors.shape[1])
        )
        write_parquet(folder / f"shard-{number:06d}.parquet", table.replace_schema_metadata(about))
    encoder.calls.clear()
    return folder


def built(documents, encoder, tmp_path, **options):
    return Collection.build(documents, encoder=encoder, path=tmp_path / "idx", replace=True, **options)


def assert_same(collection, embedded, encoder):
    """Only a sample went through the model, and the embeddings are those given, in the order of the documents."""
    assert 0 < sum(map(len, encoder.calls)) <= 64
    documents, found = collection.sample(1000)
    assert [document.id for document in documents] == [row["id"] for row in ROWS]
    assert documents[3].metadata == {"n": 3}
    np.testing.assert_array_equal(found, embedded)


def with_column(rows):
    return ({**row, "vector": vector.tolist()} for row, vector in zip(ROWS, rows, strict=True))


def saved(path, rows):
    np.save(path, rows)
    return str(path)


FORMS = {
    "an array": lambda folder, encoder, rows: (ROWS, rows),
    "a .npy file": lambda folder, encoder, rows: (ROWS, saved(folder / "e.npy", rows)),
    "a column of an iterable": lambda folder, encoder, rows: (with_column(rows), "vector"),
    "a column of a hub data set": lambda folder, encoder, rows: (
        pytest.importorskip("datasets").Dataset.from_list([*with_column(rows)]),
        "vector",
    ),
    "shards": lambda folder, encoder, rows: (write_shards(folder / "s", encoder), None),
    "one shard": lambda folder, encoder, rows: (
        write_shards(folder / "s", encoder, per_file=1000) / "shard-000000.parquet",
        None,
    ),
    "an array beside a folder of parquet": lambda folder, encoder, rows: (
        write_shards(folder / "s", encoder),
        rows,
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_embeddings_come_in_any_form(tmp_path, encoder, embedded, monkeypatch, form):
    monkeypatch.setattr(sources, "_CHUNK", 32)
    documents, embeddings = FORMS[form](tmp_path, encoder, embedded)
    assert_same(built(documents, encoder, tmp_path, embeddings=embeddings), embedded, encoder)


def test_another_collection(tmp_path, encoder, embedded):
    first = Collection.build(ROWS, encoder=encoder, path=tmp_path / "first")
    first.upsert([("extra", "words")])
    first.delete("extra")
    encoder.calls.clear()
    assert_same(built(first, encoder, tmp_path), embedded, encoder)
    assert len(built(str(tmp_path / "first"), encoder, tmp_path)) == len(ROWS)


def test_another_collection_without_some_of_its_metadata(tmp_path, encoder):
    first = Collection.build([{"text": "a", "n": 1, "secret": 2}], encoder=encoder, path=tmp_path / "first")
    assert built(first, encoder, tmp_path, metadata_columns=["n"]).get("0").metadata == {"n": 1}
    with pytest.raises(DataError, match="document '0': there is no column 'm' among n, secret"):
        Collection.build(first, encoder=encoder, path=tmp_path / "other", metadata_columns=["m"])


def test_a_folder_of_parquet_without_embeddings_is_embedded(tmp_path, encoder):

    (tmp_path / "s" / "deep").mkdir(parents=True)
    write_parquet(tmp_path / "s" / "a.parquet", ROWS[:3])
    write_parquet(tmp_path / "s" / "deep" / "b.parquet", ROWS[3:5])
    (tmp_path / "s" / "_manifest.parquet").write_text("passed over")
    assert len(built(tmp_path / "s", encoder, tmp_path)) == 5
    assert sum(map(len, encoder.calls)) == 5


def test_upserts_take_them_too(tmp_path, encoder, embedded):
    collection = Collection.build([("3", "old"), ("x", "y")], encoder=encoder, path=tmp_path / "idx")
    encoder.calls.clear()
    assert collection.upsert(ROWS, embeddings=embedded) == (149, 1)
    assert sum(map(len, encoder.calls)) <= 64
    assert collection.search("word5 word5", k=1)[0].id == "5"


# Refusals: each before the collection changes


def refused(tmp_path, error, message, documents, encoder, **options):
    with pytest.raises(error, match=message):
        built(documents, encoder, tmp_path, **options)
    assert not (tmp_path / "idx").exists()


def test_another_models_shards_are_refused_at_once(tmp_path, encoder, other_encoder):
    shards = write_shards(tmp_path / "s", other_encoder)
    refused(tmp_path, FingerprintError, "made by other-words .*not by words", shards, encoder)
    assert not encoder.calls


def test_another_models_embeddings_are_refused_after_a_sample(tmp_path, encoder, other_encoder):
    rows = other_encoder.encode([row["text"] for row in ROWS])
    refused(tmp_path, FingerprintError, r"document 1 \(id '0'\)|has a cosine", ROWS, encoder, embeddings=rows)


def test_rows_out_of_step_are_refused(tmp_path, encoder, embedded):
    refused(tmp_path, FingerprintError, "in the order of", ROWS, encoder, embeddings=np.roll(embedded, 1, axis=0))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda rows: rows[:-1], "expected 150 embeddings, one for each document, got 149"),
        (lambda rows: np.concatenate([rows, rows]), "got at least 300"),
        (lambda rows: rows[:, :8], "expected embeddings of 16 dimensions"),
        (lambda rows: rows * 2, "has length 2; expected unit rows"),
        (lambda rows: np.where(np.arange(150)[:, None] == 70, np.nan, rows), "embedding 71 has length nan"),
        (lambda rows: (100 * rows).astype(np.int8), "as floats, got int8"),
        (lambda rows: rows[0], "shape"),
        (lambda rows: rows[0, 0, ...], r"shape \(\)"),
    ],
)
def test_arrays_of_another_form_are_refused(tmp_path, encoder, embedded, spoil, message):
    refused(tmp_path, DataError, message, ROWS, encoder, embeddings=spoil(embedded))


def test_an_unlabelled_column_must_be_named(tmp_path, encoder, embedded):
    shards = write_shards(tmp_path / "s", encoder, maker=False)
    refused(tmp_path, InputError, "does not record their model; give embeddings='embedding'", shards, encoder)
    assert_same(built(shards, encoder, tmp_path, embeddings="embedding"), embedded, encoder)


def test_unfinished_shards_are_refused(tmp_path, encoder):
    shards = write_shards(tmp_path / "s", encoder)
    (shards / "_manifest.json").write_text(json.dumps({"inputs": [{"rows": 100}, {"rows": 80}]}))
    refused(tmp_path, DataError, "unfinished: 150 of 180 rows", shards, encoder)


@pytest.mark.parametrize("damaged", ['{"inputs": [{"rows": 10', "[]", "{}", '{"inputs": [{}]}', '{"inputs": 3}'])
def test_shards_with_a_damaged_manifest_are_refused(tmp_path, encoder, damaged):
    shards = write_shards(tmp_path / "s", encoder)
    (shards / "_manifest.json").write_text(damaged)
    refused(tmp_path, DataError, "_manifest.json", shards, encoder)


def test_a_manifest_beside_parquet_of_others_is_left_alone(tmp_path, encoder, embedded):
    shards = write_shards(tmp_path / "s", encoder, maker=False)
    (shards / "_manifest.json").write_text("made by another program")
    assert_same(built(shards, encoder, tmp_path, embeddings="embedding"), embedded, encoder)


def test_shards_of_several_models_are_refused(tmp_path, encoder, other_encoder):
    shards = write_shards(tmp_path / "s", encoder)
    write_shards(shards / "more", other_encoder, rows=ROWS[:3])
    refused(tmp_path, FingerprintError, "of several models", shards, encoder)


@pytest.mark.parametrize(
    ("documents", "embeddings", "error", "message"),
    [
        ([{"text": "a", "v": [1, "x"]}], "v", DataError, "expected a list of numbers as v"),
        ([{"text": "a", "v": [1]}, {"text": "b", "v": [1, 2]}], "v", DataError, "document 2: expected 1 numbers"),
        ([{"text": "a"}], "v", DataError, "document 1: there is no column 'v'"),
        (["a"], 3, InputError, "got int"),
        (["a"], "nothing.npy", DataError, "not a readable"),
    ],
)
def test_invalid_embeddings_are_refused(tmp_path, encoder, documents, embeddings, error, message):
    refused(tmp_path, error, message, documents, encoder, embeddings=embeddings)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 an archive of arrays"])
def test_what_is_no_array_is_no_readable_file(tmp_path, encoder, content):
    (tmp_path / "rows.npy").write_bytes(content)
    refused(tmp_path, DataError, "not a readable", ["a"], encoder, embeddings=tmp_path / "rows.npy")


def test_quantized_shards_are_refused(tmp_path, encoder):
    pytest.importorskip("pyarrow")
    shards = write_shards(tmp_path / "s", encoder, value_type="int8")
    refused(tmp_path, DataError, "expected lists of floats as embedding", shards, encoder)


# Several processes


def test_an_encoder_of_several_processes_gets_several_chunks_at_once(tmp_path, encoder, monkeypatch):
    monkeypatch.setattr(sources, "_CHUNK", 10)
    one = Collection.build(ROWS, encoder=encoder, path=tmp_path / "one")
    encoder.calls.clear()
    encoder.processes = 3
    several = Collection.build(ROWS, encoder=encoder, path=tmp_path / "several")
    assert [len(call) for call in encoder.calls] == [60, 60, 30]
    np.testing.assert_array_equal(several.sample(1000)[1], one.sample(1000)[1])


def test_folders_of_parquet_as_people_have_them(tmp_path, encoder):
    arrow = pytest.importorskip("pyarrow")
    for lang, table in [
        ("en", arrow.table({"text": ["a"], "n": arrow.array([1], arrow.int32())})),
        ("de", arrow.table({"n": arrow.array([None], arrow.int64()), "text": ["b"]})),
        ("fr", arrow.table({"text": ["c"]})),
    ]:
        (tmp_path / "in" / f"lang={lang}").mkdir(parents=True)
        write_parquet(tmp_path / "in" / f"lang={lang}" / "0.parquet", table)
    collection = Collection.build(tmp_path / "in", encoder=encoder, path=tmp_path / "idx")
    found = sorted((hit.text, hit.metadata["lang"], hit.metadata["n"]) for hit in collection.search("a"))
    assert found == [("a", "en", 1), ("b", "de", None), ("c", "fr", None)]
    assert [hit.text for hit in collection.search("a", filter={"lang": "de"})] == ["b"]


@pytest.mark.parametrize("given", ["array", "column", "shards"])
def test_rows_without_text_are_left_out_with_their_embeddings(tmp_path, encoder, embedded, monkeypatch, given):
    monkeypatch.setattr(sources, "_CHUNK", 4)
    left = sorted({*range(150)} - {0, 3, 8, 9, 10, 11, 77, 149})  # without a whole chunk, and both ends
    rows = [row if row["n"] in left else {**row, "text": " "} for row in ROWS]
    embeddings = {"array": embedded, "column": "vector"}.get(given)
    if given == "column":
        rows = [{**row, "vector": vector} for row, vector in zip(rows, embedded, strict=True)]
    if given == "shards":
        rows = write_shards(tmp_path / "shards", encoder, rows)
    collection = built(rows, encoder, tmp_path, embeddings=embeddings, skip_empty=True)
    documents, found = collection.sample(1000)
    assert [document.metadata["n"] for document in documents] == left
    np.testing.assert_array_equal(found, embedded[left])


def test_links_out_of_a_folder_of_parquet_are_left_out(tmp_path, encoder, caplog):
    (tmp_path / "docs").mkdir()
    write_parquet(tmp_path / "docs" / "a.parquet", [{"id": "a", "text": "a dog"}])
    write_parquet(tmp_path / "b.parquet", [{"id": "b", "text": "the sea"}])
    (tmp_path / "docs" / "b.parquet").symlink_to(tmp_path / "b.parquet")
    (tmp_path / "docs" / "c.parquet").symlink_to("a.parquet")
    documents = list(find_source(tmp_path / "docs").documents)
    assert [document.text for document in documents] == ["a dog", "a dog"]
    assert "left out links that lead outside of the folder: b.parquet" in caplog.text
    assert [document.id for document in find_source(tmp_path / "docs" / "b.parquet").documents] == ["b"]
