"""Log lines as JSON objects, which log collectors read without rules of their own."""

from __future__ import annotations

import logging
import time
from typing import Any

import orjson

__all__ = ["JsonFormatter"]


class JsonFormatter(logging.Formatter):
    """``{"time", "level", "message"}`` and what the record carries in ``fields``, on one line."""

    def format(self, record: logging.LogRecord) -> str:
        """One record as one line."""
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
