"""Encoders and cross-encoders as models of MTEB, the Massive Text Embedding Benchmark.

    import mteb
    from embedkit import Encoder
    from embedkit.integrations.mteb import MtebEncoder

    model = MtebEncoder(Encoder.load("tiny.onnx"))
    mteb.evaluate(model, mteb.get_tasks(["STSBenchmark"]))

Needs ``pip install "embedkit-onnx[mteb]"``; written for MTEB 2.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from embedkit.errors import InputError, shown
from embedkit.extras import require
from embedkit.protocols import FloatArray, PairScorer, PromptingEncoder, TextEncoder
from embedkit.runtime.arguments import check_choice, check_iterable

__all__ = ["Batch", "MtebCrossEncoder", "MtebEncoder"]

Batch = Mapping[str, Any]
"""A batch of MTEB's data loaders: lists by kind of input, ``{"text": [...]}``."""


class MtebEncoder:
    """MTEB's ``EncoderProtocol`` for an encoder.

    Where MTEB distinguishes queries from documents, the encoder's own prompts for them are prepended to the texts,
    as MTEB does for sentence-transformers models. The encoder chooses its own batches: MTEB's ``batch_size`` has
    no effect.

    Args:
        encoder: a bundle, a torch encoder or any object with the attributes of ``TextEncoder``.

    Raises:
        MissingExtraError: MTEB is not installed.
    """

    def __init__(self, encoder: TextEncoder) -> None:
        if not isinstance(encoder, TextEncoder) or isinstance(encoder, type):
            raise InputError(f"encoder must be an encoder, not {shown(encoder)}")
        self._encoder = encoder
        self._similarity = require("mteb.similarity_functions", extra="mteb")
        self.mteb_model_meta = _describe(encoder, "dense", embed_dim=encoder.dimension)

    def encode(
        self, inputs: Iterable[Batch], *, prompt_type: str | None = None, precision: str = "float32", **_: Any
    ) -> FloatArray:
        """Embed the texts of a data loader: ``(N, D) float32, unit rows``.

        Args:
            inputs: batches with the key ``text``.
            prompt_type: ``"query"``, ``"document"`` or None.
            precision: only ``"float32"`` is supported.

        Raises:
            InputError: the inputs are not texts, or another prompt type or precision is requested.
        """
        if not isinstance(precision, str) or precision != "float32":
            raise InputError(f"expected the precision float32 from MTEB, got {shown(precision)}")
        if prompt_type is not None:
            check_choice(prompt_type, ("query", "document"), "prompt_type")
        texts = _texts(inputs)
        if prompt_type is None or not isinstance(self._encoder, PromptingEncoder):
            return self._encoder.encode(texts)
        return (
            self._encoder.encode_query(texts) if prompt_type == "query" else self._encoder.encode_document(texts)
        )

    def similarity(self, embeddings1: FloatArray, embeddings2: FloatArray) -> Any:
        """Return the cosine of each row with each row, a torch tensor as required by MTEB."""
        return self._similarity.cos_sim(embeddings1, embeddings2)

    def similarity_pairwise(self, embeddings1: FloatArray, embeddings2: FloatArray) -> Any:
        """Return the cosine of each row with its counterpart, a torch tensor as required by MTEB."""
        return self._similarity.pairwise_cos_sim(embeddings1, embeddings2)


class MtebCrossEncoder:
    """MTEB's ``CrossEncoderProtocol`` for a cross-encoder.

    Args:
        scorer: the bundle of a cross-encoder, or any object with the attributes of ``PairScorer``.

    Raises:
        MissingExtraError: MTEB is not installed.
    """

    def __init__(self, scorer: PairScorer) -> None:
        if not isinstance(scorer, PairScorer) or isinstance(scorer, type):
            raise InputError(f"scorer must be a cross-encoder, not {shown(scorer)}")
        self._scorer = scorer
        self.mteb_model_meta = _describe(scorer, "cross-encoder", embed_dim=None)

    def predict(self, inputs1: Iterable[Batch], inputs2: Iterable[Batch], **_: Any) -> FloatArray:
        """Score the pairs of texts from two data loaders: ``(N,) float32``.

        Raises:
            InputError: the inputs are not texts, or not equally many.
        """
        first, second = _texts(inputs1), _texts(inputs2)
        if len(first) != len(second):
            raise InputError(f"expected as many second texts as first, {len(first)}, got {len(second)}")
        return self._scorer.predict(list(zip(first, second, strict=True)))


def _texts(inputs: Iterable[Batch]) -> list[str]:
    texts: list[str] = []
    for batch in check_iterable(inputs, "inputs"):
        if not isinstance(batch, Mapping):
            raise InputError(f"expected batches from MTEB, got {shown(batch)}")
        if "text" not in batch:
            raise InputError(f"expected texts from MTEB, got {', '.join(batch)}: the model supports only texts")
        texts += batch["text"]
    return texts


def _describe(model: TextEncoder | PairScorer, kind: str, *, embed_dim: int | None) -> Any:
    """Return the metadata under which MTEB stores results; the fingerprint as revision keeps models apart."""
    module = require("mteb.models.model_meta", extra="mteb")
    about = {
        "name": f"embedkit/{model.name.replace('/', '-')}",
        "revision": model.fingerprint,
        "max_tokens": model.max_length,
        "embed_dim": embed_dim,
        "similarity_fn_name": module.ScoringFunction.COSINE,
        "model_type": [kind],
    }
    return module.ModelMeta.create_empty(about)
