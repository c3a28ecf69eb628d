"""Files and folders appear whole or not at all."""

from __future__ import annotations

import errno
import os
import re
import stat
from pathlib import Path

import pytest
from toys import limit_threads

from embedkit import CrossEncoder, Encoder, atomic
from embedkit.atomic import atomic_file, atomic_folder, cache_folder, expanded
from embedkit.cli.main import main
from embedkit.errors import BundleError, InputError, StorageError
from embedkit.evaluation.catalogue import load_task
from embedkit.runtime.find import find_folder


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_file_appears_when_it_is_whole(tmp_path):
    target = tmp_path / "new/deep/file.bin"
    with atomic_file(target) as temporary:
        temporary.write_bytes(b"content")
        assert temporary.parent == target.parent
        assert not target.exists()
    assert target.read_bytes() == b"content"
    assert names(target.parent) == ["file.bin"]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such permissions")
def test_what_is_replaced_keeps_its_permissions(tmp_path):
    """A private file would otherwise become readable for others."""
    (tmp_path / "file").touch(0o600)
    (tmp_path / "folder").mkdir(0o700)
    with atomic_file(tmp_path / "file") as temporary:
        assert stat.S_IMODE(temporary.stat().st_mode) == 0o600
        temporary.write_bytes(b"secret")
    with atomic_folder(tmp_path / "folder"):
        pass
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("file", "folder")]
    assert modes == [0o600, 0o700]


def test_a_new_folder_is_flushed_with_every_parent_that_was_created(tmp_path, monkeypatch):
    flushed = []
    monkeypatch.setattr(atomic, "flush", flushed.append)
    assert atomic.make_folder(tmp_path / "a" / "b")
    assert flushed == [tmp_path, tmp_path / "a"]
    assert not atomic.make_folder(tmp_path / "a" / "b")


def test_the_package_creates_parents_in_no_other_way():
    sources = [*Path(atomic.__file__).parent.rglob("*.py")]
    assert len(sources) > 100
    assert [path.name for path in sources if re.search(r"parents=True|makedirs\(", path.read_text("utf-8"))] == []


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, BundleError])
def test_a_failure_leaves_the_old_file(tmp_path, error):
    target = tmp_path / "file.bin"
    target.write_bytes(b"old")

    def write():
        with atomic_file(target) as temporary:
            temporary.write_bytes(b"new")
            raise error("stop")

    with pytest.raises(error):
        write()
    assert target.read_bytes() == b"old"
    assert names(tmp_path) == ["file.bin"]


def test_a_file_has_the_permissions_of_any_other_new_one(tmp_path):
    (tmp_path / "plain").touch()
    with atomic_file(tmp_path / "file"):
        pass
    with atomic_folder(tmp_path / "folder"):
        pass
    (tmp_path / "made").mkdir()
    assert (tmp_path / "file").stat().st_mode == (tmp_path / "plain").stat().st_mode
    assert (tmp_path / "folder").stat().st_mode == (tmp_path / "made").stat().st_mode


@pytest.mark.parametrize("write", [atomic_file, atomic_folder])
def test_a_full_disk_is_a_storage_error(tmp_path, write):
    with (
        pytest.raises(StorageError, match=r"cannot write .*target: No space left") as caught,
        write(tmp_path / "target"),
    ):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert caught.value.errno == errno.ENOSPC
    assert names(tmp_path) == []


@pytest.mark.parametrize("write", [atomic_file, atomic_folder])
def test_a_folder_that_is_a_file_is_a_storage_error(tmp_path, write):
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="cannot write"), write(tmp_path / "file/inner"):
        pass
    assert names(tmp_path) == ["file"]


@pytest.mark.skipif(os.name == "nt", reason="no such devices on Windows")
def test_a_device_is_not_replaced():
    with pytest.raises(StorageError, match="not a regular file"), atomic_file("/dev/null"):
        pass
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)


def test_a_file_does_not_replace_a_folder_nor_a_folder_a_file(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="not a regular file"), atomic_file(tmp_path / "folder"):
        pass
    with pytest.raises(StorageError, match="not a folder"), atomic_folder(tmp_path / "file"):
        pass
    assert names(tmp_path) == ["file", "folder"]


def test_the_longest_names_can_be_written(tmp_path):
    with atomic_file(tmp_path / ("x" * 255)) as temporary:
        temporary.write_bytes(b"1")
    with atomic_file(tmp_path / ("ü" * 127)) as temporary:
        temporary.write_bytes(b"2")
    assert len(names(tmp_path)) == 2


def test_a_folder_replaces_the_old_one(tmp_path):
    target = tmp_path / "model"
    for number in range(2):
        with atomic_folder(target) as temporary:
            (temporary / "deep").mkdir()
            (temporary / f"deep/{number}").write_text("x")
    assert names(target) == ["deep"]
    assert names(target / "deep") == ["1"]
    assert names(tmp_path) == ["model"]


def test_a_failed_folder_leaves_the_old_one(tmp_path):
    target = tmp_path / "model"
    target.mkdir()
    (target / "old").touch()

    def write():
        with atomic_folder(target) as temporary:
            (temporary / "new").touch()
            raise ValueError("stop")

    with pytest.raises(ValueError, match="stop"):
        write()
    assert names(target) == ["old"]
    assert names(tmp_path) == ["model"]


def test_the_old_folder_comes_back_when_the_new_one_cannot_be_moved(tmp_path, monkeypatch):
    target = tmp_path / "model"
    target.mkdir()
    (target / "old").touch()
    rename = Path.rename

    def refuse(self, other):
        if self.suffix == ".part":
            raise PermissionError(errno.EACCES, "Permission denied")
        return rename(self, other)

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(StorageError, match="Permission denied"), atomic_folder(target):
        pass
    assert names(target) == ["old"]
    assert names(tmp_path) == ["model"]


def test_writers_of_one_name_do_not_collide(tmp_path):
    target = tmp_path / "file"
    with atomic_file(target) as first, atomic_file(target) as second:
        assert first != second
        first.write_text("1")
        second.write_text("2")
    assert target.read_text() == "1"


def test_a_folder_is_flushed_with_all_that_is_in_it(tmp_path, monkeypatch):
    flushed: list[Path] = []
    monkeypatch.setattr(atomic, "flush", flushed.append)
    with atomic_folder(tmp_path / "target") as folder:
        (folder / "inner").mkdir()
        (folder / "inner/file").touch()
    assert flushed[-1] == tmp_path
    assert sorted(flushed[:-1]) == [folder, folder / "inner", folder / "inner/file"]


@pytest.mark.parametrize("started", [0, 1])
def test_a_folder_is_flushed_where_fewer_threads_can_be_started(tmp_path, monkeypatch, started):
    flushed: list[Path] = []
    monkeypatch.setattr(atomic, "flush", flushed.append)
    limit_threads(monkeypatch, started)
    with atomic_folder(tmp_path / "target") as folder:
        (folder / "file").touch()
    assert {*flushed} == {folder, folder / "file", tmp_path}


class TestHomeFolders:
    def test_a_home_folder_is_expanded(self, monkeypatch, tmp_path):
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setenv("USERPROFILE", str(tmp_path))
        assert expanded("~/models") == tmp_path / "models"
        assert expanded("a/~/b") == Path("a/~/b")

    @pytest.mark.parametrize("function", [Encoder.load, CrossEncoder.load, find_folder, load_task, expanded])
    def test_an_unknown_home_folder_is_an_error_of_the_tree(self, function):
        with pytest.raises(InputError, match=r"^~no-such-user/x\.onnx: there is no home folder ~no-such-user$"):
            function("~no-such-user/x.onnx")

    def test_the_cache_may_have_none_either(self, monkeypatch):
        monkeypatch.setenv("XDG_CACHE_HOME", "~no-such-user/cache")
        with pytest.raises(InputError, match="there is no home folder ~no-such-user"):
            cache_folder("models")

    @pytest.mark.parametrize("command", [["inspect"], ["report"], ["encode", "-m"], ["export", "-o", "x.onnx"]])
    def test_commands_say_so(self, command, tmp_path, monkeypatch, capsys):
        monkeypatch.chdir(tmp_path)
        Path("x.txt").write_text("a\n", encoding="utf-8")
        more = ["x.txt", "-o", "x.npy"] if command[0] == "encode" else []
        main([command[0], *more, *command[1:], "~no-such-user/x"])
        assert "there is no home folder ~no-such-user" in capsys.readouterr().err
