"""Two versions of `embedkit serve` side by side: the effect of a change on the cost of a request.

    git worktree add ../before REV
    python benchmarks/serve/versions.py ../before . --model tiny-sct --texts texts.txt

Each version is a server on one processor; the load generator (load.py) has another. They take turns. Prints, for
several numbers of texts per request and closed-loop clients, medians of requests per second and of processor time
per request in µs, which other programs disturb less. Linux only.
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

LOADS = ((1, 1), (1, 64), (16, 1), (16, 64))
"""Texts per request, clients."""


class Version:
    """A server that runs the embedkit of a folder."""

    def __init__(self, tree: Path, model: str) -> None:
        self.name, self.port = str(tree), free_port()
        command = [sys.executable, "-m", "embedkit", "serve", model, "--port", str(self.port), "--threads", "1"]
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - see __exit__
        self._process = subprocess.Popen(
            [*bound_to([0]), *command],
            stdout=self._log,
            stderr=self._log,
            cwd=tree,
            env={**os.environ, "PYTHONPATH": str(tree.resolve()), "OMP_NUM_THREADS": "1"},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
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
        fields = Path(f"/proc/{self._process.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Measure both in turns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trees", nargs=2, type=Path, help="folders that contain embedkit/, the older first")
    parser.add_argument("--model", default="tiny-sct", help="a bundled name")
    parser.add_argument("--texts", required=True, type=Path, help="one text per line, at least 8192")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    arguments = parser.parse_args()
    found: dict[tuple[int, int, str], list[tuple[float, float]]] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        texts = folder / "texts.json"
        texts.write_text(json.dumps(arguments.texts.read_text(encoding="utf-8").splitlines()[:8192]))
        job = {"model": arguments.model, "texts": str(texts), "seconds": arguments.seconds}
        versions = [stack.enter_context(Version(tree, arguments.model)) for tree in arguments.trees]
        time.sleep(5)
        for turn in range(arguments.turns + 1):  # the first warms up
            for size, clients in LOADS:
                for version in versions[:: -1 if turn % 2 else 1]:
                    figures = version.measure({**job, "per_request": size, "clients": clients})
                    found.setdefault((size, clients, version.name), []).extend([figures] * bool(turn))
    print("| texts per request | clients | version | requests per s | processor time of a request, µs |")
    print("| ---: | ---: | --- | ---: | ---: |")
    for (size, clients, name), turns in found.items():
        rate, spent = (statistics.median(each) for each in zip(*turns, strict=True))
        print(f"| {size} | {clients} | {name} | {rate:.0f} | {spent:.0f} |")


if __name__ == "__main__":
    main()
