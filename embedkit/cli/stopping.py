"""Ctrl-C during training: the first one ends it after the step it is at."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator

__all__ = ["stop_flag"]


@contextlib.contextmanager
def stop_flag(*, insist: bool = True) -> Iterator[Callable[[], bool]]:
    """Let the first Ctrl-C or SIGTERM end training after the step it is at; the next one ends it at once.

    Without ``insist`` the next ones count for nothing: torchrun sends each process a SIGTERM of its own behind the
    Ctrl-C that they all have seen, and kills what is still there after half a minute.

    Before the first step, while text is read and the teacher encodes it, the first ends it at once: the
    loop has not begun to look, and what is in the teacher's cache is kept.
    """
    asked = training = False

    def ask(*_: object) -> None:
        nonlocal asked
        if (asked and insist) or not training:
            raise KeyboardInterrupt
        asked = True

    def should_stop() -> bool:
        nonlocal training
        training = True
        return asked

    signals = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, ask) for number in signals]
    try:
        yield should_stop
    finally:
        for number, handler in zip(signals, before, strict=True):
            signal.signal(number, handler)
