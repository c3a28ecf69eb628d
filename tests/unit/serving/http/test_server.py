"""The server as a process: it starts, tells where, and drains when told to end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import ssl
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals")


class Process:
    """`embedkit serve` in a process of its own."""

    def __init__(self, *arguments, **environment):
        command = [sys.executable, "-m", "embedkit", "serve", *map(str, arguments), "--port", "0"]
        self.process = subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment, "OMP_NUM_THREADS": "1"}
        )
        self.lines = []
        while '"listening"' not in (line := self.process.stderr.readline()):
            assert line, self.lines
            self.lines.append(line)
        self.lines.append(line)
        self.url = json.loads(line)["url"]

    def end(self, sign=signal.SIGTERM):
        self.process.send_signal(sign)
        self.lines += self.process.communicate(timeout=120)[1].splitlines()
        return self.process.returncode


@pytest.fixture
def start():
    """Start servers, none of which outlives the test."""
    with contextlib.ExitStack() as stack:

        def start(*arguments, **environment):
            server = Process(*arguments, **environment)
            stack.callback(server.process.communicate)
            stack.callback(server.process.kill)
            return server

        yield start


def test_requests_at_work_are_answered_before_it_ends(start, toy_bundle):
    server = start(toy_bundle, "--set", "batch_tokens=12", "--set", "queue_tokens=10000000")
    texts = ["one two three four five six seven eight nine ten"] * 1500
    begun = threading.Barrier(5)

    def ask(_):
        with httpx.Client(timeout=30) as client:
            client.get(f"{server.url}/health")
            begun.wait()
            return client.post(f"{server.url}/v1/embeddings", json={"input": texts})

    with ThreadPoolExecutor(4) as pool:
        pending = [pool.submit(ask, n) for n in range(4)]
        begun.wait()
        wait_for(lambda: at_work(server.url) >= 5)  # the four, and the one that asks
        code = server.end()
        answers = [future.result() for future in pending]
    assert code == 0
    assert [answer.status_code for answer in answers] == [200] * 4
    assert all(len(answer.json()["data"]) == len(texts) for answer in answers)
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{server.url}/health")


def at_work(url):
    return float(httpx.get(f"{url}/metrics").text.partition("\nembedkit_requests_at_work ")[2].split()[0])


def wait_for(condition):
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_every_line_of_its_log_is_json(start, toy_bundle):
    server = start(toy_bundle, EMBEDKIT_API_KEY="a-key-of-some-length")
    assert httpx.get(f"{server.url}/v1/models").status_code == 401
    assert server.end() == 0
    lines = [json.loads(line) for line in server.lines]
    assert [line["message"] for line in lines] == ["listening", "request"]
    assert lines[0]["model"] == "toy"
    assert lines[1]["status"] == 401


def test_a_damaged_bundle_does_not_start(toy_bundle, tmp_path):
    path = tmp_path / "broken.onnx"
    path.write_bytes(toy_bundle.read_bytes()[:-100])
    done = subprocess.run(
        [sys.executable, "-m", "embedkit", "serve", str(path), "--port", "0"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "error: " in done.stderr


def test_it_speaks_tls(start, toy_bundle, tmp_path):
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"]
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    try:
        subprocess.run([*command, *names], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs openssl")
    server = start(toy_bundle, "--tls-certificate", certificate, "--tls-key", key)
    assert server.url.startswith("https://")
    trusted = ssl.create_default_context(cafile=str(certificate))
    assert httpx.get(f"{server.url}/health", verify=trusted).status_code == 200
    assert server.end() == 0
