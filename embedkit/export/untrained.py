"""Encoders with random weights, for timing: the cost of a network depends on its shape.

Such a graph is deliberately no bundle that could be mistaken for a model, but a folder with a graph, a tokenizer
and two lengths.
"""

from __future__ import annotations

import json
from pathlib import Path

from embedkit.export.graph import build_graph
from embedkit.export.quantize import Int8Arithmetic, largest_weight
from embedkit.export.writer import FloatArithmetic
from embedkit.modeling.initialisation import random
from embedkit.modeling.sizes import Size
from embedkit.runtime.bundle import read_bundle
from embedkit.runtime.location import find_model
from embedkit.runtime.tokenization import Tokenizer

MAX_LENGTH = 512
"""Tokens, as in every published BERT."""


def bert_tokenizer() -> Tokenizer:
    """Return the English BERT vocabulary's 26,000 most frequent pieces, taken from the bundled encoder."""
    return Tokenizer(read_bundle(find_model("tiny")).tokenizer_json, MAX_LENGTH)


def write_untrained(size: Size, tokenizer: Tokenizer, folder: Path, *, precision: str) -> None:
    """Write an encoder of a given shape, exported like a trained one in ``"fp32"`` or ``"int8"``.

    The folder is filled with ``model.onnx``, ``tokenizer.json`` and ``config.json``.
    """
    arithmetic = FloatArithmetic() if precision == "fp32" else Int8Arithmetic(largest_weight("cpu-avx2"))
    model = random(tokenizer, size, max_length=MAX_LENGTH, seed=0)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.onnx").write_bytes(build_graph(model, arithmetic).SerializeToString())
    (folder / "tokenizer.json").write_text(tokenizer.json, encoding="utf-8")
    lengths = {"hidden_size": size.hidden, "max_position_embeddings": MAX_LENGTH}
    (folder / "config.json").write_text(json.dumps(lengths), encoding="utf-8")
