"""Several workers on one port: like one server to clients, probes, metrics, reloads and signals."""

from __future__ import annotations

import contextlib
import json
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
from embedkit.serving.http.metrics import Metrics
from embedkit.serving.http.settings import ServerSettings
from embedkit.serving.http.workers import Workers, workers_folder
from embedkit.threads import available_threads

from .conftest import Process, wait_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="finds workers in /proc")

KEY = "a-key-of-some-length"
TWO = ("--workers", "2")
SENTENCES = {"inputs": {"source_sentence": "a dog", "sentences": ["the sea"]}}


@pytest.fixture(scope="module")
def two(toy_bundle, toy_encoder, tmp_path_factory):
    """A server of two workers with a collection, which tests share: ``(server, folder of the collection)``."""
    place = tmp_path_factory.mktemp("workers") / "idx"
    Collection.build([("0", "a dog")], encoder=toy_encoder, path=place, show_progress_bar=False)
    server = Process(toy_bundle, *TWO, "--collection", place, "--allow-writes")
    yield server, place
    assert server.end() == 0


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
        with httpx.Client(base_url=server.url) as client:
            answers.append(client.post(path, json=content or {"inputs": "a dog"}, **options))
    return answers


def test_metrics_and_readiness_are_of_all_workers(two):
    server, _ = two
    assert len(workers_of(server)) == 2
    assert all(answer.status_code == 200 for answer in ask_from(server, 30, "/similarity", SENTENCES))
    for _ in range(5):  # whichever worker answers
        metrics = httpx.get(f"{server.url}/metrics").text
        assert 'embedkit_requests_total{route="/similarity",status="200"} 30.0' in metrics
        assert 'embedkit_request_seconds_bucket{le="+Inf",route="/similarity"} 30.0' in metrics
        assert 'embedkit_queue_tokens{model="toy"} 0.0' in metrics
        assert httpx.get(f"{server.url}/health/ready").status_code == 200
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


def test_a_worker_that_is_killed_is_replaced_and_one_that_is_stopped_leaves_the_port_to_the_others(
    start, toy_bundle
):
    server = start(toy_bundle, *TWO)
    first, second = workers_of(server)
    os.kill(first, signal.SIGKILL)
    wait_for(lambda: len(workers_of(server)) == 2 and first not in workers_of(server))
    assert second in workers_of(server)
    assert all(answer.status_code == 200 for answer in ask_from(server, 20))
    os.kill(second, signal.SIGTERM)
    wait_for(lambda: not is_alive(second))
    assert all(answer.status_code == 200 for answer in ask_from(server, 5))
    wait_for(lambda: len(workers_of(server)) == 2)
    assert all(answer.status_code == 200 for answer in ask_from(server, 20))
    assert server.end() == 0
    assert any("starting a replacement" in line for line in server.lines)


def test_workers_end_with_the_process_that_started_them(start):
    server = start("tiny", *TWO)
    pids = workers_of(server)
    server.process.kill()
    wait_for(lambda: not any(map(is_alive, pids)))


def test_all_workers_reload_on_a_signal_and_on_request(start, write_toy_bundle, tmp_path):
    path = write_toy_bundle(tmp_path / "model.onnx")
    server = start(path, *TWO, EMBEDKIT_API_KEY=KEY)
    headers = {"authorization": f"Bearer {KEY}"}

    def replace_model(max_length):
        write_toy_bundle(tmp_path / "new.onnx", max_length=max_length).replace(path)

    def check(reloads):
        done = f'embedkit_reloads_total{{result="done"}} {reloads}.0'
        wait_for(lambda: done in httpx.get(f"{server.url}/metrics", headers=headers).text)
        content = {"inputs": "one two three four five", "truncate": False}
        return {answer.status_code for answer in ask_from(server, 20, content=content, headers=headers)}

    replace_model(5)
    server.process.send_signal(signal.SIGHUP)
    assert check(2) == {400}
    replace_model(7)
    assert httpx.post(f"{server.url}/admin/reload", headers=headers, timeout=60).status_code == 200
    assert check(4) == {200}
    assert server.end() == 0


def test_workers_write_to_one_collection(two):
    server, place = two

    def write(number):
        content = {"documents": [{"id": f"{number}-{n}", "text": f"text {number} {n}"} for n in range(3)]}
        while (status := ask_from(server, 1, "/v1/documents", content)[0].status_code) == 503:
            pass  # the other worker held the collection for longer than a write waits, on a busy machine
        return status

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(write, range(16))) == {200}
    assert len(Collection.open(place)) == 49


def test_workers_run_no_code_of_the_current_folder(toy_bundle, tmp_path):
    for name in ("orjson", "json"):  # of embedkit, and of the command that starts a worker
        (tmp_path / f"{name}.py").write_text("open(__file__ + '.ran', 'w')")
    code = "import sys; from embedkit.cli.main import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-P", "-c", code, "serve", str(toy_bundle), "--port", "0", *TWO]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=tmp_path) as process:
        lines = iter(process.stderr.readline, "")
        assert any('"listening"' in line for line in lines)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=250)
    assert not list(tmp_path.glob("*.ran"))


def test_a_model_that_cannot_be_loaded_ends_the_server(toy_bundle, tmp_path):
    path = tmp_path / "broken.onnx"
    path.write_bytes(toy_bundle.read_bytes()[:-100])
    command = [sys.executable, "-m", "embedkit", "serve", str(path), "--port", "0", *TWO]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=250)
    assert done.returncode == 1
    assert "did not start" in done.stderr
    assert "worker 0: " in done.stderr or "worker 1: " in done.stderr


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
