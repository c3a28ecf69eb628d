"""What runs a model that a command line names: ONNX Runtime or torch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from embedkit.protocols import PairScorer, TextEncoder

__all__ = ["choose_backend", "load_model", "locate"]


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


def load_model(source: str, backend: str = "auto") -> TextEncoder | PairScorer:
    """An encoder or a cross-encoder.

    Args:
        source: a bundle, a bundled name, a run folder, a model folder or a hub id.
        backend: ``"onnx"``, ``"torch"``, or ``"auto"`` for :func:`choose_backend`.

    Raises:
        ModelNotFoundError, BundleError, ModelError: there is none, or it cannot be used.
    """
    location = locate(source)
    if (choose_backend(location) if backend == "auto" else backend) == "onnx":
        return _load_onnx(location)
    from embedkit.modeling.cross_encoder import PairEncoder, is_cross_encoder
    from embedkit.modeling.encoder import SentenceEncoder
    from embedkit.modeling.location import find_folder
    from embedkit.modeling.torch_cross_encoder import TorchCrossEncoder
    from embedkit.modeling.torch_encoder import TorchEncoder

    if is_cross_encoder(find_folder(location)):
        return TorchCrossEncoder(PairEncoder.load(location))
    return TorchEncoder(SentenceEncoder.load(location))


def _load_onnx(location: str) -> TextEncoder | PairScorer:
    from embedkit.runtime.bundle import read_bundle
    from embedkit.runtime.cross_encoder import CrossEncoder
    from embedkit.runtime.encoder import Encoder
    from embedkit.runtime.location import find_model

    path = find_model(location)
    classifier = (path / "config.json").is_file() and not (path / "modules.json").is_file()
    if classifier or (path.is_file() and read_bundle(path).manifest.kind == "cross-encoder"):
        return CrossEncoder.load(location)
    return Encoder.load(location)
