"""Encoders of each family with random weights, and their graphs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx
import torch
from transformers import (
    BertConfig,
    BertModel,
    ElectraConfig,
    ElectraModel,
    ModernBertConfig,
    ModernBertModel,
    MPNetConfig,
    MPNetModel,
    RobertaConfig,
    RobertaModel,
)

from embedkit.export.graph import build_graph
from embedkit.export.inputs import measure_inputs
from embedkit.export.quantize import WORD_TABLES, Int8Arithmetic, MixedArithmetic, StaticInt8Products
from embedkit.export.writer import FloatArithmetic
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.modeling.pooling import WordMemory
from embedkit.runtime.tokenization import Tokenizer

TEXTS = ["the cat is asleep", "a good dog", "where is the train to the city today", "my mother drives to the sea"]
FAMILIES: dict[str, Any] = {
    "bert": (BertConfig, BertModel),
    "roberta": (RobertaConfig, RobertaModel),
    "mpnet": (MPNetConfig, MPNetModel),
    "electra": (ElectraConfig, lambda config, **_: ElectraModel(config)),
    "modernbert": (ModernBertConfig, lambda config, **_: ModernBertModel(config)),
}


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
    **config: Any,
) -> SentenceEncoder:
    """Build an encoder of two layers, in evaluation mode.

    Args:
        tokenizer: its vocabulary, unless ``config`` has a ``vocab_size``.
        seed: of all weights. Biases and the scales of LayerNorm differ from the 0 and 1 that they begin with.
        family: a key of ``FAMILIES``.
        pooling: as of `SentenceEncoder`.
        head: width of a dense head.
        activation: of the head.
        memory: width of a word memory.
        outlier: factor of one input of each attention's output, so that int8-static smooths.
        config: settings of the backbone.
    """
    settings = {"vocab_size": tokenizer.vocabulary_size, "num_hidden_layers": 2} | config
    make_config, make_network = FAMILIES[family]
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(seed)
        backbone = make_network(make_config(**settings), add_pooling_layer=False)
        for parameter in backbone.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
        if family == "mpnet":
            backbone.encoder.relative_attention_bias.weight.normal_()
        for name, parameter in backbone.named_parameters():
            if "attention." in name and name.endswith("LayerNorm.weight"):
                parameter[3] *= outlier
        encoder = SentenceEncoder(backbone, tokenizer, pooling=pooling, name="toy")
        if memory is not None:
            encoder.memory = WordMemory(encoder.config.vocab_size, memory)
            encoder.memory.rows.weight.normal_(std=0.5)
        encoder.set_head(head, activation)
    return encoder.eval()


def toy_graph(
    model: Any, products: str = "fp32", words: str = "float32", *, levels: int = 64, texts: Sequence[str] = TEXTS
) -> onnx.ModelProto:
    """Write the graph of an encoder or cross-encoder; ``texts`` are those that int8-static measures."""
    made: dict[str, Any] = {"fp32": FloatArithmetic(), "int8": Int8Arithmetic(levels)}
    if products == "int8-static":
        made[products] = StaticInt8Products(levels, measure_inputs(model, list(texts)))
    return build_graph(model, MixedArithmetic(made[products], WORD_TABLES[words]))
