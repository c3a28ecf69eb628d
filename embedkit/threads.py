"""How many threads this process may really use, and how to use as many as can be started.

The affinity and the control group of the process decide, not the machine.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import TypeVar

_Argument = TypeVar("_Argument")
_Result = TypeVar("_Result")

_PROCESSES_PER_PROCESSOR = 8


def available_threads(root: Path = Path("/")) -> int:
    """Processors that this process may keep busy, at least 1.

    The smaller of its affinity mask and the quota of its control group or of any group above it
    (versions 1 and 2). A container on a large machine is often given only a few.
    """
    limits = [_quota(folder) for folder in _control_groups(root)]
    return max(1, min([_affinity(), *(int(limit) for limit in limits if limit is not None)]))


def submit_each(
    pool: ThreadPoolExecutor, work: Callable[[_Argument], _Result], arguments: Iterable[_Argument]
) -> list[Future[_Result]]:
    """Submit a call for each argument until no thread can be started, and return the calls that were submitted.

    A process has a limit of threads, and none are started once the interpreter exits, where callbacks of
    :mod:`atexit` still run. The caller does the rest of the work.
    """
    futures: list[Future[_Result]] = []
    with contextlib.suppress(RuntimeError):
        for argument in arguments:
            futures.append(pool.submit(work, argument))  # noqa: PERF401 - keeps those before an error
    return futures


def _affinity() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1  # not on macOS and Windows


def most_processes() -> int:
    """Return the largest number of processes that share a task: each has a model and gains nothing beyond this."""
    return _PROCESSES_PER_PROCESSOR * available_threads()


def _control_groups(root: Path) -> Iterator[Path]:
    """Folders of the groups that hold this process, innermost first; a container sees only the last."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, group = [*line.split(":", 2), "", ""][:3]
        if controllers and "cpu" not in controllers.split(","):
            continue
        mount = root / "sys/fs/cgroup" / ("cpu" if controllers else "")
        inner = PurePosixPath(group.lstrip("/"))
        yield from (mount / folder for folder in (inner, *inner.parents))


def _quota(folder: Path) -> float | None:
    """Processors that a group may keep busy, or None where it has no limit."""
    version_2 = _read(folder / "cpu.max").split()
    version_1 = [*_read(folder / "cpu.cfs_quota_us").split(), *_read(folder / "cpu.cfs_period_us").split()]
    try:
        quota, period = (int(value) for value in version_2 or version_1)
    except ValueError:  # "max", or no such files
        return None
    return quota / period if quota > 0 and period > 0 else None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
