"""Processes to be timed, as seen by the measuring process."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from embedkit.errors import ModelError

_ONNX_WORKER = "embedkit.evaluation.speed.worker"
_THREAD_SETTINGS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS")
_MARKS = ("imported", "loaded", "embedded")
_PATIENCE_SECONDS = 5.0
_TOPOLOGY = Path("/sys/devices/system/cpu")


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A model to time.

    Attributes:
        source: path, name or hub id, as understood by its worker.
        worker: the module that runs it, see :mod:`~embedkit.evaluation.speed.worker`.
        name: display name; if empty, taken from the model, like the precision.
        precision: precision of its weights.
        note: a caveat for readers, for example that weights are random.
    """

    source: str
    worker: str = _ONNX_WORKER
    name: str = ""
    precision: str = ""
    note: str = ""


@dataclass(frozen=True)
class Start:
    """Seconds from the start of a fresh process, with files in the system's cache, to three marks.

    Packages are imported, the model is loaded, and the first text is encoded.
    """

    imported: float
    loaded: float
    embedded: float


class WorkerProcess:
    """A model in a process of its own, bound to as many processors as it has threads.

    Args:
        candidate: the model to load.
        threads: number of threads of a call.

    Attributes:
        start: duration of its start.
        about: the model's description, see :class:`~embedkit.evaluation.speed.worker.TimedModel`; the candidate's
            own name and precision take precedence.
        memory_bytes: memory after its first text, None if not available.

    Raises:
        ModelError: the model cannot be loaded.
    """

    def __init__(self, candidate: Candidate, threads: int) -> None:
        self.candidate = candidate
        # A file, because an unread pipe would fill up and block the worker.
        self._messages = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 - see close
        began = time.perf_counter()
        with _bound_to(threads):
            self._process = subprocess.Popen(  # noqa: S603 - ourselves
                [sys.executable, "-m", candidate.worker, candidate.source, str(threads)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._messages,
                text=True,
                encoding="utf-8",
                env={**os.environ, **dict.fromkeys(_THREAD_SETTINGS, str(threads))},
                start_new_session=True,  # Ctrl-C reaches only this process, which stops the workers
            )
        try:
            reached = [(self._read(mark), time.perf_counter() - began) for mark in _MARKS]
        except BaseException:
            self.close(patience_seconds=0)
            raise
        self.start = Start(*(seconds for _, seconds in reached))
        ready, _ = reached[-1]
        named = {"name": candidate.name, "precision": candidate.precision}
        self.about: dict[str, Any] = ready["about"] | {key: value for key, value in named.items() if value}
        self.memory_bytes: int | None = ready["memory_bytes"]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(patience_seconds=0 if kind else _PATIENCE_SECONDS)

    def keep(self, name: str, texts: list[str]) -> None:
        """Send texts to the worker under a name."""
        self._ask({"keep": name, "texts": texts})

    def time(self, name: str, *, batch: int, calls: int, warm_up: int) -> dict[str, Any]:
        """Return ``seconds`` of each call, ``joules`` of all calls, and the memory after them."""
        return self._ask({"time": name, "batch": batch, "calls": calls, "warm_up": warm_up})

    def close(self, *, patience_seconds: float = _PATIENCE_SECONDS) -> None:
        """Stop the process, allowing it to finish its current call within ``patience_seconds``."""
        with contextlib.suppress(OSError):
            self._pipe("stdin").close()
        try:
            self._process.wait(patience_seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._pipe("stdout").close()
        self._messages.close()

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            self._pipe("stdin").write(json.dumps(request) + "\n")
            self._pipe("stdin").flush()
        except OSError as error:
            raise ModelError(self._obituary()) from error
        return self._read()

    def _read(self, mark: str | None = None) -> dict[str, Any]:
        line = self._pipe("stdout").readline()
        if not line:
            raise ModelError(self._obituary())
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer or answer.get("reached") != mark:
            raise ModelError(f"{self.candidate.source} cannot be timed: {answer.get('error', line.strip())}")
        return answer

    def _obituary(self) -> str:
        code = self._process.wait()
        self._messages.seek(0)
        last = (self._messages.read().strip().splitlines() or ["no message"])[-1]
        return f"{self.candidate.source} cannot be timed: its process ended with code {code}: {last}"

    def _pipe(self, name: str) -> Any:
        return getattr(self._process, name)


@contextlib.contextmanager
def _bound_to(threads: int) -> Iterator[None]:
    """Bind started processes to the same ``threads`` processors; has no effect outside Linux."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, choose_processors(before, threads))
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def choose_processors(usable: set[int], threads: int, topology: Path = _TOPOLOGY) -> set[int]:
    """Choose processors from the usable ones, on separate cores as far as possible."""
    cores: dict[str, int] = {}
    for processor in sorted(usable):
        siblings = topology / f"cpu{processor}" / "topology" / "thread_siblings_list"
        cores.setdefault(siblings.read_text() if siblings.exists() else str(processor), processor)
    apart = sorted(cores.values())
    return set([*apart, *sorted(usable - set(apart))][:threads])
