import asyncio
import errno
import json
import os
import socket
import sys

import pytest

from embedkit.cli.main import main
from embedkit.serving.http.server import Listener, bind, explain_refusal


class Echo(asyncio.Protocol):
    """Returns the first bytes that it receives, and hangs up."""

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.transport.write(data)
        self.transport.close()


def listener_of(bound):
    return Listener(bound, Echo, tls=None, handshake_timeout_s=1, most_handshakes=10, make_room=lambda: None)


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's socket filters")
def test_a_connection_is_either_accepted_or_refused_as_the_listener_stops():
    """One connection is in the backlog, and another one comes after the last has been accepted."""

    async def stop_late(bound):
        loop, listener = asyncio.get_running_loop(), listener_of(bound)
        listener.start()
        with socket.create_connection(bound.getsockname(), timeout=60) as backlog:
            with bound.dup() as also_open:  # as in another worker, which has not stopped yet
                await listener.stop()
                with pytest.raises(TimeoutError):
                    socket.create_connection(also_open.getsockname(), timeout=0.1)
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(backlog.getpeername(), timeout=60)
            backlog.setblocking(False)
            await loop.sock_sendall(backlog, b"still here")
            return await loop.sock_recv(backlog, 100)

    assert asyncio.run(stop_late(bind("127.0.0.1", 0))) == b"still here"


def test_a_listener_that_stops_alone_leaves_connections_to_the_others():
    async def stop_alone(bound):
        others = listener_of(bound.dup())
        first = listener_of(bound)
        first.start()
        await first.stop(others_accept=True)
        others.start()
        reader, writer = await asyncio.wait_for(asyncio.open_connection(*others._socket.getsockname()), 60)
        writer.write(b"to the others")
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
        await others.stop()
        return answer

    assert asyncio.run(stop_alone(bind("127.0.0.1", 0))) == b"to the others"


@pytest.mark.parametrize("steps", range(4))
def test_a_connection_that_arrives_as_the_listener_stops_is_kept(steps):
    async def stop_after(bound):
        loop, listener = asyncio.get_running_loop(), listener_of(bound)
        listener.start()
        await asyncio.sleep(0.02)  # it waits for a connection
        with socket.create_connection(bound.getsockname(), timeout=60) as client:
            for _ in range(steps):
                await asyncio.sleep(0)
            await listener.stop()
            client.setblocking(False)
            await loop.sock_sendall(client, b"kept")
            return await asyncio.wait_for(loop.sock_recv(client, 100), 60)

    assert asyncio.run(stop_after(bind("127.0.0.1", 0))) == b"kept"


def test_a_handshake_that_ends_while_the_listener_stops_is_kept(monkeypatch):
    """The last segment may be processed after new connections are ignored."""
    monkeypatch.setattr("embedkit.serving.http.server._ignore_new_connections", lambda _: None)

    async def stop_meanwhile(bound):
        loop, listener, address = asyncio.get_running_loop(), listener_of(bound), bound.getsockname()
        listener.start()
        stopping = asyncio.create_task(listener.stop())
        await asyncio.sleep(0)
        with socket.create_connection(address, timeout=60) as client:
            await stopping
            client.setblocking(False)
            await loop.sock_sendall(client, b"kept")
            return await asyncio.wait_for(loop.sock_recv(client, 100), 60)

    assert asyncio.run(stop_meanwhile(bind("127.0.0.1", 0))) == b"kept"


def test_a_listener_continues_after_too_many_files_were_open(monkeypatch):
    async def run_out_of_files(bound):
        listener = listener_of(bound)
        with monkeypatch.context() as patch:
            refused = asyncio.Event()

            def refuse():
                refused.set()
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

            patch.setattr(listener, "_accept", refuse)
            listener.start()
            reader, writer = await asyncio.open_connection(*bound.getsockname())
            writer.write(b"in the end")
            await asyncio.wait_for(refused.wait(), 60)
        answer = await asyncio.wait_for(reader.read(), 60)
        writer.close()
        await writer.wait_closed()
        await listener.stop()
        return answer

    assert asyncio.run(run_out_of_files(bind("127.0.0.1", 0))) == b"in the end"


def test_a_port_in_use_is_reported_with_a_way_out():
    with bind("127.0.0.1", 0) as first:
        first.listen()
        port = first.getsockname()[1]
        with pytest.raises(OSError, match="in use") as caught, bind("127.0.0.1", port) as second:
            second.listen()
    sentence = explain_refusal("127.0.0.1", port, caught.value)
    assert sentence.startswith(f"cannot listen on 127.0.0.1 port {port}: ")
    assert sentence.endswith("choose another --port, or --port 0 for any free one")
    assert explain_refusal("h", 1, OSError("odd")) == "cannot listen on h port 1: odd"


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.skipif(os.name == "nt", reason="one"))])
def test_a_server_that_cannot_listen_ends_with_an_error(toy_bundle, capsys, workers):
    with bind("127.0.0.1", 0) as first:
        first.listen()
        port = first.getsockname()[1]
        assert main(["serve", str(toy_bundle), "--port", str(port), "--workers", str(workers)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert json.loads(line)["message"].startswith(f"cannot listen on 127.0.0.1 port {port}: ")


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_all_addresses_of_ipv6_are_those_of_ipv4_too(host):
    try:
        bound = bind("::", 0)
    except OSError:
        pytest.skip("needs IPv6")
    with bound:
        bound.listen()
        socket.create_connection((host, bound.getsockname()[1]), timeout=60).close()
