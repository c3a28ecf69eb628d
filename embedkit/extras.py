"""Optional packages: found when they are needed, missed in one sentence."""

from __future__ import annotations

import importlib
from types import ModuleType

from embedkit.errors import MissingExtraError

__all__ = ["DISTRIBUTION", "require"]

DISTRIBUTION = "embedkit-onnx"
"""Name of this package on PyPI, where ``embedkit`` is another project's."""


def require(module: str, *, extra: str) -> ModuleType:
    """Import an optional package, or say which command installs it.

    Args:
        module: dotted name of the module, e.g. ``"faiss"``.
        extra: the extra of embedkit that brings it, e.g. ``"serve"``.

    Raises:
        MissingExtraError: the module, or something that it imports, is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        missing = error.name or module
        raise MissingExtraError(
            f'{missing} is not installed; it comes with: pip install "{DISTRIBUTION}[{extra}]"'
        ) from error
