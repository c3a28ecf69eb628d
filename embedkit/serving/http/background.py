"""Background threads that yield to the event loop."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor

_LOWER_PRIORITY = 5  # in the steps of nice


def background_threads(count: int, name: str) -> ThreadPoolExecutor:
    """Return threads that, with the threads they start, have a lower priority than the event loop if supported.

    On machines with few processors, requests can then be rejected immediately during computation.
    """
    return ThreadPoolExecutor(count, thread_name_prefix=name, initializer=_give_way)


def _give_way() -> None:
    if sys.platform == "linux":  # threads have their own priority, inherited by threads they start
        os.nice(_LOWER_PRIORITY)
