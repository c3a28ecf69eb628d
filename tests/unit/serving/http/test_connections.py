"""Connections: bounded in number, time and memory, whatever clients do."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import socket
import sys
import time
import types
from pathlib import Path

import httpx
import pytest

from embedkit import Encoder

from .conftest import gated, wait_for

if sys.platform != "win32":
    import resource

KEY = "a-key-of-some-length"


@pytest.fixture
def dial():
    """``dial(url, b"GET")``: a connection on which these bytes were sent."""
    with contextlib.ExitStack() as stack:

        def dial(url, content=b"", *, receive_bytes=None):
            host, port = url.removeprefix("http://").split(":")
            connection = stack.enter_context(socket.socket())
            if receive_bytes:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
            connection.settimeout(60)
            connection.connect((host, int(port)))
            connection.sendall(content)
            return connection

        yield dial


def rest(connection):
    """Return everything until the server closes the connection; a reset counts as the end, too."""
    content = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := connection.recv(65536):
            content += piece
    return content


def wait_until_nothing_is_in_flight(url):
    """Return when five readings in a row found no request in progress, however slowly this machine answers."""
    deadline = time.monotonic() + 250
    quiet = 0
    while quiet < 5:
        assert time.monotonic() < deadline, "requests are still in progress"
        time.sleep(0.05)
        metrics = httpx.get(f"{url}/metrics").text
        quiet = quiet + 1 if "\nembedkit_requests_in_flight 1.0\n" in metrics else 0  # the 1 is this reading


def head(length, path="/embed", key=None):
    authorization = f"authorization: Bearer {key}\r\n" if key else ""
    lines = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    return f"{lines}{authorization}content-length: {length}\r\n\r\n".encode()


def test_headers_have_a_time_limit_however_often_a_byte_comes(serve, dial):
    with serve(header_timeout_s=0.5) as url:
        connection = dial(url, b"GET /info HTTP/1.1\r\nhost: 127")
        with contextlib.suppress(OSError):
            for _ in range(12):
                time.sleep(0.1)
                connection.sendall(b".")
        assert rest(connection)[:12] in {b"HTTP/1.1 408", b""}  # nothing where a late byte resets the connection
        began = time.monotonic()
        assert rest(dial(url, b"GET /info HTT")).startswith(b"HTTP/1.1 408 ")
        assert time.monotonic() - began > 0.4


def test_a_body_has_a_time_limit(serve, dial):
    with serve(body_timeout_s=0.3) as url:
        answer = rest(dial(url, head(100) + b"{"))
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"].startswith("the request's body took longer")


def test_an_idle_connection_is_closed(serve, dial):
    with serve(keep_alive_s=1) as url:
        silent, served = dial(url), dial(url, b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        began = time.monotonic()
        assert rest(silent) == b""
        assert rest(served).startswith(b"HTTP/1.1 200 ")
        assert time.monotonic() - began > 0.5


def test_headers_are_bounded(serve, dial):
    begun = b"GET /info HTTP/1.1\r\nx-much: " + b"a" * 3000
    with serve(max_header_bytes=2000) as url:
        assert httpx.get(f"{url}/info", headers={"x-much": "a" * 1000}).status_code == 200
        for content in (begun, begun + b"\r\n\r\n"):  # also if all arrive at once
            answer = rest(dial(url, content))
            assert answer.startswith(b"HTTP/1.1 431 ")
            assert b"max_header_bytes" in answer


def test_headers_are_bounded_for_each_request(serve, dial):
    request = b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\nx-much: " + b"a" * 1000
    requests = [request + b"\r\n\r\n"] * 9 + [request + b"\r\nconnection: close\r\n\r\n"]
    with serve(max_header_bytes=2000) as url:
        assert rest(dial(url, b"".join(requests))).count(b"HTTP/1.1 200 ") == 10
        connection = dial(url)
        for sent in requests:
            connection.sendall(sent)
            time.sleep(0.01)
        assert rest(connection).count(b"HTTP/1.1 200 ") == 10


def test_an_unread_answer_is_dropped(serve, dial):
    body = json.dumps({"inputs": ["a"] * 2000}).encode()
    with serve(answer_timeout_s=0.5) as url:
        greedy = dial(url, (head(len(body)) + body) * 30, receive_bytes=4096)  # more than sockets buffer
        wait_until_nothing_is_in_flight(url)
        assert rest(greedy).count(b"HTTP/1.1 200 ") < 30
        assert httpx.get(f"{url}/health").status_code == 200


def test_memory_for_unread_answers_is_bounded(serve, dial):
    body = json.dumps({"inputs": ["a"] * 2000}).encode()
    with serve(max_buffered_bytes=200_000) as url:
        greedy = dial(url, (head(len(body)) + body) * 30, receive_bytes=4096)
        wait_until_nothing_is_in_flight(url)
        assert rest(greedy).count(b"HTTP/1.1 200 ") < 30


def test_memory_for_arriving_bodies_is_bounded(serve, dial):
    with serve(max_buffered_bytes=150_000) as url:
        slow = [dial(url, head(1_000_000) + b" " * 60_000) for _ in range(3)]
        time.sleep(0.5)
        assert rest(slow[0]) == b""  # the one that had been idle longest
        assert httpx.post(f"{url}/embed", json={"inputs": "a"}).status_code == 200
        for connection in slow[1:]:
            connection.settimeout(0.1)
            with pytest.raises(TimeoutError):
                connection.recv(1)


def test_connections_are_bounded_and_the_longest_idle_one_goes_first(serve, dial):
    with serve(max_connections=8) as url:
        idlers = [dial(url) for _ in range(30)]
        time.sleep(0.2)
        for _ in range(3):
            assert httpx.post(f"{url}/embed", json={"inputs": "a"}).status_code == 200
        assert rest(idlers[0]) == b""
        idlers[-1].sendall(b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n")
        assert rest(idlers[-1]).startswith(b"HTTP/1.1 200 ")


def test_requests_behind_a_pending_one_are_bounded(serve, toy_bundle, dial):
    encoder = gated(Encoder, "encode_tokens").load(toy_bundle, threads=1)
    body = b'{"inputs": "a"}'
    with serve(encoder=encoder) as url:
        greedy = dial(url, head(len(body)) + body + b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n" * 5000)
        wait_for(lambda: encoder.begun)
        time.sleep(0.2)
        (waiting,) = re.findall(r"\nembedkit_requests_in_flight (\S+)", httpx.get(f"{url}/metrics").text)
        assert float(waiting) <= 65
        encoder.gate.set()
        answers = rest(greedy)
    assert answers.count(b"HTTP/1.1 200 ") == 64
    assert answers.count(b"HTTP/1.1 429 ") == 1


def test_a_request_that_the_server_does_not_read_yet_is_not_late(serve, toy_bundle, dial, monkeypatch):
    ahead_s = 0.0
    clock = types.SimpleNamespace(**{**vars(time), "monotonic": lambda: time.monotonic() + ahead_s})
    monkeypatch.setattr("embedkit.serving.http.connections.time", clock)
    encoder = gated(Encoder, "encode_tokens").load(toy_bundle, threads=1)
    body = b'{"inputs": "a"}'
    last = head(len(body)).replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n") + body
    with serve(encoder=encoder, header_timeout_s=100, body_timeout_s=100) as url:
        for cut in (20, len(last) - 3):
            begun = len(encoder.begun)
            connection = dial(url, (head(len(body)) + body) * 2 + last[:cut])
            wait_for(lambda begun=begun: len(encoder.begun) > begun)
            ahead_s += 200
            time.sleep(0.3)  # a few looks at what is late
            encoder.gate.set()
            time.sleep(0.3)  # and others since the server reads again
            connection.sendall(last[cut:])
            answers = rest(connection)
            encoder.gate.clear()
            assert answers.count(b"HTTP/1.1 200 ") == 3


@pytest.mark.parametrize("path", ["/health", "/v1/embeddings"])
def test_unfinished_requests_take_no_place(serve, dial, path):
    with serve(keys=(KEY,), concurrent_requests=2) as url:
        half = [dial(url, head(1000, path, key) + b"{") for key in (None, KEY) for _ in range(5)]
        time.sleep(0.2)
        for _ in range(3):
            done = httpx.post(f"{url}/embed", json={"inputs": "a"}, headers={"authorization": f"Bearer {KEY}"})
            assert done.status_code == 200
        assert len(half) == 10


def test_requests_that_need_no_key_are_answered_before_their_body(serve, dial):
    with serve(keys=(KEY,)) as url:
        assert dial(url, head(1000, "/health")).recv(4096).startswith(b"HTTP/1.1 405 ")


def test_a_client_that_reads_slowly_but_steadily_gets_its_answer(serve, dial):
    body = json.dumps({"inputs": ["a"] * 2000}).encode()
    with serve(answer_timeout_s=20) as url:
        connection = dial(url, head(len(body)) + body, receive_bytes=4096)
        answer = b""
        length = 0
        while not length or len(answer) < length:
            answer += connection.recv(100_000)
            before, found, after = answer.partition(b"\r\n\r\n")
            length = len(before + found) + int(before.lower().partition(b"content-length: ")[2].split()[0])
    assert len(json.loads(after)) == 2000


@pytest.fixture
def written(build):
    return build(((str(number), f"text {number}") for number in range(100)), lexical=True).path


def upsert(client, number):
    content = {"documents": [{"id": f"new {number}", "text": f"text {number}"}]}
    return client.post("/v1/documents", json=content).status_code


def files_of(server):
    return sum(1 for _ in Path(f"/proc/{server.process.pid}/fd").iterdir())


@pytest.mark.skipif(shutil.which("prlimit") is None, reason="needs prlimit")
@pytest.mark.parametrize("files", [60, 160])
def test_idle_connections_leave_files_for_writes(start, toy_bundle, written, dial, files):
    server = start(toy_bundle, "--collection", written, "--allow-writes", files=files)
    for _ in range(files):
        dial(server.url)
    with httpx.Client(base_url=server.url, timeout=60) as client:
        assert {upsert(client, number) for number in range(20)} == {200}


@pytest.mark.skipif(sys.platform != "linux" or shutil.which("prlimit") is None, reason="needs Linux's prlimit")
def test_writes_recover_when_files_are_free_again(start, toy_bundle, written):
    server = start(toy_bundle, "--collection", written, "--allow-writes", files=200)
    with httpx.Client(base_url=server.url, timeout=60) as client:
        assert upsert(client, 0) == 200
        opened = files_of(server)
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (opened + 1, 200))
        refused = [upsert(client, number) for number in range(1, 10)]
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (200, 200))
        assert set(refused) == {503}
        assert {upsert(client, number) for number in range(10, 30)} == {200}
        assert files_of(server) < opened + 12
