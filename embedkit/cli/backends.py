"""What runs a model that a command line names: ONNX Runtime or torch."""

from __future__ import annotations

from pathlib import Path

__all__ = ["choose_backend", "locate"]


def locate(source: str) -> str:
    """The model folder of a run folder; else the path or name as it is."""
    path = Path(source).expanduser()
    if (path / "model" / "config.json").is_file():
        return str(path / "model")
    return str(path) if path.exists() else source


def choose_backend(location: str) -> str:
    """``"onnx"`` for files, bundled names and folders with an ONNX file; ``"torch"`` otherwise."""
    path = Path(location)
    if path.is_dir():
        return "onnx" if any(path.glob("*.onnx")) or any(path.glob("onnx/*.onnx")) else "torch"
    return "torch" if "/" in location and not path.exists() and path.suffix != ".onnx" else "onnx"
