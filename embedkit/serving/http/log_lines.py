"""Log records as lines: JSON for log collectors, words on a terminal."""

from __future__ import annotations

import logging
import time
from typing import Any

import orjson

_PLAIN = ("url", "method", "route", "status")  # fields whose values need no names
_CONTROLS = {code: f"\\u{code:04x}" for code in (*range(0x20), *range(0x7F, 0xA0))}


class JsonFormatter(logging.Formatter):
    """Formats ``{"time", "level", "message"}`` and the record's ``fields`` on one line."""

    _second, _moment = -1, ""  # formatted last

    def format(self, record: logging.LogRecord) -> str:
        """Format one record as one line."""
        second = int(record.created)
        if second != self._second:
            self._moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
            self._second = second
        line: dict[str, Any] = {
            "time": f"{self._moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return orjson.dumps(line, default=str).decode()


class TerminalFormatter(logging.Formatter):
    """Formats the local time, the level unless it is INFO, the message, and the fields as words on one line."""

    def format(self, record: logging.LogRecord) -> str:
        """Format one record as one line, and below it a traceback."""
        level = "" if record.levelno == logging.INFO else f"{record.levelname.lower()}: "
        fields: dict[str, Any] = dict(getattr(record, "fields", {}))
        words = [str(fields.pop(name)) for name in _PLAIN if name in fields]
        if "ms" in fields:
            words.append(f"{fields.pop('ms')} ms")
        words += [f"{name}={_word(value)}" for name, value in fields.items() if name != "request_id"]
        moment = time.strftime("%H:%M:%S", time.localtime(record.created))
        line = " ".join([moment, level + record.getMessage(), *words]).translate(_CONTROLS)
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def _word(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def log_in_lines(logger: logging.Logger) -> None:
    """Make the handlers of a logger write JSON from now on, or words if they write to a terminal."""
    # Skip unused information about the caller, see "Optimization" in Python's logging HOWTO.
    logging._srcfile = None  # noqa: SLF001 - documented there
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    for handler in logger.handlers:
        stream = getattr(handler, "stream", None)
        on_terminal = stream is not None and stream.isatty()
        handler.setFormatter(TerminalFormatter() if on_terminal else JsonFormatter())
