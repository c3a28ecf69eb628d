"""What a run ran on: versions, platform, processor, threads."""

from __future__ import annotations

import os
import platform
import re
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from embedkit import __version__

__all__ = ["environment"]

_PACKAGES = ("torch", "transformers", "tokenizers", "numpy", "onnx", "onnxruntime")


def environment() -> dict[str, Any]:
    """Everything beside the configuration that a run's bits and speed depend on."""
    return {
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "processor": _processor(),
        "processors": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "cuda": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "packages": {"embedkit": __version__, **{package: _version(package) for package in _PACKAGES}},
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's name; Linux tells it in a file only."""
    try:
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    line = re.search(r"^model name\s*:(.*)$", text, re.MULTILINE)
    return line.group(1).strip() if line else platform.processor() or platform.machine()
