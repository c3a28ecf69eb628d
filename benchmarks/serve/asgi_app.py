"""An application for other ASGI servers (asgi_servers.py): a canned answer.

TEXTS=16 DIMENSION=256 granian --interface asgi asgi_app:canned
"""

from __future__ import annotations

import os
from typing import Any

from canned import make_answer

_BODY = make_answer(int(os.environ.get("TEXTS", "1")), int(os.environ.get("DIMENSION", "256"))).split(
    b"\r\n\r\n", 1
)[1]
_START = {
    "type": "http.response.start",
    "status": 200,
    "headers": [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(_BODY))],
}


async def canned(scope: Any, receive: Any, send: Any) -> None:
    """Read a request, and answer with the same bytes every time."""
    if scope["type"] != "http":
        return
    while (await receive()).get("more_body"):
        pass
    await send(_START)
    await send({"type": "http.response.body", "body": _BODY})
