"""The transport of `embedkit serve` beside uvicorn and granian, which serve the same application over ASGI.

    VENV/bin/python benchmarks/serve/transports.py --texts texts.txt

VENV has embedkit-onnx[serve], uvicorn and granian. Each server runs on one processor; the load generator (load.py)
has another one. They take turns, with one text per request and 64 closed-loop clients. Prints medians of
requests per second, of processor time per request in µs, which other programs disturb less, and of its ratio
to embedkit's in the same turn. Linux only.
"""

from __future__ import annotations

import argparse
import logging
import os
import statistics
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from servers import HERE, free_port
from started import Started, write_texts

from embedkit.serving.http.app import Application
from embedkit.serving.http.keys import KeyRing
from embedkit.serving.http.log_lines import log_in_lines
from embedkit.serving.http.server import all_routes
from embedkit.serving.http.service import Service
from embedkit.serving.http.settings import ServerSettings

UVICORN = "-m uvicorn --factory transports:app --no-access-log --log-level warning --loop uvloop --port {port}"
GRANIAN = "-m granian --factory transports:app --interface asgi --loop uvloop --no-ws --port {port}"
SERVERS = {
    "embedkit serve": "-m embedkit serve {model} --threads 1 --port {port}",
    "uvicorn": UVICORN,
    "granian": GRANIAN,
}


def app() -> Callable[[Any, Any, Any], Awaitable[None]]:
    """Return the server's application behind the thinnest adapter to ASGI, without limits of time and memory."""
    logger = logging.getLogger("embedkit")
    logger.addHandler(logging.StreamHandler())
    logger.setLevel(logging.INFO)
    log_in_lines(logger)
    service = Service.load([os.environ["MODEL"]], ServerSettings(threads=1))
    application = Application(all_routes(service), service, KeyRing())

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        request = application.begin(scope["method"], scope["raw_path"], list(scope["headers"]))
        response, more = application.admit(request), True
        while response is None and more:
            event = await receive()
            request.body += event.get("body", b"")
            more = event.get("more_body", False)
        response = response or await application.answer(request)
        request.status = response.status
        about = [(b"content-type", response.content_type), (b"content-length", b"%d" % len(response.body))]
        headers = [*about, (b"x-request-id", request.id), *response.headers]
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        await send({"type": "http.response.body", "body": response.body})
        application.end(request)

    return answer


def main() -> None:
    """Measure all in turns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny", help="a bundled name")
    parser.add_argument("--texts", required=True, type=Path, help="one text per line, at least 8192")
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=1.0)
    arguments = parser.parse_args()
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in SERVERS}
    path = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        job = {"model": arguments.model, "texts": str(write_texts(arguments.texts, folder)), "per_request": 1}
        servers = []
        for name, command in SERVERS.items():
            port = free_port()
            words = command.format(port=port, model=arguments.model).split()
            environment = {"PYTHONPATH": path, "MODEL": arguments.model}
            servers.append(stack.enter_context(Started(name, port, words, environment=environment)))
        for server in servers:
            server.wait()
        for turn in range(arguments.turns + 1):  # the first warms up
            for server in servers[:: -1 if turn % 2 else 1]:
                figures = server.measure({**job, "clients": 64, "seconds": arguments.seconds})
                found[server.name].extend([figures] * bool(turn))
    print("| server | requests per s | processor time of a request, µs | ratio |\n| --- | ---: | ---: | ---: |")
    for name, turns in found.items():
        rate, spent = (statistics.median(each) for each in zip(*turns, strict=True))
        pairs = zip(turns, found["embedkit serve"], strict=True)
        ratio = statistics.median(theirs / ours for (_, theirs), (_, ours) in pairs)
        print(f"| {name} | {rate:.0f} | {spent:.0f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
