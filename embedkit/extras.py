"""Optional packages, imported on first use, and which packages are installed."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
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
        raise MissingExtraError(f"{missing} is not installed; it comes with: {install_command(extra)}") from error


def install_command(extra: str) -> str:
    """Return the commands that install an extra, from PyPI or in a checkout."""
    return f'pip install "{DISTRIBUTION}[{extra}]", or in a checkout: pip install ".[{extra}]"'


_ONNXRUNTIME = tuple(f"onnxruntime{suffix}" for suffix in ("", "-gpu", "-directml", "-openvino", "-rocm", "-qnn"))


def installed_versions(packages: Iterable[str]) -> dict[str, str]:
    """Return name and version of those distributions that are installed."""
    from importlib.metadata import PackageNotFoundError, version

    versions = {}
    for package in packages:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions


def explain_conflict(packages: Iterable[str]) -> str:
    """Return the message for several distributions that install into the same folder."""
    names = list(packages)
    return (
        f"{' and '.join(names)} are both installed and overwrite each other's files; remove them with "
        f"`pip uninstall -y {' '.join(names)}`, then install the one you want"
    )


def installed_onnxruntime() -> dict[str, str]:
    """Return name and version of every distribution that writes into the package ``onnxruntime``."""
    return installed_versions(_ONNXRUNTIME)


def explain_missing_onnxruntime() -> str:
    """Return the message for a failed ``import onnxruntime``, or one that lacks its contents."""
    names = list(installed_onnxruntime())
    if not names:
        return "ONNX Runtime is not installed; install it with: pip install onnxruntime"
    if len(names) > 1:
        return explain_conflict(names)
    return (
        f"{names[0]} is installed but damaged, probably because another ONNX Runtime package was "
        f"removed; repair it with: pip install --force-reinstall --no-deps {names[0]}"
    )
