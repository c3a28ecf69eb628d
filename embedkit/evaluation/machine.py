"""The machine on which speed is measured: processor, memory, versions and load."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path
from typing import Any

from embedkit import __version__
from embedkit.runtime.distributions import installed_versions
from embedkit.threads import available_threads

# Features that determine the speed of int8 and the best export target: see `embedkit export --help`.
_CPU_FEATURES = ("avx2", "avx512f", "avx_vnni", "avx512_vnni", "amx_int8", "asimd", "asimddp", "i8mm", "sve")
DECIDING_PACKAGES = ("numpy", "onnxruntime", "tokenizers", "torch", "transformers")
_CPUINFO = Path("/proc/cpuinfo")


def describe_machine() -> dict[str, Any]:
    """Return a JSON-serialisable description; values are None where the system does not report them."""
    return {
        "processor": processor_name(),
        "processors": os.cpu_count(),
        "usable": available_threads(),
        "features": cpu_features(),
        "memory_bytes": _memory_bytes(),
        "load": system_load(),
        "platform": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "packages": {"embedkit": __version__, **installed_versions(DECIDING_PACKAGES)},
    }


def processor_name(cpuinfo: Path = _CPUINFO) -> str:
    """Return the processor's name, which Linux reports only in a file."""
    line = re.search(r"^model name\s*:(.*)$", _read(cpuinfo) or "", re.MULTILINE)
    return line.group(1).strip() if line else platform.processor() or platform.machine()


def cpu_features(cpuinfo: Path = _CPUINFO) -> list[str] | None:
    """Return the processor features relevant to int8, or None if the system does not report them."""
    text = _read(cpuinfo)
    if text is None:
        return None
    line = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
    flags = set(line.group(1).split()) if line else set()
    return [feature for feature in _CPU_FEATURES if feature in flags]


def system_load() -> float | None:
    """Return the load average of the last minute, or None if the system does not report it."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None  # not on Windows


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not on Windows
        return None


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
