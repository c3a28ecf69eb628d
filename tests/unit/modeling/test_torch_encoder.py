import numpy as np
import pytest
import torch

from embedkit.errors import ConfigError
from embedkit.modeling.torch_encoder import TorchEncoder


def test_rows_are_unit_float32_in_the_order_of_the_texts(make_encoder, texts):
    model = make_encoder(head=5)
    encoder = TorchEncoder(model)

    rows = encoder.encode(texts)

    assert rows.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1.0, atol=1e-6)
    for row, text in zip(rows, texts, strict=True):
        (ids,) = model.tokenizer.tokenize([text]).ids
        with torch.inference_mode():
            raw = model(torch.tensor([ids]), torch.ones(1, len(ids), dtype=torch.int64))[0].numpy()
        np.testing.assert_allclose(row, raw / np.linalg.norm(raw), atol=1e-6)


@pytest.mark.parametrize("budget", [1, 20, 33])
def test_the_token_budget_changes_nothing(make_encoder, texts, budget, monkeypatch):
    encoder = TorchEncoder(make_encoder())
    rows = encoder.encode(texts)
    monkeypatch.setattr("embedkit.modeling.torch_encoder._TOKENS_PER_BATCH", budget)
    np.testing.assert_allclose(encoder.encode(texts), rows, atol=1e-6)


@pytest.mark.parametrize("training", [True, False])
def test_the_mode_of_the_model_is_unchanged(make_encoder, texts, training):
    model = make_encoder().train(training)
    encoder = TorchEncoder(model)

    first, second = encoder.encode(texts), encoder.encode(texts)

    np.testing.assert_array_equal(first, second)  # no dropout
    assert model.training is training
    assert model.backbone.training is training


def test_the_mode_is_restored_after_a_failure(make_encoder):
    model = make_encoder().train()

    with pytest.raises(IndexError):
        TorchEncoder(model).encode_ids([[10_000]])
    assert model.training


def test_bfloat16_is_close_and_has_its_own_fingerprint(make_encoder, texts):
    model = make_encoder()
    full, half = TorchEncoder(model), TorchEncoder(model, precision="bf16")

    cosines = (full.encode(texts) * half.encode(texts)).sum(axis=1)

    assert half.encode(texts).dtype == np.float32
    assert cosines.min() > 0.999
    assert np.abs(full.encode(texts) - half.encode(texts)).max() > 0
    assert half.fingerprint != full.fingerprint


def test_an_unknown_precision_is_refused(make_encoder):
    with pytest.raises(ConfigError, match="fp32, bf16"):
        TorchEncoder(make_encoder(), precision="int8")


@pytest.mark.parametrize("device", ["abacus", "cuda:9999"])
def test_a_missing_device_is_refused(make_encoder, device):
    with pytest.raises(ConfigError, match=device):
        TorchEncoder(make_encoder(), device=device)
