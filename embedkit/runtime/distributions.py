"""Which of the packages that bring ONNX Runtime are installed; two of them destroy each other."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

_DISTRIBUTIONS = (
    "onnxruntime",
    "onnxruntime-gpu",
    "onnxruntime-directml",
    "onnxruntime-openvino",
    "onnxruntime-rocm",
    "onnxruntime-qnn",
)


def installed_distributions() -> dict[str, str]:
    """Name -> version of every installed distribution that writes into the package ``onnxruntime``."""
    found = {}
    for name in _DISTRIBUTIONS:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def explain_missing_onnxruntime() -> str:
    """Return the message for a failed ``import onnxruntime``, or one that lacks its contents."""
    names = list(installed_distributions())
    if not names:
        return "ONNX Runtime is not installed; install it with: pip install onnxruntime"
    if len(names) > 1:
        return (
            f"{' and '.join(names)} are both installed and overwrite each other's files; remove them with "
            f"`pip uninstall -y {' '.join(names)}`, then install the one you want"
        )
    return (
        f"{names[0]} is installed but damaged, as it is when a second ONNX Runtime package was removed from over "
        f"it; mend it with: pip install --force-reinstall --no-deps {names[0]}"
    )
