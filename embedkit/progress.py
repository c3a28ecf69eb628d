"""Progress of long work: a bar on a terminal, log lines otherwise."""

from __future__ import annotations

import logging
import shutil
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Self, TextIO, TypeVar

logger = logging.getLogger("embedkit")

_BAR_SECONDS = 0.1
_PATIENCE_SECONDS = 2.0
_LINE_SECONDS = 10.0
_BAR_WIDTH = 24
_UNITS = ((1, "s"), (60, "min"), (3600, "h"))

Item = TypeVar("Item")


class Progress:
    """Counts units of work and displays progress.

    On a terminal it draws a line on stderr; elsewhere it logs a line every ten seconds at INFO to
    the logger ``embedkit``. Use it as a context manager.

    Args:
        label: the activity, e.g. ``"encode"``.
        total: total number of units, or None if unknown.
        unit: plural name of a unit, e.g. ``"texts"``.
        enabled: False disables output; True draws immediately; None only after two seconds, and only where the
            logger shows warnings.
        stream: output stream, stderr if None.
    """

    def __init__(
        self,
        label: str,
        total: int | None = None,
        *,
        unit: str = "items",
        enabled: bool | None = None,
        stream: TextIO | None = None,
    ) -> None:
        self.label, self.total, self.unit = label, total, unit
        self.done = 0
        self.note = ""
        self._stream = stream or sys.stderr
        self._terminal = self._stream is not None and self._stream.isatty()  # None under pythonw
        quiet = enabled is None and not logger.isEnabledFor(logging.WARNING)
        self._enabled = enabled is not False and not quiet
        self._started = self._shown = time.monotonic()
        self._pause = _BAR_SECONDS if enabled else _PATIENCE_SECONDS
        self._drawn = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._drawn:
            self._draw()
            self._stream.write("\n")
            self._stream.flush()

    def over(self, items: Iterable[Item]) -> Iterator[Item]:
        """Yield items, each of which is a unit."""
        for item in items:
            yield item
            self.advance()

    def advance(self, count: int = 1, note: str = "") -> None:
        """Count ``count`` more units; ``note``, for example a loss, is shown after the figures."""
        self.done += count
        self.note = note or self.note
        if not self._enabled:
            return
        now = time.monotonic()
        if now - self._shown < (self._pause if self._terminal else _LINE_SECONDS):
            return
        self._shown = now
        if self._terminal:
            self._pause = _BAR_SECONDS
            self._draw()
        else:
            logger.info("%s", self._text())

    def _draw(self) -> None:
        self._drawn = True
        columns = shutil.get_terminal_size().columns  # a wrapped line could not be overwritten
        self._stream.write("\r\x1b[K" + self._text(bar=True)[: columns - 1])
        self._stream.flush()

    def _text(self, *, bar: bool = False) -> str:
        seconds = time.monotonic() - self._started
        rate = self.done / seconds if seconds > 0 else 0.0
        parts = [self.label]
        if self.total:
            share = min(1.0, self.done / self.total)
            if bar:
                parts.append("█" * int(share * _BAR_WIDTH) + "░" * (_BAR_WIDTH - int(share * _BAR_WIDTH)))
            parts.append(f"{100 * share:.0f}%")
        parts.append(f"{self.done:,}{f'/{self.total:,}' if self.total else ''} {self.unit}, {_rate(rate)}")
        if self.total and rate:
            parts.append(f"{_duration((self.total - self.done) / rate)} left")
        if self.note:
            parts.append(self.note)
        return "  ".join(parts)


def _rate(per_second: float) -> str:
    """Format a rate; that of slow work is per minute or per hour."""
    count, unit = next(
        ((per_second * seconds, unit) for seconds, unit in _UNITS if per_second * seconds >= 1), (0, "s")
    )
    return f"{count:,.0f}/{unit}" if count >= 10 else f"{count:.2g}/{unit}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(max(0.0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m" if hours else f"{minutes}m{rest:02d}s"
