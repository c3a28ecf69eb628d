"""The measured servers, each a process bound to its processors."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

HERE = Path(__file__).parent
MODEL = "measured"  # name of the model in all of them
START_SECONDS = 120.0
STOP_SECONDS = 40.0
_THREAD_SETTINGS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS", "THREADS")


@dataclass(frozen=True)
class Contender:
    """How to start a server.

    Attributes:
        model: the folder or file it reads, created by run.py.
        path: path of its route.
        command: built from its Python, the model, the port and the number of threads.
        packages: packages whose versions matter.
    """

    model: str
    path: str
    command: Callable[[str, str, int, int], list[str]]
    packages: tuple[str, ...]


def _embedkit(python: str, model: str, port: int, threads: int) -> list[str]:
    return [python, "-m", "embedkit", "serve", model, "--port", str(port), "--threads", str(threads)]


def _infinity(python: str, model: str, port: int, _: int) -> list[str]:
    script = str(Path(python).with_name("infinity_emb"))
    return [
        script,
        "v2",
        "--model-id",
        model,
        "--served-model-name",
        MODEL,
        "--port",
        str(port),
        "--device",
        "cpu",
    ]


_OURS = ("onnxruntime", "httptools", "uvloop")
_SENTENCE_TRANSFORMERS = ("sentence-transformers", "transformers", "torch", "fastapi", "uvicorn")
CONTENDERS = {
    "embedkit fp32": Contender("fp32.onnx", "/v1/embeddings", _embedkit, _OURS),
    "embedkit int8": Contender("int8.onnx", "/v1/embeddings", _embedkit, _OURS),
    "infinity fp32": Contender("folder", "/embeddings", _infinity, ("infinity-emb", *_SENTENCE_TRANSFORMERS)),
}
USUAL = ["embedkit fp32", "embedkit int8", "infinity fp32"]


class ServerError(Exception):
    """A server does not start, or returns wrong results."""


class Server:
    """A contender's process.

    Args:
        name: name of the contender.
        python: the Python that has its packages.
        folder: folder of the models.
        processors: processors it may use; it gets as many threads.
        more: additional flags.

    Attributes:
        name: as given.
        port: port it listens on.
        path: path of its route.
        pid: its process id.

    Raises:
        ServerError: it did not start.
    """

    def __init__(
        self, name: str, python: str, folder: Path, processors: Sequence[int], more: Sequence[str] = ()
    ) -> None:
        contender = CONTENDERS[name]
        self.name, self.path, self.port = name, contender.path, free_port()
        self._log = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 - see __exit__
        model, threads = str(folder / contender.model), len(processors)
        settings = {**dict.fromkeys(_THREAD_SETTINGS, str(threads)), "MODEL": model, "HF_HUB_OFFLINE": "1"}
        self._process = subprocess.Popen(
            [*bound_to(processors), *contender.command(python, model, self.port, threads), *more],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            env={**os.environ, **settings, "DO_NOT_TRACK": "1"},
        )
        self.pid = self._process.pid
        try:
            self._wait_until_ready()
        except ServerError:
            self.__exit__()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def embed(self, texts: list[str]) -> npt.NDArray[np.float64]:
        """Return embeddings of texts, ``(N, D)``."""
        body = json.dumps({"input": texts, "model": MODEL}).encode()
        url = f"http://127.0.0.1:{self.port}{self.path}"
        request = urllib.request.Request(url, body, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=START_SECONDS) as answer:  # noqa: S310 - ours
            return np.array([each["embedding"] for each in json.load(answer)["data"]])

    def resident_mb(self) -> float:
        """Return the resident memory of the process. Linux only."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text(encoding="ascii").split()[1])
        return round(pages * os.sysconf("SC_PAGE_SIZE") / 1e6, 1)

    def _wait_until_ready(self) -> None:
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until and self._process.poll() is None:
            with contextlib.suppress(OSError):
                self.embed(["Is anybody there?"])
                return
            time.sleep(0.2)
        self._log.seek(0)
        last = (self._log.read().strip().splitlines() or ["no message"])[-1]
        raise ServerError(f"did not start: {last}")


def bound_to(processors: Sequence[int]) -> list[str]:
    """Return a command prefix that binds a process to these processors."""
    return ["taskset", "--cpu-list", ",".join(map(str, processors))]


def free_port() -> int:
    """Return an unused port."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
    return port


def versions(name: str, python: str) -> dict[str, str]:
    """Return the versions of a contender's packages."""
    script = (
        "import importlib.metadata as m, json, sys; print(json.dumps({n: m.version(n) for n in sys.argv[1:]}))"
    )
    command = [python, "-c", script, *CONTENDERS[name].packages]
    found: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return found
