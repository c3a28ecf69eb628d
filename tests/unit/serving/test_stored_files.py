from __future__ import annotations

import numpy as np
import pytest

from embedkit.errors import CollectionError
from embedkit.serving.retrieval.store import files as stored_files
from embedkit.serving.retrieval.store.files import Arrays, ArrayWriter

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
