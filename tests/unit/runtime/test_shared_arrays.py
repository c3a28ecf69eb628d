"""Arrays in memory once for all processes of a folder."""

from __future__ import annotations

import errno
import logging
import sys

import numpy as np
import pytest

from embedkit.runtime.shared_arrays import SharedArrays

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="mapped files cannot be replaced")


def make():
    return {"a": np.arange(5, dtype=np.float32), "b": np.ones((2, 3), dtype=np.int8)}


def never():
    raise AssertionError("the arrays are there already")


def test_the_first_process_writes_and_all_map_the_same_files(tmp_path):
    first = SharedArrays(tmp_path, "tiny", "1").get("avx2", make)
    second = SharedArrays(tmp_path, "tiny", "1").get("avx2", never)
    for arrays in (first, second):
        assert {name: array.tolist() for name, array in arrays.items()} == {
            name: array.tolist() for name, array in make().items()
        }
        assert all(isinstance(array, np.memmap) and not array.flags.writeable for array in arrays.values())
        assert all(array.ctypes.data % 64 == 0 for array in arrays.values())
    assert [first[name].filename for name in "ab"] == [second[name].filename for name in "ab"]


def test_models_do_not_share_arrays_with_each_other(tmp_path):
    SharedArrays(tmp_path, "tiny", "1").get("avx2", make)
    other = SharedArrays(tmp_path, "org/tiny", "1").get("avx2", lambda: {"a": np.zeros(1)})
    assert other.keys() == {"a"}


@pytest.mark.parametrize(("key", "form"), [("2", "avx2"), ("1", "portable")])
def test_another_version_replaces_the_files_and_leaves_what_is_mapped(tmp_path, key, form):
    before = SharedArrays(tmp_path, "tiny", "1").get("avx2", make)
    after = SharedArrays(tmp_path, "tiny", key).get(form, lambda: {"a": np.zeros(5, dtype=np.float32)})
    assert before["a"].tolist() == [0, 1, 2, 3, 4]
    assert {name: array.tolist() for name, array in after.items()} == {"a": [0] * 5}


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("record.json", None),  # of a process that was killed
        ("record.json", b"\xff"),
        ("a.npy", None),  # after a cleaner of temporary folders
        ("a.npy", b""),
        ("a.npy", b"?" * 148),
        ("c.npy", b"of another program"),
    ],
)
def test_files_that_are_not_as_written_are_written_again(tmp_path, file, content):
    SharedArrays(tmp_path, "tiny", "1").get("avx2", make)
    (folder,) = (path for path in tmp_path.iterdir() if path.is_dir())
    (folder / file).unlink(missing_ok=True)
    if content is not None:
        (folder / file).write_bytes(content)
    for arrays in (SharedArrays(tmp_path, "tiny", "1").get("avx2", way) for way in (make, never)):
        assert {name: array.tolist() for name, array in arrays.items()} == {
            name: array.tolist() for name, array in make().items()
        }


def test_on_a_full_disk_the_arrays_are_private_and_nothing_is_left(tmp_path, caplog, monkeypatch):
    save = np.save

    def fill(file, array, **options):
        if file.stem == "b":
            raise OSError(errno.ENOSPC, "No space left on device")
        save(file, array, **options)

    monkeypatch.setattr(np, "save", fill)
    with caplog.at_level(logging.WARNING):
        arrays = SharedArrays(tmp_path, "tiny", "1").get("avx2", make)
    assert arrays["a"].flags.writeable
    assert "No space left on device" in caplog.text
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]


def test_without_a_folder_the_arrays_are_private(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        arrays = SharedArrays(tmp_path / "gone", "tiny", "1").get("avx2", make)
    assert arrays["a"].flags.writeable
    assert "weights are not shared with other processes" in caplog.text
