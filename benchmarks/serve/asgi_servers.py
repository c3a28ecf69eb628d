"""HTTP servers side by side: `embedkit serve`, uvicorn and granian, the others with a canned answer.

    python -m venv VENV && VENV/bin/pip install granian uvicorn "embedkit-onnx[serve]"
    VENV/bin/python benchmarks/serve/asgi_servers.py --texts texts.txt

Each server has one process on one processor; the load generator (load.py) has another one. They take turns. Prints
medians of requests per second and of processor time per request in µs. Linux only.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from servers import HERE, free_port
from started import Started, write_texts

LOADS = ((1, 64), (16, 64))
"""Texts per request, clients."""
UVICORN = ("-m", "uvicorn", "--no-access-log", "--port", "{port}")
GRANIAN = (
    "-m",
    "granian",
    "--interface",
    "asgi",
    "--loop",
    "uvloop",
    "--port",
    "{port}",
)
SERVERS = {
    "canned, uvicorn": (*UVICORN, "asgi_app:canned"),
    "canned, uvicorn without uvloop": (*UVICORN, "--loop", "asyncio", "asgi_app:canned"),
    "canned, granian": (*GRANIAN, "asgi_app:canned"),
    "embedkit serve": ("-m", "embedkit", "serve", "{model}", "--threads", "1", "--port", "{port}"),
}


def start(name: str, model: str, texts: int) -> Started:
    """Start a server; canned answers have the length of those for so many texts."""
    port = free_port()
    path = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    return Started(
        name,
        port,
        [part.format(port=port, model=model) for part in SERVERS[name]],
        environment={"PYTHONPATH": path, "MODEL": model, "TEXTS": str(texts)},
    )


def main() -> None:
    """Measure all in turns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny", help="a bundled name")
    parser.add_argument("--texts", required=True, type=Path, help="one text per line, at least 8192")
    parser.add_argument("--servers", nargs="+", choices=SERVERS, default=list(SERVERS))
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.5)
    arguments = parser.parse_args()
    print("| texts per request | server | requests per s | processor time of a request, µs |")
    print("| ---: | --- | ---: | ---: |")
    for size, clients in LOADS:
        found: dict[str, list[tuple[float, float]]] = {}
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            texts = write_texts(arguments.texts, folder)
            job = {"model": arguments.model, "texts": str(texts), "seconds": arguments.seconds}
            job |= {"per_request": size, "clients": clients}
            servers = [stack.enter_context(start(name, arguments.model, size)) for name in arguments.servers]
            time.sleep(10)
            for turn in range(arguments.turns + 1):  # the first warms up
                for server in servers[:: -1 if turn % 2 else 1]:
                    found.setdefault(server.name, []).extend([server.measure(job)] * bool(turn))
        for name, turns in found.items():
            rate, spent = (statistics.median(each) for each in zip(*turns, strict=True))
            print(f"| {size} | {name} | {rate:.0f} | {spent:.0f} |", flush=True)


if __name__ == "__main__":
    main()
