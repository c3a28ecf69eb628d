"""Processes to be timed, as seen by the measuring process."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from embedkit.child import Child
from embedkit.errors import EmbedkitError, ModelError

_ONNX_WORKER = "embedkit.evaluation.speed.worker"
_THREAD_SETTINGS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS")
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
        self._messages = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 - see close
        settings = dict.fromkeys(_THREAD_SETTINGS, str(threads))
        began = time.perf_counter()
        with _bound_to(threads):
            self._child = Child(candidate.worker, self._died, settings, messages=self._messages)
        try:
            ready = self._ask({"source": candidate.source, "threads": threads})
            marks = [time.perf_counter() - began]
            for _ in ("loaded", "embedded"):
                ready = self._receive()
                marks.append(time.perf_counter() - began)
        except BaseException:
            self.close(at_once=True)
            raise
        self.start = Start(*marks)
        named = {"name": candidate.name, "precision": candidate.precision}
        self.about: dict[str, Any] = ready["about"] | {key: value for key, value in named.items() if value}
        self.memory_bytes: int | None = ready["memory_bytes"]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.close(at_once=kind is not None)

    def keep(self, name: str, texts: list[str]) -> None:
        """Send texts to the worker under a name."""
        self._ask({"keep": name, "texts": texts})

    def time(self, name: str, *, batch: int, calls: int, warm_up: int) -> dict[str, Any]:
        """Return ``seconds`` of each call, and the memory after them."""
        return self._ask({"time": name, "batch": batch, "calls": calls, "warm_up": warm_up})

    def close(self, *, at_once: bool = False) -> None:
        """Stop the process, after its current call unless ``at_once``."""
        self._child.dismiss(at_once=at_once)
        self._child.close()
        self._messages.close()

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        self._child.send(request)
        return self._receive()

    def _receive(self) -> dict[str, Any]:
        try:
            answer, _ = self._child.receive()
        except EmbedkitError as error:
            raise ModelError(f"{self.candidate.source} cannot be timed: {error}") from error
        return answer

    def _died(self, code: int) -> ModelError:
        self._messages.seek(0)
        last = (self._messages.read().strip().splitlines() or ["no message"])[-1]
        return ModelError(f"its process ended with code {code}: {last}")


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
