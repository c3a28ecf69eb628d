from __future__ import annotations

import hashlib

import numpy as np
import pytest

from embedkit.errors import CollectionError
from embedkit.serving.retrieval.store import columns
from embedkit.serving.retrieval.store import files as stored_files
from embedkit.serving.retrieval.store.columns import ColumnFiles, ColumnsBuilder
from embedkit.serving.retrieval.store.files import Arrays, ArrayWriter


def written(folder, metadata):
    builder = ColumnsBuilder()
    for fields in metadata:
        builder.add(fields)
    with ArrayWriter(folder / "arrays.bin") as arrays:
        builder.save(arrays)
    return ColumnFiles(Arrays(folder / "arrays.bin"), len(metadata))


def test_values_are_returned_in_order_with_small_codes(tmp_path):
    kinds = [3, 1, 2.5, "b", "ä", "\U0001f41d", None, True, "", -7]
    files = written(tmp_path, [{"f": value} for value in kinds])
    column = files.column("f")
    assert [value for _, value in column.values] == [0, True, -7, 1, 2.5, 3, "", "b", "ä", "\U0001f41d"]
    assert column.codes.dtype == np.uint8
    assert column.rows is None
    assert column.samples == {"null": None, "boolean": True, "number": -7, "text": ""}
    assert files.names == files.fields == {"f"}


@pytest.mark.parametrize(("distinct", "dtype"), [(255, np.uint8), (256, np.uint16), (70_000, np.uint32)])
def test_codes_are_as_wide_as_they_need_to_be(tmp_path, distinct, dtype):
    metadata = [{"n": number, "t": f"text {number}"} for number in range(distinct)] + [{}]
    files = written(tmp_path, metadata)
    for field in ("n", "t"):
        column = files.column(field)
        assert column.codes.dtype == dtype
        assert column.present().sum() == distinct
        value = metadata[distinct // 2][field]
        assert np.flatnonzero(column.equal([value])).tolist() == [distinct // 2]
    some = [f"text {number}" for number in range(5, 90)]
    assert np.flatnonzero(files.column("t").equal(some)).tolist() == list(range(5, 90))


def test_numbers_that_no_dtype_holds_are_read_from_the_documents(tmp_path):
    huge = [{"a": 2**70, "b": 2**53 + 1, "c": 2**60}, {"a": 1, "b": 0.5, "c": 1}]
    files = written(tmp_path, huge)
    assert files.fields == {"c"}
    assert files.names == {"a", "b", "c"}
    assert files.column("c").equal([2**60]).tolist() == [True, False]


def test_long_texts_and_many_fields_are_read_from_the_documents(tmp_path, monkeypatch):
    monkeypatch.setattr(columns, "_MOST_TEXT", 100)
    monkeypatch.setattr(columns, "_MOST_FIELDS", 3)
    metadata = [{"long": f"{number:030}", "short": number % 3} for number in range(9)]
    files = written(tmp_path, [*metadata, {"third": 1}])
    assert files.fields == {"short", "third"}
    assert files.names == {"short", "third", "long"}
    files = written(tmp_path, [*metadata, {"third": 1, "fourth": 2}])
    assert files.names is None


def test_no_metadata_at_all(tmp_path):
    files = written(tmp_path, [{}, {}])
    assert files.fields == frozenset()


@pytest.mark.parametrize(
    "damage",
    [
        lambda directory: directory.pop("columns"),
        lambda directory: directory.update(bytes=10**9),
        lambda directory: directory["columns"]["f"].pop("codes"),
        lambda directory: directory["columns"]["f"].update(codes=[0, 10**6, "|u1"]),
        lambda directory: directory["columns"]["f"].update(codes=[0, 1, "|u1"]),
        lambda directory: directory["columns"]["f"].update(codes=[0, 8, "|O"]),
    ],
)
def test_damage_is_reported(tmp_path, damage):
    written(tmp_path, [{"f": value} for value in ("a", "b", 3)])
    arrays = Arrays(tmp_path / "arrays.bin")
    damage(arrays.notes["columns"])
    with pytest.raises(CollectionError, match=r"arrays\.bin is damaged"):
        ColumnFiles(arrays, 3).column("f")


def test_a_directory_that_was_changed_or_nests_too_deeply_is_refused(tmp_path):
    written(tmp_path, [{"f": 1}])
    path = tmp_path / "arrays.bin"
    content = path.read_bytes()
    path.write_bytes(content.replace(b'"has_all_names"', b'"has_any_names"'))
    with pytest.raises(CollectionError, match="directory was changed"):
        Arrays(path)
    text = b"[" * 100_000
    path.write_bytes(text + stored_files._TRAILER.pack(hashlib.sha256(text).digest(), len(text), b"ekarray1"))
    with pytest.raises(CollectionError, match="damaged"):
        Arrays(path)
