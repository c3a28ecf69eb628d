"""How a model named on the command line runs: on ONNX Runtime or torch, in one process or several."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from embedkit.atomic import expanded

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from embedkit.protocols import PairScorer, TextEncoder
    from embedkit.runtime.encoder import Encoder
    from embedkit.runtime.pool import EncoderPool

logger = logging.getLogger(__name__)

_WORTH_REPORTING = 0.03  # share of unknown tokens; English text has fewer, languages unknown to a model many more


def locate(source: str) -> str:
    """Return the model folder of a run folder; any other path or name unchanged."""
    path = expanded(source)
    if (path / "model" / "config.json").is_file():
        return str(path / "model")
    return str(path) if path.exists() else source


def choose_backend(location: str) -> str:
    """Return ``"onnx"`` for files, bundled names and folders with an ONNX file, otherwise ``"torch"``."""
    path = Path(location)
    if path.is_dir():
        return "onnx" if any(path.glob("*.onnx")) or any(path.glob("onnx/*.onnx")) else "torch"
    return "torch" if "/" in location and not path.exists() and path.suffix != ".onnx" else "onnx"


def load_model(source: str, backend: str = "auto") -> TextEncoder | PairScorer:
    """Load an encoder or a cross-encoder by a backend; ``"auto"`` is that of :func:`choose_backend`."""
    location, pairs = locate(source), is_cross_encoder(source, backend)
    if _backend(location, backend) == "onnx":
        from embedkit.runtime.cross_encoder import CrossEncoder
        from embedkit.runtime.encoder import Encoder

        return CrossEncoder.load(location) if pairs else Encoder.load(location)
    from embedkit.modeling.cross_encoder import PairEncoder
    from embedkit.modeling.encoder import SentenceEncoder
    from embedkit.modeling.torch_encoder import TorchCrossEncoder, TorchEncoder

    if pairs:
        return TorchCrossEncoder(PairEncoder.load(location))
    return TorchEncoder(SentenceEncoder.load(location))


def in_processes(
    encoder: Encoder, processes: int | None, threads: int | None = None
) -> AbstractContextManager[Encoder | EncoderPool]:
    """Return the encoder in that many processes, or the encoder itself if None."""
    return contextlib.nullcontext(encoder) if processes is None else encoder.pool(processes, threads=threads)


def report_unknown(model: object) -> None:
    """Log a warning if an encoder on ONNX Runtime or the kernel did not know a few percent of its tokens."""
    share = getattr(model, "unknown_so_far", 0.0)
    if share > _WORTH_REPORTING:
        logger.warning(
            "%s does not cover %.1f %% of the tokens of these texts", getattr(model, "name", ""), 100 * share
        )


def is_cross_encoder(source: str, backend: str = "auto") -> bool:
    """Whether :func:`load_model` would return a cross-encoder, without reading the weights of a folder."""
    location = locate(source)
    if _backend(location, backend) == "torch":
        from embedkit.modeling.cross_encoder import is_cross_encoder as has_one_logit
        from embedkit.runtime.find import find_folder

        return has_one_logit(find_folder(location))
    from embedkit.runtime.bundle import read_bundle
    from embedkit.runtime.find import find_model

    path = find_model(location)
    if path.is_file():
        return read_bundle(path).manifest.kind == "cross-encoder"
    return (path / "config.json").is_file() and not (path / "modules.json").is_file()


def _backend(location: str, wanted: str) -> str:
    return choose_backend(location) if wanted == "auto" else wanted
