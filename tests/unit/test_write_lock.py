"""The right to write: held by one, free again when its holder is gone; by folder and by file, as on Windows."""

from __future__ import annotations

import subprocess
import sys

import pytest

from embedkit import write_lock as module
from embedkit.errors import CollectionError
from embedkit.write_lock import write_lock

HOLDER = """
import sys, time
from pathlib import Path
from embedkit import write_lock as module

with getattr(module, sys.argv[1])(Path(sys.argv[2])):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture(params=["_lock_folder", "_lock_file"])
def way(request, monkeypatch):
    pytest.importorskip("fcntl" if request.param == "_lock_folder" else "filelock")
    monkeypatch.setattr(module, "_lock_folder", getattr(module, request.param))
    return request.param


def test_a_second_holder_is_refused_until_the_first_is_done(way, tmp_path):
    with write_lock(tmp_path), pytest.raises(CollectionError, match="somebody else is writing"):
        write_lock(tmp_path).__enter__()
    with write_lock(tmp_path):
        pass


def test_an_error_within_is_the_writers_own(way, tmp_path):
    with pytest.raises(BlockingIOError, match="a pipe"), write_lock(tmp_path):
        raise BlockingIOError("a pipe")
    with write_lock(tmp_path):
        pass


def test_a_killed_process_holds_nothing(way, tmp_path):
    with subprocess.Popen([sys.executable, "-c", HOLDER, way, tmp_path], stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(CollectionError):
            write_lock(tmp_path).__enter__()
        holder.kill()
    with write_lock(tmp_path):
        pass
