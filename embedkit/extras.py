"""Import of optional packages on first use, with a one-sentence error if one is missing."""

from __future__ import annotations

import importlib
from types import ModuleType

from embedkit.errors import MissingExtraError

DISTRIBUTION = "embedkit-onnx"
"""Name of this package on PyPI, where ``embedkit`` belongs to another project."""


def require(module: str, *, extra: str) -> ModuleType:
    """Import an optional package, or raise an error with the command that installs its extra.

    Raises:
        MissingExtraError: the module, or one of its dependencies, is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        missing = error.name or module
        raise MissingExtraError(
            f'{missing} is not installed; it comes with: pip install "{DISTRIBUTION}[{extra}]"'
        ) from error
