from __future__ import annotations

import numpy as np
import pytest

from embedkit.errors import CollectionError, DataError
from embedkit.serving.retrieval.documents import Document
from embedkit.serving.retrieval.store import segment as segment_module
from embedkit.serving.retrieval.store.files import Arrays, ArrayWriter
from embedkit.serving.retrieval.store.segment import DocumentStore, DocumentWriter

DOCUMENTS = [
    Document("a", "one\ntwo\r\nthree"),
    Document("b", "\u2028 \x00 ü 雪 \U0001f41d", {"n": None, "deep": {"x": [1, 2.5, True]}}),
    Document("", "an id may be odd", {}),
]


def write_documents(folder, documents):
    return written(folder, documents)[0]


def written(folder, documents, **damaged):
    with DocumentWriter(folder) as file:
        for document in documents:
            file.add(document)
        store, arrays, checksum = file.finish()
    with ArrayWriter(folder / "arrays.bin") as kept:
        for name, array in (arrays | damaged).items():
            kept.add(name, array)
    return store, Arrays(folder / "arrays.bin"), checksum


def test_what_is_written_is_read_by_row_and_found_by_id(tmp_path):
    _, arrays, checksum = written(tmp_path, iter(DOCUMENTS))
    checksum.check(tmp_path / "documents.jsonl")
    store = DocumentStore.open(tmp_path, 3, arrays, checksum)
    assert len(store) == 3
    assert [store.read(row) for row in range(3)] == DOCUMENTS
    assert store.find([*(document.id for document in DOCUMENTS), "c"]) == {"a": 0, "b": 1, "": 2}


def test_a_repeated_id_names_both_documents(tmp_path):
    documents = [Document(id_, "t") for id_ in ("x", "y", "z", "y")]
    with pytest.raises(DataError, match="documents 2 and 4 have the same id 'y'"):
        write_documents(tmp_path, documents)


def test_ids_with_one_hash_are_distinguished(tmp_path, monkeypatch):
    monkeypatch.setattr(segment_module, "text_hash", lambda id_: 2**64 - 1)
    store = write_documents(tmp_path, [Document(id_, "t") for id_ in "xyz"])
    assert store.find(list("xyzw")) == {"x": 0, "y": 1, "z": 2}
    with pytest.raises(DataError, match="documents 1 and 3 have the same id 'x'"):
        write_documents(tmp_path, [Document(id_, "t") for id_ in "xyx"])


@pytest.mark.parametrize(
    "document",
    [
        Document("a", "half \ud83d of a letter"),
        Document("half \ud83d", "text"),
        Document("a", "text", {"n": float("nan")}),
        Document("a", "text", {"n": object()}),
        Document("a", "text", {"n": b"bytes"}),
    ],
    ids=["surrogate", "surrogate-id", "nan", "object", "bytes"],
)
def test_values_that_json_cannot_hold_are_refused(tmp_path, document):
    with pytest.raises(DataError, match=r"document 2 .* cannot be written as JSON"):
        write_documents(tmp_path, [Document("first", "t"), document])


def test_a_document_deeper_than_json_goes_is_refused(tmp_path):
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(DataError, match="cannot be written"):
        write_documents(tmp_path, [Document("a", "text", {"deep": deep})])


@pytest.mark.parametrize(
    "line",
    [b"{}", b"[]", b"null", b'{"id": 1, "text": "a"}', b'{"id": "a", "text": 1}', b"\xff", b"[" * 100_000,
     b'{"id": "a", "text": "a", "metadata": 3}'],
)  # fmt: skip
def test_a_damaged_line_is_an_error(tmp_path, line):
    _, arrays, _ = written(tmp_path, [Document("a", "t" * 2 * len(line))])
    path = tmp_path / "documents.jsonl"
    path.write_bytes(line.ljust(path.stat().st_size))
    with pytest.raises(CollectionError, match=r"documents\.jsonl"):
        DocumentStore.open(tmp_path, 1, arrays).read(0)


@pytest.mark.parametrize("value", [-1, 0, 2**62, -(2**63)])
def test_damaged_offsets_are_an_error(tmp_path, value):
    offsets = np.array([0, value, 20], dtype="<i8")
    _, arrays, _ = written(tmp_path, [Document("a", "text"), Document("b", "text")], offsets=offsets)
    with pytest.raises(CollectionError, match="is damaged"):
        DocumentStore.open(tmp_path, 2, arrays).read(0)


def test_damaged_metadata_is_reported(tmp_path):
    store, arrays, _ = written(tmp_path, [Document("a", "b", {"x": 1}), Document("c", "d")])
    lines = (tmp_path / "documents.jsonl").read_bytes()
    for damaged in (lines.replace(b"{", b"["), lines.replace(b'{"x": 1}', b"12345678"), b" " * len(lines)):
        (tmp_path / "documents.jsonl").write_bytes(damaged)
        with pytest.raises(CollectionError, match=r"documents\.jsonl"):
            [DocumentStore.open(tmp_path, len(store), arrays).read(row) for row in range(2)]
