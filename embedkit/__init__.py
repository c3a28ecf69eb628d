"""embedkit: small, fast sentence encoders, from training to search.

Public names are imported when they are first used, so that ``import embedkit`` costs nothing::

    from embedkit import Encoder

    encoder = Encoder.load("tiny.onnx")
    embeddings = encoder.encode(["a text", "another"])  # (2, D) float32, unit rows
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from embedkit.errors import (
        BundleError,
        EmbedkitError,
        InputError,
        MissingExtraError,
        ModelError,
        ModelNotFoundError,
        ProviderError,
        TextOverflowError,
    )
    from embedkit.protocols import PairScorer, TextEncoder, VectorIndex
    from embedkit.runtime.cross_encoder import CrossEncoder
    from embedkit.runtime.encoder import Encoder
    from embedkit.runtime.joined import JoinedEncoder
    from embedkit.serving.retrieval.collection import Collection
    from embedkit.serving.retrieval.similar import cluster, deduplicate, similar_pairs

__all__ = [
    "BundleError",
    "Collection",
    "CrossEncoder",
    "EmbedkitError",
    "Encoder",
    "InputError",
    "JoinedEncoder",
    "MissingExtraError",
    "ModelError",
    "ModelNotFoundError",
    "PairScorer",
    "ProviderError",
    "TextEncoder",
    "TextOverflowError",
    "VectorIndex",
    "__version__",
    "cluster",
    "deduplicate",
    "similar_pairs",
]

__version__ = "0.1.0"

_HOME_OF = {
    "BundleError": "embedkit.errors",
    "Collection": "embedkit.serving.retrieval.collection",
    "CrossEncoder": "embedkit.runtime.cross_encoder",
    "EmbedkitError": "embedkit.errors",
    "Encoder": "embedkit.runtime.encoder",
    "InputError": "embedkit.errors",
    "JoinedEncoder": "embedkit.runtime.joined",
    "MissingExtraError": "embedkit.errors",
    "ModelError": "embedkit.errors",
    "ModelNotFoundError": "embedkit.errors",
    "PairScorer": "embedkit.protocols",
    "ProviderError": "embedkit.errors",
    "TextEncoder": "embedkit.protocols",
    "TextOverflowError": "embedkit.errors",
    "VectorIndex": "embedkit.protocols",
    "cluster": "embedkit.serving.retrieval.similar",
    "deduplicate": "embedkit.serving.retrieval.similar",
    "similar_pairs": "embedkit.serving.retrieval.similar",
}


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'embedkit' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
