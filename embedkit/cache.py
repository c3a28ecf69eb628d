"""The folder for files that can be downloaded again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder(name: str) -> Path:
    """Return ``~/.cache/embedkit/NAME``, or ``$XDG_CACHE_HOME/embedkit/NAME`` if that variable is set."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "embedkit" / name
