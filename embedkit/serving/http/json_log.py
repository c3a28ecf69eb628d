"""Log records as JSON lines, for log collectors."""

from __future__ import annotations

import logging
import time
from typing import Any

import orjson

__all__ = ["JsonFormatter", "log_as_json"]


class JsonFormatter(logging.Formatter):
    """Formats ``{"time", "level", "message"}`` and the record's ``fields`` on one line."""

    def format(self, record: logging.LogRecord) -> str:
        """Format one record as one line."""
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return orjson.dumps(line, default=str).decode()


def log_as_json(logger: logging.Logger) -> None:
    """Make the handlers of a logger write JSON from now on."""
    # Skip unused information about the caller, see "Optimization" in Python's logging HOWTO.
    logging._srcfile = None  # noqa: SLF001 - documented there
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    for handler in logger.handlers:
        handler.setFormatter(JsonFormatter())
