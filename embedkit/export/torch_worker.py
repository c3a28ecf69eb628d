"""A worker that runs models on torch for :mod:`embedkit.evaluation.speed`, which does not depend on torch."""

from __future__ import annotations

import torch

from embedkit.evaluation.speed.worker import TimedModel, serve
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.modeling.layout import weights_bytes
from embedkit.modeling.torch_encoder import TorchEncoder
from embedkit.runtime.find import find_folder


def main() -> None:
    """Time models on torch, in float32."""
    serve(_load)


def _load(source: str, threads: int) -> TimedModel:
    torch.set_num_threads(threads)
    folder = find_folder(source)
    encoder = TorchEncoder(SentenceEncoder.load(source))
    about = {
        "name": encoder.name,
        "precision": "fp32 (torch)",
        "runtime": f"torch {torch.__version__}",
        "fingerprint": encoder.fingerprint,
        "dimension": encoder.dimension,
        "max_length": encoder.max_length,
        "size_bytes": weights_bytes(folder),
    }
    return TimedModel(encoder.encode, about)
