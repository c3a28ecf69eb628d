"""Signal handling during training: the first Ctrl-C ends it after the current step."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def stop_flag(*, insist: bool = True) -> Iterator[Callable[[], bool]]:
    """End training after the current step on the first Ctrl-C or SIGTERM, and immediately on the next one.

    Without ``insist``, further signals are ignored: torchrun sends each process a SIGTERM after the Ctrl-C that
    all of them have received, and kills the remaining processes after half a minute.

    Before the first step, while text is read and the teacher encodes it, the first signal ends training
    immediately, and the teacher's cache is kept.
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
