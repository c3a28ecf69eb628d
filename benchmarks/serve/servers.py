"""The servers that are measured, each a process bound to the processors it is given."""

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
MODEL = "measured"  # what all of them call the model
START_SECONDS = 120.0
STOP_SECONDS = 40.0
_THREAD_SETTINGS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS", "THREADS")


@dataclass(frozen=True)
class Contender:
    """How a server is started.

    Attributes:
        model: the folder or file it reads, of those that run.py makes.
        path: of its route.
        command: made of the Python that has it, the model, the port and the number of threads.
        packages: whose versions tell its story.
    """

    model: str
    path: str
    command: Callable[[str, str, int, int], list[str]]
    packages: tuple[str, ...]


def _embedkit(python: str, model: str, port: int, threads: int) -> list[str]:
    return [python, "-m", "embedkit", "serve", model, "--port", str(port), "--threads", str(threads)]


def _plain(python: str, _: str, port: int, __: int) -> list[str]:
    return [python, "-m", "uvicorn", "plain:app", "--app-dir", str(HERE), "--port", str(port)]


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


_OURS = ("onnxruntime", "fastapi", "uvicorn")
_SENTENCE_TRANSFORMERS = ("sentence-transformers", "transformers", "torch", "fastapi", "uvicorn")
CONTENDERS = {
    "embedkit fp32": Contender("fp32.onnx", "/v1/embeddings", _embedkit, _OURS),
    "embedkit int8": Contender("int8.onnx", "/v1/embeddings", _embedkit, _OURS),
    "plain fp32": Contender("folder", "/v1/embeddings", _plain, _SENTENCE_TRANSFORMERS),
    "infinity fp32": Contender("folder", "/embeddings", _infinity, ("infinity-emb", *_SENTENCE_TRANSFORMERS)),
}
"""``plain`` is plain.py: FastAPI and sentence-transformers."""
USUAL = ["embedkit fp32", "embedkit int8", "infinity fp32"]


class ServerError(Exception):
    """A server does not start, or gives what it should not."""


class Server:
    """A contender's process.

    Args:
        name: of the contender.
        python: that has its packages.
        folder: of the models.
        processors: that it may use; it gets as many threads.
        more: flags.

    Attributes:
        name: as given.
        port: where it listens.
        path: of its route.
        pid: of its process.

    Raises:
        ServerError: it did not start; says why.
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
        """Embeddings of texts, ``(N, D)``."""
        body = json.dumps({"input": texts, "model": MODEL}).encode()
        url = f"http://127.0.0.1:{self.port}{self.path}"
        request = urllib.request.Request(url, body, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=START_SECONDS) as answer:  # noqa: S310 - ours
            return np.array([each["embedding"] for each in json.load(answer)["data"]])

    def resident_mb(self) -> float:
        """What the process holds of the machine's memory. Linux only."""
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
    """Words before a command that let it use these processors only."""
    return ["taskset", "--cpu-list", ",".join(map(str, processors))]


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
    return port


def versions(name: str, python: str) -> dict[str, str]:
    """Versions of the packages that a contender stands on."""
    script = (
        "import importlib.metadata as m, json, sys; print(json.dumps({n: m.version(n) for n in sys.argv[1:]}))"
    )
    command = [python, "-c", script, *CONTENDERS[name].packages]
    found: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return found
