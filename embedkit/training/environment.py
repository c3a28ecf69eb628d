"""The environment of a run: versions, platform, processor, threads."""

from __future__ import annotations

import os
import platform
import sys
from importlib import metadata
from typing import Any

import torch

from embedkit import __version__
from embedkit.evaluation.machine import processor_name

__all__ = ["environment"]

_PACKAGES = ("torch", "transformers", "tokenizers", "numpy", "onnx", "onnxruntime")


def environment() -> dict[str, Any]:
    """Return everything except the configuration that affects a run's results and speed."""
    return {
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "processor": processor_name(),
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
