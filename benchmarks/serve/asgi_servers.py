"""HTTP servers side by side: `embedkit serve`, uvicorn and granian, with a canned answer and with embedkit's.

    python -m venv VENV && VENV/bin/pip install granian "embedkit-onnx[serve]"
    VENV/bin/python benchmarks/serve/asgi_servers.py --texts texts.txt

Each server has one process on one processor; the load generator (load.py) has another one. They take turns. Prints
medians of requests per second and of processor time per request in µs. Linux only.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from servers import HERE, bound_to, free_port

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
    "embedkit in uvicorn": (*UVICORN, "--factory", "asgi_app:embedkit"),
    "embedkit in granian": (*GRANIAN, "--factory", "asgi_app:embedkit"),
    "embedkit serve": ("-m", "embedkit", "serve", "{model}", "--threads", "1", "--port", "{port}"),
}


class Started:
    """A server in a process of its own, with those that it starts."""

    def __init__(self, name: str, model: str, texts: int) -> None:
        self.name, self.port = name, free_port()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - see __exit__
        arguments = [part.format(port=self.port, model=model) for part in SERVERS[name]]
        path = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
        self._process = subprocess.Popen(
            [*bound_to([0]), sys.executable, *arguments],
            stdout=self._log,
            stderr=self._log,
            env={**os.environ, "PYTHONPATH": path, "MODEL": model, "TEXTS": str(texts), "OMP_NUM_THREADS": "1"},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()
        self._log.close()

    def measure(self, job: dict[str, object]) -> tuple[float, float]:
        """Return answers per second, and µs of processor time per request."""
        before = self._processor_s()
        command = [*bound_to([1]), sys.executable, str(HERE / "load.py")]
        given = json.dumps({**job, "port": self.port, "path": "/v1/embeddings"})
        done = subprocess.run(command, input=given, check=True, stdout=subprocess.PIPE, text=True)
        found = json.loads(done.stdout)
        if found["failed"] or found["refused"]:
            raise SystemExit(f"{self.name} failed or rejected requests: {found}")
        return found["answered_per_s"], 1e6 * (self._processor_s() - before) / found["sent"]

    def _processor_s(self) -> float:
        return sum(map(processor_s, family(self._process.pid)))


def family(pid: int) -> list[int]:
    """Return a process and its descendants."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    return [pid, *(each for child in children for each in family(int(child)))]


def processor_s(pid: int) -> float:
    """Return the processor time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Measure all in turns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny-sct", help="a bundled name")
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
            texts = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "texts.json"
            texts.write_text(json.dumps(arguments.texts.read_text(encoding="utf-8").splitlines()[:8192]))
            job = {"model": arguments.model, "texts": str(texts), "seconds": arguments.seconds}
            job |= {"per_request": size, "clients": clients}
            servers = [stack.enter_context(Started(name, arguments.model, size)) for name in arguments.servers]
            time.sleep(10)
            for turn in range(arguments.turns + 1):  # the first warms up
                for server in servers[:: -1 if turn % 2 else 1]:
                    found.setdefault(server.name, []).extend([server.measure(job)] * bool(turn))
        for name, turns in found.items():
            rate, spent = (statistics.median(each) for each in zip(*turns, strict=True))
            print(f"| {size} | {name} | {rate:.0f} | {spent:.0f} |", flush=True)


if __name__ == "__main__":
    main()
