"""An encoder and a cross-encoder in every precision, on the kernel and on ONNX Runtime, by the command line."""

from __future__ import annotations

import json

import numpy as np
import pytest
from toy_networks import toy_cross_encoder

from embedkit import CrossEncoder, Encoder
from embedkit.cli.main import main
from embedkit.kernels import built
from embedkit.modeling.cross_encoder import PairEncoder
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.modeling.initialisation import Size, random
from embedkit.modeling.torch_encoder import TorchCrossEncoder, TorchEncoder
from embedkit.runtime.kernel_backend import NATIVE
from embedkit.runtime.tokenization import Tokenizer

TEXTS = ["the cat sat in the garden", "a good dog", "", "my sister likes to swim in the sea at noon"]
PRECISIONS = ["fp32", "fp16", "int8", "int8-static"]
WORDS = [None, "int8", "int4"]


PAIRS = [("a dog", "the dog in the garden"), ("the sea", "my sister likes to swim in the sea"), ("", "a good cat")]


@pytest.fixture(scope="module")
def place(tmp_path_factory, toy_tokenizer_json):
    """A folder with an encoder that has a head, a cross-encoder, and texts to calibrate both."""
    place = tmp_path_factory.mktemp("model")
    tokenizer = Tokenizer(toy_tokenizer_json, 16)
    sizes = {"hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 192, "max_position_embeddings": 16}
    toy_cross_encoder(tokenizer, seed=5, pad_token_id=0, initializer_range=0.15, **sizes).save(place / "cross")
    encoder = random(tokenizer, Size(2, 64, 2), max_length=16, seed=1)
    encoder.set_head(64, "linear")
    encoder.save(place / "encoder")
    texts = [f"the {word} number {n}" for n in range(8) for word in ("cat", "dog")]
    (place / "texts.txt").write_text("\n".join(texts))
    return place


def export(place, kind, precision, words, path, capsys):
    command = ["export", str(place / kind), "-o", str(path), "--precision", precision, "-q"]
    command += ["--word-table", words] if words else []
    command += ["--calibration", str(place / "texts.txt")] if precision == "int8-static" else []
    code, message = main(command), capsys.readouterr().err
    assert code == 0, message
    assert main(["inspect", str(path), "--verify", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["manifest"]["precision"].startswith(precision.partition("-")[0])


def load_both(kind, path, precision):
    """The bundle as ONNX Runtime runs it, and as the kernel does where it can."""
    graph, found = kind.load(path, providers=["CPUExecutionProvider"]), kind.load(path)
    if all(built().values()) and precision != "fp16":
        assert (found.provider, graph.provider) == (NATIVE, "CPUExecutionProvider")
    return graph, found


@pytest.mark.parametrize("words", WORDS, ids=str)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_precision_of_an_encoder_computes_the_same_embeddings(place, precision, words, tmp_path, capsys):
    export(place, "encoder", precision, words, tmp_path / "model.onnx", capsys)
    graph, found = load_both(Encoder, tmp_path / "model.onnx", precision)
    rows = graph.encode(TEXTS)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-5)
    model = TorchEncoder(SentenceEncoder.load(place / "encoder")).encode(TEXTS)
    assert (found.encode(TEXTS) * rows).sum(axis=1).min() > 0.99
    assert (model * rows).sum(axis=1).min() > 0.95


@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_precision_of_a_cross_encoder_computes_the_same_scores(place, precision, tmp_path, capsys):
    export(place, "cross", precision, "int8", tmp_path / "model.onnx", capsys)
    graph, found = load_both(CrossEncoder, tmp_path / "model.onnx", precision)
    scores = TorchCrossEncoder(PairEncoder.load(place / "cross")).predict(PAIRS)
    np.testing.assert_allclose(graph.predict(PAIRS), scores, atol=0.05)
    np.testing.assert_allclose(found.predict(PAIRS), scores, atol=0.05)
