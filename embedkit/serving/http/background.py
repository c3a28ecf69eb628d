"""Threads that give way to the event loop."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor

__all__ = ["background_threads"]

_LOWER_PRIORITY = 5  # in the steps of nice


def background_threads(count: int, name: str) -> ThreadPoolExecutor:
    """Threads whose priority, and that of threads they start, is below the event loop's where the system has that.

    Where processors are few, what is refused is to be refused at once, whatever is being computed.
    """
    return ThreadPoolExecutor(count, thread_name_prefix=name, initializer=_give_way)


def _give_way() -> None:
    if sys.platform == "linux":  # where a thread has a priority of its own, and gives it to threads that it starts
        os.nice(_LOWER_PRIORITY)
