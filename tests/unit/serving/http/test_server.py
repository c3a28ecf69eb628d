"""The server as a process: it starts, prints its address, and drains on a signal."""

from __future__ import annotations

import http.client
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

from .conftest import wait_for

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals")


def test_running_requests_are_answered_before_it_ends(start, toy_bundle):
    server = start(toy_bundle, "--set", "batch_tokens=12", "--set", "queue_s=1000")
    texts = ["one two three four five six seven eight nine ten"] * 1500
    begun = threading.Barrier(5)

    def ask(_):
        with httpx.Client(timeout=200) as client:
            client.get(f"{server.url}/health")
            begun.wait()
            return client.post(f"{server.url}/v1/embeddings", json={"input": texts})

    with ThreadPoolExecutor(4) as pool:
        pending = [pool.submit(ask, n) for n in range(4)]
        begun.wait()
        wait_for(lambda: in_flight(server.url) >= 5)  # the four, and the one that asks
        code = server.end()
        answers = [future.result() for future in pending]
    assert code == 0
    assert [answer.status_code for answer in answers] == [200] * 4
    assert all(len(answer.json()["data"]) == len(texts) for answer in answers)
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{server.url}/health")


def test_readiness_is_refused_before_connections_are(start, toy_bundle):
    server = start(toy_bundle, drain_delay_s=1.0)
    with httpx.Client(base_url=server.url) as client:
        assert client.get("/health/ready").status_code == 200
        server.process.send_signal(signal.SIGTERM)
        wait_for(lambda: httpx.get(f"{server.url}/health/ready").status_code == 503)
        assert httpx.get(f"{server.url}/health/live").status_code == 200
        done = client.post("/embed", json={"inputs": "a"})
        assert done.status_code == 200
        assert done.headers["connection"] == "close"  # so that clients disconnect by themselves
    assert server.wait() == 0
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{server.url}/health")


@pytest.mark.parametrize("signals", [[signal.SIGINT], [signal.SIGTERM, signal.SIGTERM]])
def test_an_interrupt_or_a_second_signal_waits_for_no_load_balancer(start, toy_bundle, signals):
    server = start(toy_bundle, drain_delay_s=15)
    began = time.monotonic()
    for sign in signals[:-1]:
        server.process.send_signal(sign)
        time.sleep(0.3)
    server.end(signals[-1])
    assert time.monotonic() - began < 10


def test_a_new_connection_has_time_to_send_its_first_request(start, toy_bundle):
    server = start(toy_bundle)
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=10)
    connection.connect()
    server.process.send_signal(signal.SIGTERM)
    time.sleep(0.8)
    connection.request("GET", "/health/live")
    assert connection.getresponse().status == 200
    connection.close()
    assert server.wait() == 0


def test_no_request_is_lost_when_it_stops(start, toy_bundle):
    server = start(toy_bundle, "--set", "batch_tokens=64")
    code, answered, lost = server.end_under_load(
        "/v1/embeddings",
        lambda number: {"input": ["one two three four five"] * (300 if number % 8 == 0 else 1)},
        clients=32,
        answers=200,
    )
    assert code == 0
    assert lost == []
    assert set(answered) <= {200, 429}


def test_sighup_reloads(start, write_toy_bundle, tmp_path):
    path = write_toy_bundle(tmp_path / "model.onnx")
    server = start(path)
    write_toy_bundle(tmp_path / "new.onnx", max_length=5)
    (tmp_path / "new.onnx").replace(path)
    assert httpx.get(f"{server.url}/info").json()["max_input_length"] == 12
    server.process.send_signal(signal.SIGHUP)
    wait_for(lambda: httpx.get(f"{server.url}/info").json()["max_input_length"] == 5)
    assert server.end() == 0
    assert "reloaded" in {json.loads(line)["message"] for line in server.lines}


def test_a_port_in_use_is_one_line_of_log(start, toy_bundle):
    server = start(toy_bundle)
    port = server.url.rpartition(":")[2]
    command = [sys.executable, "-m", "embedkit", "serve", str(toy_bundle), "--port", port]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert f"port {port}" in json.loads(done.stderr.splitlines()[-1])["message"]
    server.end()


def in_flight(url):
    return float(httpx.get(f"{url}/metrics").text.partition("\nembedkit_requests_in_flight ")[2].split()[0])


def test_every_line_of_its_log_is_json(start, toy_bundle):
    server = start(toy_bundle, EMBEDKIT_API_KEY="a-key-of-some-length")
    assert httpx.get(f"{server.url}/v1/models").status_code == 401
    assert server.end() == 0
    lines = [json.loads(line) for line in server.lines]
    assert [line["message"] for line in lines] == ["listening", "request"]
    assert lines[0]["models"] == ["toy"]
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


def test_an_open_address_without_a_key_is_a_warning(start, toy_bundle):
    server = start(toy_bundle, "--host", "0.0.0.0")
    assert server.end() == 0
    assert any("has no API key" in line for line in server.lines)


def test_the_log_has_names_of_keys_and_never_keys(start, toy_bundle, tmp_path):
    (tmp_path / "keys.toml").write_text('[keys.site]\nkey = "a-key-of-some-length"\n')
    server = start(toy_bundle, "--api-key-file", tmp_path / "keys.toml")
    answers = [
        httpx.post(f"{server.url}/embed", json={"inputs": "a"}, headers={"authorization": f"Bearer {key}"})
        for key in ("a-key-of-some-length", "another-key-of-a-client")
    ]
    assert [answer.status_code for answer in answers] == [200, 401]
    assert server.end() == 0
    log = "".join(server.lines)
    assert '"key":"site"' in log
    assert "key-of-" not in log + answers[1].text


def test_settings_come_from_a_file_and_flags_override_it(start, toy_bundle, tmp_path):
    (tmp_path / "server.toml").write_text("max_items = 1\nmax_characters = 5\n")
    server = start(toy_bundle, "--config", tmp_path / "server.toml", "--set", "max_items=2")
    sizes = [["a"] * 2, ["a"] * 3, ["a" * 6]]
    found = [httpx.post(f"{server.url}/embed", json={"inputs": texts}).status_code for texts in sizes]
    assert found == [200, 413, 413]
    assert server.end() == 0
