"""The write lock: held by one process, free again when it ends; by folder and by file, as on Windows."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import threading

import pytest

from embedkit import write_lock as module
from embedkit.errors import CacheError, CollectionError, StorageError
from embedkit.write_lock import write_lock

HOLDER = """
import sys, time
from pathlib import Path
from embedkit import write_lock as module

module._lock_folder = getattr(module, sys.argv[1])
with module.write_lock(Path(sys.argv[2])):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture(params=["_lock_folder", "_lock_file"])
def way(request, monkeypatch):
    pytest.importorskip("fcntl" if request.param == "_lock_folder" else "filelock")
    monkeypatch.setattr(module, "_lock_folder", getattr(module, request.param))
    return request.param


@pytest.mark.usefixtures("way")
def test_a_second_holder_is_refused_until_the_first_is_done(tmp_path):
    with write_lock(tmp_path), pytest.raises(CollectionError, match="another process is writing"):
        write_lock(tmp_path).__enter__()
    with write_lock(tmp_path):
        pass


@pytest.mark.usefixtures("way")
def test_a_patient_writer_waits_and_says_so(tmp_path, monkeypatch):
    waiting, done = threading.Event(), threading.Event()
    monkeypatch.setattr(module.logger, "info", lambda *_: waiting.set())

    def write():
        with write_lock(tmp_path, patient=True):
            done.set()

    thread = threading.Thread(target=write)
    with write_lock(tmp_path):
        thread.start()
        assert waiting.wait(60)
        assert not done.is_set()
    thread.join(250)
    assert done.is_set()


@pytest.mark.usefixtures("way")
def test_the_error_is_the_callers_choice(tmp_path):
    with write_lock(tmp_path, refusal=CacheError, needed=True), pytest.raises(CacheError, match="another process"):
        write_lock(tmp_path, refusal=CacheError).__enter__()


def test_a_folder_that_is_not_there_is_an_error_of_storage(tmp_path):
    with pytest.raises(StorageError, match="none"):
        write_lock(tmp_path / "none").__enter__()


@pytest.fixture
def lockable(monkeypatch):
    """``lockable(accepts)``: a file system that locks only files for which ``accepts(mode)`` is true."""
    fcntl = pytest.importorskip("fcntl")
    flock = fcntl.flock

    def change(accepts):
        def partly(descriptor, operation):
            if not accepts(os.fstat(descriptor).st_mode):
                raise OSError(errno.ENOLCK, "No locks available")
            flock(descriptor, operation)

        monkeypatch.setattr(fcntl, "flock", partly)

    return change


def test_where_folders_cannot_be_locked_a_file_is(lockable, tmp_path):
    lockable(stat.S_ISREG)
    with write_lock(tmp_path, needed=True), pytest.raises(CollectionError, match="another process is writing"):
        write_lock(tmp_path).__enter__()
    with write_lock(tmp_path):
        assert (tmp_path / module.LOCK).exists()


def test_without_locks_only_callers_that_need_one_are_refused(lockable, tmp_path):
    lockable(lambda _: False)
    with write_lock(tmp_path), write_lock(tmp_path):
        pass
    with pytest.raises(CacheError, match="has no locks"):
        write_lock(tmp_path, refusal=CacheError, needed=True).__enter__()


@pytest.mark.usefixtures("way")
def test_errors_of_the_writer_are_passed_on(tmp_path):
    with pytest.raises(BlockingIOError, match="a pipe"), write_lock(tmp_path):
        raise BlockingIOError("a pipe")
    with write_lock(tmp_path):
        pass


def test_a_killed_process_releases_the_lock(way, tmp_path):
    with subprocess.Popen([sys.executable, "-c", HOLDER, way, tmp_path], stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(CollectionError):
            write_lock(tmp_path).__enter__()
        holder.kill()
    with write_lock(tmp_path):
        pass


def test_a_lock_ends_although_a_child_has_inherited_its_descriptor(tmp_path, monkeypatch):
    pytest.importorskip("fcntl")
    opened, inherited = os.open, []

    def open_and_inherit(*arguments, **options):
        descriptor = opened(*arguments, **options)
        inherited.append(os.dup(descriptor))
        return descriptor

    monkeypatch.setattr(os, "open", open_and_inherit)
    try:
        with write_lock(tmp_path):
            pass
        with write_lock(tmp_path):
            pass
    finally:
        for descriptor in inherited:
            os.close(descriptor)
