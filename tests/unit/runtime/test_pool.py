"""Pools: the same embeddings and errors as one process, and no process left behind."""

from __future__ import annotations

import errno
import itertools
import json
import logging
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from toys import limit_threads, refuse_conditions

from embedkit import Encoder, child
from embedkit.errors import InputError, ModelError, StorageError, TextOverflowError, WorkerError
from embedkit.protocols import TextEncoder
from embedkit.runtime import batching
from embedkit.runtime import pool as pool_module
from embedkit.runtime.bundle import read_bundle
from embedkit.threads import most_processes

TEXTS = ["a dog in the garden", "", "Music!", "the sea and the garden", "one two", 'naïve "北京"'] * 5
LONG = " ".join(["dog"] * 30)

SCRIPT = """
import signal
import sys
from embedkit import Encoder

# A shell that runs the tests in the background has its children ignore SIGINT.
signal.signal(signal.SIGINT, signal.default_int_handler)

print("main", flush=True)
encoder = Encoder.load(sys.argv[1], threads=1)
with encoder.pool(2) as pool:
    print(*[worker.child.process.pid for worker in pool._workers], flush=True)
    assert (pool.encode(["a dog", "the sea"]) == encoder.encode(["a dog", "the sea"])).all()
    print("ready", flush=True)
    for rows in pool.encode_batches("a dog" for _ in iter(int, 1)):
        pass
"""


@pytest.fixture(scope="module")
def encoder(toy_bundle):
    return Encoder.load(toy_bundle, threads=2)


@pytest.fixture(scope="module")
def pool(encoder):
    with encoder.pool(2) as pool:
        yield pool


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(batching, "_CHUNK_ITEMS", 4)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"batch_size": 1},
        {"prompt": "the "},
        {"truncate_dim": 5},
        {"precision": "ubinary"},
        {"precision": "binary"},
        {"truncate_dim": np.int64(5), "batch_size": np.int32(2), "show_progress_bar": np.False_},
    ],
)
def test_embeddings_are_those_of_one_process(encoder, pool, options):
    found, expected = pool.encode(TEXTS, **options), encoder.encode(TEXTS, **options)
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


def test_it_accepts_the_arguments_of_an_encoder(encoder, pool):
    np.testing.assert_array_equal(pool.encode(iter(TEXTS)), encoder.encode(TEXTS))
    np.testing.assert_array_equal(pool.encode(np.array(TEXTS)), encoder.encode(TEXTS))
    for text in ("the sea", np.array("the sea")):
        np.testing.assert_array_equal(pool.encode(text), encoder.encode(text))
    assert pool.encode([]).shape == (0, 16)


def test_it_has_the_attributes_of_its_encoder(encoder, pool):
    assert isinstance(pool, TextEncoder)
    assert (pool.name, pool.fingerprint) == (encoder.name, encoder.fingerprint)
    assert (pool.dimension, pool.max_length) == (encoder.dimension, encoder.max_length)


def test_prompts_for_queries_and_documents_are_the_models(write_toy_bundle, tmp_path):
    path = write_toy_bundle(tmp_path / "prompted.onnx", prompts={"query": "question: ", "passage": "answer: "})
    encoder = Encoder.load(path)
    with encoder.pool(1) as pool:
        np.testing.assert_array_equal(pool.encode_query(TEXTS), encoder.encode_query(TEXTS))
        np.testing.assert_array_equal(pool.encode_document(TEXTS), encoder.encode_document(TEXTS))


def test_a_stream_is_not_read_ahead(encoder, pool):
    read = 0

    def stream():
        nonlocal read
        for text in itertools.cycle(TEXTS):
            read += 1
            yield text

    batches = pool.encode_batches(stream())
    expected = encoder.encode(TEXTS)
    for number in range(5):
        rows = next(batches)
        rows += 1  # they belong to the caller
        np.testing.assert_array_equal(rows, expected[4 * number : 4 * number + 4] + 1)
        assert read <= 4 * (number + 5)
    batches.close()
    np.testing.assert_array_equal(pool.encode(TEXTS), expected)


def test_errors_name_the_text_and_the_parameter_and_the_pool_remains_usable(pool):
    with pytest.raises(InputError, match=r"texts\[21\] is int, expected str"):
        pool.encode([*TEXTS[:21], 3, *TEXTS])
    with pytest.raises(InputError, match=r"texts\[9\] is not valid Unicode"):
        pool.encode([*TEXTS[:9], "\ud800"])
    with pytest.raises(TextOverflowError, match=r"texts\[30\].*on_overflow") as caught:
        pool.encode([*TEXTS, LONG], on_overflow="error")
    assert caught.value.parameters == ("on_overflow",)
    with pytest.raises(InputError, match="no prompt 'none'"):
        pool.encode_batches(TEXTS, prompt_name="none")
    with pytest.raises(InputError, match="got one str; wrap it in a list"):
        pool.encode_batches("a text")
    assert pool.encode(TEXTS).shape == (30, 16)


def test_truncated_texts_are_reported_once(pool, caplog):
    with caplog.at_level(logging.WARNING, logger="embedkit"):
        pool.encode([*TEXTS, LONG, LONG])
    assert [record.getMessage() for record in caplog.records] == ["2 of 32 texts were cut to 12 tokens"]


def test_a_process_that_ends_is_reported(encoder):
    with encoder.pool(2) as pool:
        for worker in pool._workers:  # all, because one alone may encode everything before the other is asked
            worker.child.process.kill()
        with pytest.raises(ModelError, match="has ended with exit code -9"):
            pool.encode(TEXTS)


@pytest.mark.parametrize(
    "refusal",
    [BlockingIOError("Resource temporarily unavailable"), RuntimeError("can't fork at interpreter shutdown")],
)
def test_a_pool_that_cannot_start_all_processes_ends_the_others(encoder, monkeypatch, refusal):
    start: Any = subprocess.Popen
    started: list[Any] = []

    def start_one(*given, **options):
        if started:
            raise refusal
        started.append(start(*given, **options))
        return started[0]

    monkeypatch.setattr(child.subprocess, "Popen", start_one)
    with pytest.raises(WorkerError, match=f"no process can be started: {refusal}"):
        encoder.pool(2)
    assert started[0].returncode is not None


@pytest.mark.parametrize("most", [0, 1])
def test_a_pool_without_enough_threads_ends_its_processes(encoder, monkeypatch, most):
    start: Any = subprocess.Popen
    started: list[Any] = []

    def note(*given, **options):
        started.append(start(*given, **options))
        return started[-1]

    monkeypatch.setattr(child.subprocess, "Popen", note)
    limit_threads(monkeypatch, most)
    with pytest.raises(WorkerError, match="a pool needs threads: can't start new thread; encode without a pool"):
        encoder.pool(2)
    assert [process.poll() is not None for process in started] == [True, True]


@pytest.mark.parametrize(("name", "value"), [("frozen", True), ("executable", "")])
def test_a_program_without_a_python_starts_no_processes(encoder, monkeypatch, name, value):
    monkeypatch.setattr(sys, name, value, raising=False)
    with pytest.raises(WorkerError, match="a frozen program"):
        encoder.pool(1)


@pytest.mark.skipif(sys.platform == "win32", reason="closes a descriptor")
def test_a_program_that_has_closed_its_stderr_can_have_a_pool(toy_bundle):
    script = """
        import os, sys
        os.close(2)
        from embedkit import Encoder
        encoder = Encoder.load(sys.argv[1], threads=1)
        with encoder.pool(1) as pool:
            print((pool.encode(["the sea"]) == encoder.encode(["the sea"])).all())
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(toy_bundle)]
    assert subprocess.run(command, stdout=subprocess.PIPE, check=False, timeout=250).stdout == b"True\n"


def test_errors_keep_what_they_say():
    frame = json.loads(json.dumps(child.describe_error(StorageError(errno.ENOSPC, "cannot write idx: full"))))
    found = child._as_error(frame)
    assert isinstance(found, StorageError)
    assert (found.errno, found.strerror) == (errno.ENOSPC, "cannot write idx: full")


def test_a_closed_pool_has_no_processes(encoder):
    pool = encoder.pool(2, threads=1)
    pool.encode(TEXTS)
    pool.close()
    assert [worker.child.process.returncode for worker in pool._workers] == [0, 0]
    with pytest.raises(InputError, match="this pool is closed"):
        pool.encode(TEXTS)
    pool.close()  # as `with` does on exit


def test_another_model_under_the_same_path_is_refused(write_toy_bundle, tmp_path):
    path = write_toy_bundle(tmp_path / "toy.onnx")
    encoder = Encoder.load(path)
    write_toy_bundle(path, name="other")
    with pytest.raises(ModelError, match="has changed"):
        encoder.pool(1)
    path.unlink()
    with pytest.raises(FileNotFoundError):
        encoder.pool(1)


def test_an_encoder_without_a_file_has_no_pool(toy_bundle):
    with pytest.raises(InputError, match=r"Encoder\.load"):
        Encoder(read_bundle(toy_bundle)).pool(2)


def test_no_lock_is_taken_that_ctrl_c_could_leave_locked(pool, monkeypatch):
    """``Condition.__enter__`` is written in Python, and Ctrl-C may raise at its end, with the lock taken."""

    refuse_conditions(monkeypatch)
    assert len(pool.encode(TEXTS)) == len(TEXTS)


@pytest.mark.skipif(sys.platform == "win32", reason="processes are looked for as POSIX knows them")
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGKILL])
def test_a_script_without_guard_runs_once_and_leaves_nothing(toy_bundle, tmp_path, ending):
    script = tmp_path / "json.py"  # a common bad name, which the processes must not import
    script.write_text(SCRIPT)
    with subprocess.Popen(
        [sys.executable, "-c", f"exec(open({str(script)!r}).read())", str(toy_bundle)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONSAFEPATH": "1"},
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        try:
            lines = [process.stdout.readline().strip() for _ in range(3)]
            assert (lines[0], lines[2]) == ("main", "ready"), process.stderr and process.stderr.read()
            time.sleep(0.2)  # while it works
            os.killpg(process.pid, ending)
            output, messages = process.communicate(timeout=250)
        finally:
            process.kill()  # its pool ends with it
    assert output == ""
    assert ("KeyboardInterrupt" in messages) == (ending == signal.SIGINT)
    for pid in map(int, lines[1].split()):
        wait_for_end(pid)


def wait_for_end(pid):
    for _ in range(100):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        state = Path(f"/proc/{pid}/stat")
        if state.exists() and state.read_text().rsplit(")", 1)[1].split()[0] == "Z":
            return  # ended, but not yet waited for by the process that inherited it
        time.sleep(0.1)
    pytest.fail(f"process {pid} is still there")


@pytest.mark.parametrize("more", [1, 5000])
def test_the_number_of_processes_has_a_bound(encoder, monkeypatch, more):
    started: list[int] = []
    monkeypatch.setattr(pool_module, "_Worker", lambda *_: started.append(1))
    with pytest.raises(InputError, match=r"processes must be a whole number from 1 to \d+, not"):
        encoder.pool(processes=most_processes() + more)
    assert not started
