"""Answers every request with the same bytes, to measure the limit of the load generator.

python canned.py PORT TEXTS DIMENSION
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import httptools
import uvloop


class Canned(asyncio.Protocol):
    """A connection."""

    def __init__(self, answer: bytes) -> None:
        self._answer, self._parser = answer, httptools.HttpRequestParser(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport."""
        self._transport: Any = transport

    def data_received(self, data: bytes) -> None:
        """Parse a part of a request."""
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        """Answer a complete request."""
        self._transport.write(self._answer)


def make_answer(texts: int, dimension: int) -> bytes:
    """Return an answer of realistic length."""
    row = {"object": "embedding", "index": 0, "embedding": [-0.012398436] * dimension}
    body = json.dumps({"object": "list", "data": [row] * texts, "model": "canned"}).encode()
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body) + body


async def serve(port: int, answer: bytes) -> None:
    """Answer until terminated."""
    server = await asyncio.get_running_loop().create_server(lambda: Canned(answer), "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), make_answer(int(sys.argv[2]), int(sys.argv[3]))))
