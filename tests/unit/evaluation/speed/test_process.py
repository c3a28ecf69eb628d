"""Worker processes: real ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from embedkit.errors import ModelError
from embedkit.evaluation.speed.measure import Candidate, WorkerProcess, choose_processors


@pytest.fixture
def worker_module(tmp_path, monkeypatch):
    """``worker_module(code)`` -> name of a module that serves as a worker."""

    def write(code):
        (tmp_path / "strange_worker.py").write_text(code)
        monkeypatch.syspath_prepend(str(tmp_path))
        return "strange_worker"

    return write


def test_a_model_starts_describes_itself_and_is_timed(toy_bundle):
    with WorkerProcess(Candidate(source=str(toy_bundle)), threads=1) as worker:
        start, about = worker.start, worker.about
        assert 0 < start.imported < start.loaded < start.embedded
        assert (about["name"], about["dimension"], about["max_length"]) == ("toy", 16, 12)
        assert about["size_bytes"] == toy_bundle.stat().st_size
        worker.keep("short", ["a good dog", "the cat"])
        answer = worker.time("short", batch=3, calls=4, warm_up=1)
        assert len(answer["seconds"]) == 4
        assert all(seconds > 0 for seconds in answer["seconds"])
        if Path("/proc/self/status").exists():
            assert 10e6 < worker.memory_bytes <= answer["most_memory_bytes"]


def test_a_model_that_cannot_be_loaded_is_named(tmp_path):
    with pytest.raises(ModelError, match=r"gone\.onnx cannot be timed: there is no file or folder"):
        WorkerProcess(Candidate(source=str(tmp_path / "gone.onnx")), threads=1)


def test_the_error_of_a_dead_worker_holds_its_last_output(worker_module):
    module = worker_module("raise RuntimeError('out of luck')")
    with pytest.raises(ModelError, match="ended with code 1: RuntimeError: out of luck"):
        WorkerProcess(Candidate(source="any", worker=module), threads=1)


def test_a_busy_worker_is_ended_on_failure(worker_module):
    module = worker_module(
        """
import time
from embedkit.child import parent, write_frame

def main():
    with parent() as (_, answers):
        for _ in range(3):
            write_frame(answers, {"about": {}, "memory_bytes": 1})
        time.sleep(600)
"""
    )
    with (
        pytest.raises(KeyboardInterrupt),
        WorkerProcess(Candidate(source="any", worker=module), threads=1) as worker,
    ):
        raise KeyboardInterrupt
    assert worker._child.process.returncode is not None


def test_processors_of_their_own_cores_come_first(tmp_path):
    for processor, siblings in enumerate(["0,2", "1,3", "0,2", "1,3"]):
        folder = tmp_path / f"cpu{processor}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(siblings)
    assert choose_processors({0, 1, 2, 3}, 2, tmp_path) == {0, 1}
    assert choose_processors({0, 2, 3}, 2, tmp_path) == {0, 3}
    assert choose_processors({0, 2, 3}, 3, tmp_path) == {0, 2, 3}
    assert choose_processors({5, 6}, 1, tmp_path / "unknown") == {5}
