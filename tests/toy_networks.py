"""Encoders and cross-encoders of any architecture with random weights, and their graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx
import torch
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification

from embedkit.export.bias_correction import measure_inputs
from embedkit.export.graph import build_graph
from embedkit.export.quantize import WORD_TABLES, Int8Arithmetic, MixedArithmetic, StaticInt8Products
from embedkit.export.writer import FloatArithmetic
from embedkit.modeling.cross_encoder import PairEncoder
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.modeling.pooling import WordMemory
from embedkit.runtime.kernel_backend import native_instructions
from embedkit.runtime.tokenization import PairTokenizer, Tokenizer

TEXTS = ["the cat is asleep", "a good dog", "where is the train to the city today", "my mother drives to the sea"]


def toy_encoder(
    tokenizer: Tokenizer,
    *,
    seed: int,
    family: str = "bert",
    pooling: str = "mean",
    head: int | None = None,
    activation: Any = "tanh",
    memory: int | None = None,
    outlier: float = 1.0,
    noise: float = 0.0,
    name: str = "toy",
    **config: Any,
) -> SentenceEncoder:
    """Build an encoder of two layers, in evaluation mode.

    Args:
        tokenizer: its vocabulary, unless ``config`` has a ``vocab_size``.
        seed: of all weights. Biases and the scales of LayerNorm differ from the 0 and 1 that they begin with.
        family: the ``model_type`` of transformers.
        pooling: as of `SentenceEncoder`.
        head: width of a dense head.
        activation: of the head.
        memory: width of a word memory.
        outlier: factor of one input of each attention's output, so that int8-static smooths.
        noise: added to matrices.
        name: of the encoder.
        config: settings of the backbone.
    """
    options = {"add_pooling_layer": False} if family in ("bert", "roberta", "mpnet") else {}
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(seed)
        backbone = AutoModel.from_config(_config(tokenizer, family, config), **options)
        for parameter in backbone.parameters():
            if parameter.ndim == 1 or noise:
                parameter.add_((0.2 if parameter.ndim == 1 else noise) * torch.randn_like(parameter))
        if family == "mpnet":
            backbone.encoder.relative_attention_bias.weight.normal_()
        for place, parameter in backbone.named_parameters():
            if "attention." in place and place.endswith("LayerNorm.weight"):
                parameter[3] *= outlier
        encoder = SentenceEncoder(backbone, tokenizer, pooling=pooling, name=name)
        if memory is not None:
            encoder.memory = WordMemory(encoder.config.vocab_size, memory)
            encoder.memory.rows.weight.normal_(std=0.5)
        encoder.set_head(head, activation)
    return encoder.eval()


def toy_cross_encoder(
    tokenizer: Tokenizer,
    *,
    seed: int,
    family: str = "bert",
    noise: float = 0.0,
    spread: float = 0.4,
    name: str = "toy",
    **config: Any,
) -> PairEncoder:
    """Build a cross-encoder of two layers as :func:`toy_encoder`, whose scores spread, in evaluation mode."""
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(seed)
        network = AutoModelForSequenceClassification.from_config(
            _config(tokenizer, family, {"num_labels": 1} | config)
        )
        for place, parameter in network.named_parameters():
            if size := 0.2 if parameter.ndim == 1 or "token_type" in place else noise:
                parameter.add_(size * torch.randn_like(parameter))
            if place in ("classifier.weight", "classifier.out_proj.weight", "score.weight"):
                parameter.copy_(spread * torch.randn_like(parameter))
    return PairEncoder(network, PairTokenizer(tokenizer.json, tokenizer.max_length), name=name).eval()


def _config(tokenizer: Tokenizer, family: str, settings: Mapping[str, Any]) -> Any:
    sizes = {"vocab_size": tokenizer.vocabulary_size, "num_hidden_layers": 2}
    return AutoConfig.for_model(family, **sizes | settings)


def exact_levels() -> int:
    """Return the largest int8 weight whose products ONNX Runtime does not saturate on this processor.

    As the largest of a target (``monkeypatch.setitem(TARGETS, target, exact_levels())``), it changes nothing with
    VNNI, and lets its bundles pass the same gates without.
    """
    return 64 if {*native_instructions()[:1]} <= {"avx2", "portable"} else 127


def toy_graph(
    model: Any, products: str = "fp32", words: str = "float32", *, levels: int = 64, texts: Sequence[str] = TEXTS
) -> onnx.ModelProto:
    """Write the graph of an encoder or cross-encoder; ``texts`` are those that are measured."""
    made: dict[str, Any] = {"fp32": FloatArithmetic(), "int8": Int8Arithmetic(levels)}
    if products in {"int8-static", "int8-smoothed"}:
        kind = StaticInt8Products if products == "int8-static" else Int8Arithmetic
        made[products] = kind(levels, measure_inputs(model, list(texts)))
    return build_graph(model, MixedArithmetic(made[products], WORD_TABLES[words]))
