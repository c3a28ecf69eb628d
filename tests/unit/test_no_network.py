"""The fixture that keeps tests off the network blocks it, and allows connections to this machine."""

from __future__ import annotations

import socket
import urllib.request

import pytest


def test_other_machines_cannot_be_reached():
    with socket.socket() as client, pytest.raises(RuntimeError, match=r"without a network.*192\.0\.2\.1"):
        client.connect(("192.0.2.1", 80))
    with pytest.raises(RuntimeError, match=r"without a network.*example\.org"):
        urllib.request.urlopen("http://example.org")


def test_this_machine_can_be_reached():
    with socket.create_server(("127.0.0.1", 0)) as server:
        with socket.create_connection(server.getsockname()) as client:
            client.sendall(b"x")
        connection, _ = server.accept()
        with connection:
            assert connection.recv(1) == b"x"
