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


ROWS = np.arange(12, dtype=np.float32).reshape(4, 3)


@pytest.fixture
def path(tmp_path):
    with ArrayWriter(tmp_path / "arrays.bin") as arrays:
        arrays.add("numbers", np.arange(5))
        arrays.add_rows("rows", (4, 3), "<f4", [ROWS[:1], ROWS[1:]])
        arrays.add_rows("nothing", (0, 3), "<f4", [])
    return tmp_path / "arrays.bin"


def test_written_arrays_are_mapped_read_only(path):
    arrays = Arrays(path)
    np.testing.assert_array_equal(arrays.get("rows", (4, 3), "<f4"), ROWS)
    assert arrays.get("nothing", (0, 3), "<f4").shape == (0, 3)
    mapped = arrays.get("numbers", (5,), "<i8")
    np.testing.assert_array_equal(mapped, np.arange(5))
    assert mapped.flags.aligned
    with pytest.raises(ValueError, match="read-only"):
        mapped[0] = 1


@pytest.mark.parametrize(
    ("name", "shape", "dtype"),
    [("rows", (2, 6), "<f4"), ("rows", (12,), "<f4"), ("rows", (4, 3), "<i4"), ("rows", (10**30, 3), "<f4"),
     ("others", (4, 3), "<f4"), ("rows", (4, 3), "|O")],
)  # fmt: skip
def test_another_name_shape_or_dtype_is_refused(path, name, shape, dtype):
    with pytest.raises(CollectionError, match=r"arrays\.bin is damaged"):
        Arrays(path).get(name, shape, dtype)


def test_large_files_are_flushed_in_pieces(tmp_path, monkeypatch):
    """So that the flush of another file never waits for more than a piece."""
    path, sizes = tmp_path / "a.bin", [0]
    monkeypatch.setattr(stored_files, "PIECE_BYTES", 1000)
    monkeypatch.setattr(stored_files, "_flush_data", lambda _: sizes.append(path.stat().st_size))
    rows = np.arange(3000, dtype=np.int32).reshape(1000, 3)
    with ArrayWriter(path) as arrays:
        arrays.add_rows("rows", rows.shape, "<i4", [rows[:1], rows[1:700], rows[700:700], rows[700:]])
    np.testing.assert_array_equal(Arrays(path).get("rows", rows.shape, "<i4"), rows)
    assert max(np.diff([*sizes, path.stat().st_size])) <= 1000
    assert len(sizes) >= 12
