from __future__ import annotations

import numpy as np
import pytest

from embedkit.errors import CollectionError
from embedkit.serving.retrieval.store import files as stored_files
from embedkit.serving.retrieval.store.files import map_array, write_array


def test_numpy_reads_what_is_written(tmp_path):
    rows = np.arange(12, dtype=np.float32).reshape(4, 3)
    write_array(tmp_path / "a.npy", (4, 3), "<f4", [rows[:1], rows[1:]])
    loaded = np.load(tmp_path / "a.npy", allow_pickle=False)
    np.testing.assert_array_equal(loaded, rows)
    assert loaded.dtype == np.float32


def test_written_arrays_are_mapped_read_only(tmp_path):
    numbers = np.arange(5)
    write_array(tmp_path / "a.npy", (5,), "<i8", [numbers])
    mapped = map_array(tmp_path / "a.npy", (5,), "<i8")
    np.testing.assert_array_equal(mapped, numbers)
    assert mapped.flags.aligned
    with pytest.raises(ValueError, match="read-only"):
        mapped[0] = 1


@pytest.mark.parametrize("rows", [1, 10**12])
def test_the_header_has_one_length(tmp_path, rows):
    write_array(tmp_path / "a.npy", (rows, 10**6), "<f4", [])
    assert (tmp_path / "a.npy").stat().st_size == 128


@pytest.mark.parametrize(
    ("shape", "dtype"), [((2, 6), "<f4"), ((12,), "<f4"), ((4, 3), "<i4"), ((10**30, 3), "<f4")]
)
def test_another_shape_or_dtype_is_refused(tmp_path, shape, dtype):
    write_array(tmp_path / "a.npy", (4, 3), "<f4", [np.zeros((4, 3), dtype=np.float32)])
    with pytest.raises(CollectionError, match=r"a\.npy is damaged"):
        map_array(tmp_path / "a.npy", shape, dtype)


def test_a_pickle_is_refused_unread(tmp_path):
    np.save(tmp_path / "a.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(CollectionError, match="damaged"):
        map_array(tmp_path / "a.npy", (1,), "<i8")


def test_arrays_may_be_empty(tmp_path):
    write_array(tmp_path / "a.npy", (0, 3), "<f4", [np.empty((0, 3), np.float32)])
    assert map_array(tmp_path / "a.npy", (0, 3), "<f4").shape == (0, 3)


def test_large_files_are_flushed_in_pieces(tmp_path, monkeypatch):
    """So that the flush of another file never waits for more than a piece."""
    sizes = [0]
    path = tmp_path / "a.npy"
    monkeypatch.setattr(stored_files, "PIECE_BYTES", 1000)
    monkeypatch.setattr(stored_files, "_flush_data", lambda _: sizes.append(path.stat().st_size))
    rows = np.arange(3000, dtype=np.int32).reshape(1000, 3)
    write_array(path, rows.shape, "<i4", [rows[:1], rows[1:700], rows[700:700], rows[700:]])
    np.testing.assert_array_equal(np.load(path), rows)
    assert max(np.diff([*sizes, path.stat().st_size])) <= 1000
    assert len(sizes) >= 12
