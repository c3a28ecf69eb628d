"""The server as a process: it starts, prints its address, and drains on a signal."""

from __future__ import annotations

import http.client
import json
import os
import signal
import ssl
import subprocess
import time

import httpx
import pytest

from embedkit.cli.main import main

from .conftest import wait_for

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals")


def test_readiness_is_refused_before_connections_are(start, toy_bundle):
    server = start(toy_bundle, drain_delay_s=110)  # a second signal ends it earlier
    with httpx.Client(base_url=server.url) as client:
        assert client.get("/health/ready").status_code == 200
        server.process.send_signal(signal.SIGTERM)
        wait_for(lambda: httpx.get(f"{server.url}/health/ready").status_code == 503)
        assert httpx.get(f"{server.url}/health/live").status_code == 200
        done = client.post("/embed", json={"inputs": "a"})
        assert done.status_code == 200
        assert done.headers["connection"] == "close"  # so that clients disconnect by themselves
    assert server.end() == 0
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{server.url}/health")


@pytest.mark.parametrize("signals", [[signal.SIGINT], [signal.SIGTERM, signal.SIGTERM]])
def test_an_interrupt_or_a_second_signal_waits_for_no_load_balancer(start, toy_bundle, signals):
    server = start(toy_bundle, drain_delay_s=3600)
    for sign in signals[:-1]:
        server.process.send_signal(sign)
        wait_for(lambda: httpx.get(f"{server.url}/health/ready").status_code == 503)
    server.end(signals[-1])


def test_a_new_connection_has_time_to_send_its_first_request(start, toy_bundle):
    server = start(toy_bundle)
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=60)
    connection.connect()
    server.process.send_signal(signal.SIGTERM)
    time.sleep(0.5)
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
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{server.url}/health")


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


def test_a_damaged_bundle_does_not_start(toy_bundle, tmp_path, capsys):
    path = tmp_path / "broken.onnx"
    path.write_bytes(toy_bundle.read_bytes()[:-100])
    assert main(["serve", str(path), "--port", "0"]) == 1
    assert capsys.readouterr().err.startswith("error: ")


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


def test_settings_come_from_a_file_and_flags_override_it(start, toy_bundle, tmp_path):
    (tmp_path / "server.toml").write_text("max_items = 1\nmax_characters = 5\n")
    server = start(toy_bundle, "--config", tmp_path / "server.toml", "--set", "max_items=2", "--host", "0.0.0.0")
    sizes = [["a"] * 2, ["a"] * 3, ["a" * 6]]
    url = server.url.replace("0.0.0.0", "127.0.0.1")
    found = [httpx.post(f"{url}/embed", json={"inputs": texts}).status_code for texts in sizes]
    assert found == [200, 413, 413]
    assert server.end() == 0
    assert any("has no API key" in line for line in server.lines)  # although others can reach the address


def test_its_log_is_json_with_names_of_keys_and_never_keys(start, toy_bundle, tmp_path):
    (tmp_path / "keys.toml").write_text('[keys.site]\nkey = "a-key-of-some-length"\n')
    server = start(toy_bundle, "--api-key-file", tmp_path / "keys.toml")
    answers = [
        httpx.post(f"{server.url}/embed", json={"inputs": "a"}, headers={"authorization": f"Bearer {key}"})
        for key in ("a-key-of-some-length", "another-key-of-a-client")
    ]
    assert [answer.status_code for answer in answers] == [200, 401]
    assert server.end() == 0
    first, *requests = [json.loads(line) for line in server.lines]
    assert (first["message"], first["models"]) == ("listening", ["toy"])
    assert [(line["message"], line["status"]) for line in requests] == [("request", 200), ("request", 401)]
    log = "".join(server.lines)
    assert '"key":"site"' in log
    assert "key-of-" not in log + answers[1].text
