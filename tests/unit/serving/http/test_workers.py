"""Several workers on one port: like one server to clients, probes, metrics, reloads and signals."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from embedkit import Collection
from embedkit.errors import WorkerError
from embedkit.serving.http.metrics import Metrics
from embedkit.serving.http.settings import ServerSettings
from embedkit.serving.http.workers import Workers, workers_folder
from embedkit.threads import available_threads

from .conftest import wait_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="finds workers in /proc")

KEY = "a-key-of-some-length"
TWO = ("--workers", "2")


def workers_of(server):
    number = server.process.pid
    found = Path(f"/proc/{number}/task/{number}/children").read_text().split()
    return sorted(map(int, found))


def is_alive(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def ask_from(server, connections, path="/embed", content=None, **options):
    """Send one request on each of several connections."""
    answers = []
    for _ in range(connections):
        with httpx.Client(base_url=server.url, timeout=30) as client:
            answers.append(client.post(path, json=content or {"inputs": "a dog"}, **options))
    return answers


def test_metrics_and_readiness_are_of_all_workers(start, toy_bundle):
    server = start(toy_bundle, *TWO)
    assert len(workers_of(server)) == 2
    assert all(answer.status_code == 200 for answer in ask_from(server, 30))
    for _ in range(5):  # whichever worker answers
        metrics = httpx.get(f"{server.url}/metrics").text
        assert 'embedkit_requests_total{route="/embed",status="200"} 30.0' in metrics
        assert 'embedkit_request_seconds_bucket{le="+Inf",route="/embed"} 30.0' in metrics
        assert 'embedkit_queue_tokens{model="toy"} 0.0' in metrics
        assert httpx.get(f"{server.url}/health/ready").status_code == 200
    assert server.end() == 0
    lines = [json.loads(line) for line in server.lines]
    assert [line["workers"] for line in lines if line["message"] == "listening"] == [2]


def test_no_request_is_lost_when_workers_stop(start, toy_bundle):
    server = start(toy_bundle, *TWO, drain_delay_s=0.5)
    pids = workers_of(server)
    code, answered, lost = server.end_under_load(
        "/embed",
        lambda number: {"inputs": ["one two three four five"] * (100 if number % 8 == 0 else 1)},
        clients=16,
        answers=100,
    )
    assert code == 0
    assert lost == []
    assert set(answered) <= {200, 429}
    assert not any(map(is_alive, pids))


def test_a_worker_that_is_killed_is_replaced(start, toy_bundle):
    server = start(toy_bundle, *TWO)
    first, second = workers_of(server)
    os.kill(first, signal.SIGKILL)
    wait_for(lambda: len(workers_of(server)) == 2 and first not in workers_of(server))
    assert second in workers_of(server)
    assert all(answer.status_code == 200 for answer in ask_from(server, 20))
    assert server.end() == 0
    assert any("starting a replacement" in line for line in server.lines)


def test_a_worker_that_is_stopped_alone_leaves_the_port_to_the_others(start, toy_bundle):
    server = start(toy_bundle, *TWO)
    first, _ = workers_of(server)
    os.kill(first, signal.SIGTERM)
    wait_for(lambda: not is_alive(first))
    assert all(answer.status_code == 200 for answer in ask_from(server, 5))
    wait_for(lambda: len(workers_of(server)) == 2)
    assert all(answer.status_code == 200 for answer in ask_from(server, 20))
    assert server.end() == 0


def test_workers_end_with_the_process_that_started_them(start):
    server = start("tiny", *TWO)
    pids = workers_of(server)
    server.process.kill()
    wait_for(lambda: not any(map(is_alive, pids)))


@pytest.mark.parametrize("way", ["signal", "route"])
def test_all_workers_reload(start, write_toy_bundle, tmp_path, way):
    path = write_toy_bundle(tmp_path / "model.onnx")
    server = start(path, *TWO, EMBEDKIT_API_KEY=KEY)
    headers = {"authorization": f"Bearer {KEY}"}
    write_toy_bundle(tmp_path / "new.onnx", max_length=5)
    (tmp_path / "new.onnx").replace(path)
    if way == "signal":
        server.process.send_signal(signal.SIGHUP)
    else:
        assert httpx.post(f"{server.url}/admin/reload", headers=headers, timeout=60).status_code == 200

    def reloads():
        text = httpx.get(f"{server.url}/metrics", headers=headers).text
        return 'embedkit_reloads_total{result="done"} 2.0' in text

    wait_for(reloads)
    refused = ask_from(
        server, 20, content={"inputs": "one two three four five", "truncate": False}, headers=headers
    )
    assert {answer.status_code for answer in refused} == {400}
    assert server.end() == 0


def test_workers_write_to_one_collection(start, toy_bundle, toy_encoder, tmp_path):
    place = tmp_path / "idx"
    Collection.build([("0", "a dog")], encoder=toy_encoder, path=place, show_progress_bar=False)
    server = start(toy_bundle, *TWO, "--collection", place, "--allow-writes")

    def write(number):
        content = {"documents": [{"id": f"{number}-{n}", "text": f"text {number} {n}"} for n in range(3)]}
        return ask_from(server, 1, "/v1/documents", content)[0].status_code

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(write, range(16))) == {200}
    assert server.end() == 0
    assert len(Collection.open(place)) == 49


def test_workers_run_no_code_of_the_current_folder(toy_bundle, tmp_path):
    (tmp_path / "orjson.py").write_text("import pathlib; pathlib.Path(__file__).with_name('ran').touch()")
    code = "import sys; from embedkit.cli.main import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-P", "-c", code, "serve", str(toy_bundle), "--port", "0", *TWO]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=tmp_path) as process:
        lines = iter(process.stderr.readline, "")
        assert any('"listening"' in line for line in lines)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert not (tmp_path / "ran").exists()


def test_a_model_that_cannot_be_loaded_ends_the_server(toy_bundle, tmp_path):
    path = tmp_path / "broken.onnx"
    path.write_bytes(toy_bundle.read_bytes()[:-100])
    command = [sys.executable, "-m", "embedkit", "serve", str(path), "--port", "0", *TWO]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 1
    assert "did not start" in done.stderr
    assert "worker 0: " in done.stderr or "worker 1: " in done.stderr


def test_without_temporary_files_workers_say_so(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with pytest.raises(WorkerError, match=r"temporary files \(TMPDIR\): No such file"):
        Workers(["toy"], ServerSettings(workers=2), logging.WARNING).run()


def test_folders_of_killed_servers_are_removed_and_no_others(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    killed, foreign = tmp_path / "embedkit-workers-killed", tmp_path / "embedkit-of-something-else"
    for folder in (killed, foreign):
        folder.mkdir()
        (folder / "worker-0").touch()
    with workers_folder() as first, workers_folder() as second:
        assert sorted(tmp_path.iterdir()) == sorted([first, second, foreign])
        assert first.stat().st_mode & 0o077 == 0
        (first / "worker-0").touch()
    assert list(tmp_path.iterdir()) == [foreign]


def test_samples_are_added_and_the_earliest_start_counts():
    def snapshot(created, **totals):
        samples = [["a_total", {"x": x}, value] for x, value in totals.items()]
        return [["a", "About.", "counter", [*samples, ["a_created", {"x": "one"}, created]]]]

    text = Metrics().text([snapshot(50.0, one=2.0), snapshot(40.0, one=3.0, two=1.0)]).decode()
    assert 'a_total{x="one"} 5.0' in text
    assert 'a_total{x="two"} 1.0' in text
    assert 'a_created{x="one"} 40.0' in text


def test_threads_are_divided_among_workers():
    assert Workers(["m"], ServerSettings(workers=2), 20).settings.threads == max(1, available_threads() // 2)
    assert Workers(["m"], ServerSettings(workers=2, threads=3), 20).settings.threads == 3
