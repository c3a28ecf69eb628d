"""One trained model as every kind of bundle, on the kernel and on ONNX Runtime, through the command line."""

from __future__ import annotations

import json

import numpy as np
import pytest

from embedkit import Encoder
from embedkit.cli.main import main
from embedkit.modeling.initialisation import random
from embedkit.modeling.sizes import Size
from embedkit.runtime.kernel_backend import NATIVE
from embedkit.runtime.kernels import built
from embedkit.runtime.tokenization import Tokenizer

TEXTS = ["the cat sat in the garden", "a good dog", "", "my sister likes to swim in the sea at noon"]
PRECISIONS = ["fp32", "fp16", "int8", "int8-static"]
WORDS = [None, "int8", "int4"]


@pytest.fixture(scope="module")
def model(tmp_path_factory, toy_tokenizer_json):
    place = tmp_path_factory.mktemp("model")
    encoder = random(Tokenizer(toy_tokenizer_json, 16), Size(2, 64, 2), max_length=16, seed=1)
    encoder.set_head(64, "linear")
    encoder.save(place / "model")
    (place / "texts.txt").write_text(
        "\n".join(f"the {word} number {n}" for n in range(8) for word in ("cat", "dog"))
    )
    return place


@pytest.mark.parametrize("words", WORDS, ids=str)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_precision_computes_what_the_model_does(model, precision, words, tmp_path, capsys):
    path = tmp_path / "model.onnx"
    command = ["export", str(model / "model"), "-o", str(path), "--precision", precision, "-q"]
    command += ["--word-table", words] if words else []
    command += ["--calibration", str(model / "texts.txt")] if precision == "int8-static" else []
    code, message = main(command), capsys.readouterr().err
    assert code == 0, message
    assert main(["inspect", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["manifest"]["precision"].startswith(precision.partition("-")[0])
    graph = Encoder.load(path, providers=["CPUExecutionProvider"])
    rows = graph.encode(TEXTS)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-5)
    found = Encoder.load(path)
    if all(built().values()) and precision != "fp16":
        assert (found.provider, graph.provider) == (NATIVE, "CPUExecutionProvider")
    assert (found.encode(TEXTS) * rows).sum(axis=1).min() > 0.99
    assert found.verify()["passed"]
