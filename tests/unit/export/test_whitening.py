"""Whitening of an encoder's embeddings by its head."""

import numpy as np
import pytest
import torch

from embedkit.errors import ExportError
from embedkit.export.card import Card
from embedkit.export.pipeline import export
from embedkit.export.transforms import whiten_embeddings
from embedkit.modeling.torch_encoder import TorchEncoder
from embedkit.runtime.encoder import Encoder

WORDS = ["the", "a", "cat", "dog", "house", "sea", "walks", "sleeps", "to", "not", "far", "bees", "find", "tea"]
_DRAWN = np.random.default_rng(3)
TEXTS = [" ".join(_DRAWN.choice(WORDS, _DRAWN.integers(2, 12))) for _ in range(300)]


def outputs(encoder):
    """Embeddings before they are scaled to unit length, one text at a time."""
    rows = encoder.tokenizer.tokenize(TEXTS).ids
    with torch.inference_mode():
        values = [
            encoder(torch.tensor([row]), torch.ones(1, len(row), dtype=torch.long))[0].numpy() for row in rows
        ]
    return np.array(values, dtype=np.float64)


def axes_and_variances(values):
    variances, axes = np.linalg.eigh(np.cov(values, rowvar=False, bias=True))
    return axes, variances


@pytest.mark.parametrize("head", [None, (8, "linear"), (8, "tanh")], ids=["no head", "linear", "tanh"])
@pytest.mark.parametrize("power", [0.0, 0.4, 1.0])
def test_components_vary_by_a_power_of_what_they_did(make_encoder, head, power):
    encoder = make_encoder()
    if head is not None:
        torch.manual_seed(0)
        encoder.set_head(*head)
    before = outputs(encoder)

    after = outputs(whiten_embeddings(encoder, TEXTS, power))

    axes, variances = axes_and_variances(before)
    varied = ((after - after.mean(axis=0)) @ axes).var(axis=0)
    assert np.abs(after.mean(axis=0)).max() < 1e-4 * after.std()
    kept = variances > 1e-5 * variances.mean()  # LayerNorm leaves one direction without any
    ratio = varied[kept] / variances[kept] ** (1 - power)
    np.testing.assert_allclose(ratio, ratio.mean(), rtol=5e-3)
    np.testing.assert_array_equal(outputs(encoder), before)


def test_the_copy_shares_all_weights_but_those_of_its_head(make_encoder):
    encoder = make_encoder(head=6)

    whitened = whiten_embeddings(encoder, TEXTS, 0.4)

    own = {name: parameter.data_ptr() for name, parameter in encoder.named_parameters()}
    others = {name: parameter.data_ptr() for name, parameter in whitened.named_parameters()}
    assert {name for name in own if own[name] != others[name]} == {"head.linear.weight", "head.linear.bias"}


def test_fewer_texts_than_dimensions_are_an_error(make_encoder):
    with pytest.raises(ExportError, match="at least 32 calibration texts, one for each dimension, not 31"):
        whiten_embeddings(make_encoder(), TEXTS[:31], 0.4)


def test_a_bundle_gives_the_whitened_embeddings_and_records_it(make_encoder, tmp_path):
    encoder = make_encoder(head=8)
    encoder.prompts = {"query": "find "}
    card = Card(teacher={"name": "large", "fingerprint": "f" * 64})

    report = export(
        encoder, tmp_path / "spread.onnx", precision="fp32", calibration=TEXTS, whitening_power=0.4, card=card
    )

    read_ways = [*TEXTS, *("find " + text for text in TEXTS)]
    expected = TorchEncoder(whiten_embeddings(encoder, read_ways, 0.4)).encode(TEXTS)
    np.testing.assert_allclose(Encoder.load(report.path).encode(TEXTS), expected, atol=1e-5)
    assert np.abs(expected - TorchEncoder(encoder).encode(TEXTS)).max() > 0.1
    assert report.manifest.teacher == {"name": "large", "fingerprint": "f" * 64, "whitening_power": 0.4}


def test_a_cross_encoder_has_no_embeddings_to_change(make_pair_encoder, tmp_path):
    with pytest.raises(ExportError, match="is for embeddings, not scores"):
        export(make_pair_encoder(), tmp_path / "x.onnx", precision="fp32", calibration=TEXTS, whitening_power=0.4)
    assert not (tmp_path / "x.onnx").exists()
