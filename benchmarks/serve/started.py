"""A server under test on one processor, while the load generator has another. Linux only."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from servers import HERE, bound_to

_START_SECONDS = 120


class Started:
    """A server in a process of its own, with those that it starts; a context manager.

    Args:
        name: of the server, for tables and errors.
        port: on which it answers.
        arguments: of this Python.
        environment: variables, in addition to those of this process.
        folder: working directory; None keeps that of this process.
    """

    def __init__(
        self,
        name: str,
        port: int,
        arguments: Sequence[str],
        *,
        environment: Mapping[str, str],
        folder: Path | None = None,
    ) -> None:
        self.name, self.port = name, port
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - see __exit__
        self._process = subprocess.Popen(
            [*bound_to([0]), sys.executable, *arguments],
            stdout=self._log,
            stderr=self._log,
            cwd=folder,
            env={**os.environ, **environment, "OMP_NUM_THREADS": "1"},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for pid in family(self._process.pid):  # the server first, so that it replaces none of the others
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()
        self._log.close()

    def wait(self) -> None:
        """Wait until the server listens."""
        until = time.monotonic() + _START_SECONDS
        while self._process.poll() is None and time.monotonic() < until:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            time.sleep(0.2)
        raise SystemExit(f"{self.name} did not start")

    def measure(self, job: Mapping[str, object]) -> tuple[float, float]:
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
        return sum(map(_processor_s, family(self._process.pid)))


def family(pid: int) -> list[int]:
    """Return a process and its descendants."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    return [pid, *(each for child in children for each in family(int(child)))]


def write_texts(texts: Path, folder: Path) -> Path:
    """Write the first 8192 lines of a file as the load generator reads them; return the new file."""
    path = folder / "texts.json"
    path.write_text(json.dumps(texts.read_text(encoding="utf-8").splitlines()[:8192]))
    return path


def _processor_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
