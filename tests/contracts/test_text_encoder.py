"""What every TextEncoder guarantees. A new implementation is one more fixture."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from embedkit.errors import InputError
from embedkit.protocols import TextEncoder

TEXTS = ["a dog in the garden", "music", "", "the cat is asleep. " * 30, "naïve Ünïcode 北京 🙂", "music"]


@pytest.fixture
def bundle_encoder(toy_bundle: Path) -> TextEncoder:
    from embedkit.runtime.encoder import Encoder

    return Encoder.load(toy_bundle)


@pytest.fixture
def torch_encoder(toy_tokenizer_json: str) -> TextEncoder:
    pytest.importorskip("torch")
    from embedkit.modeling.initialisation import Size, random
    from embedkit.modeling.torch_encoder import TorchEncoder
    from embedkit.runtime.tokenization import Tokenizer

    model = random(Tokenizer(toy_tokenizer_json, 12), Size(layers=1, hidden=16, heads=2), max_length=12, seed=1)
    return TorchEncoder(model.eval())


@pytest.fixture(params=["bundle_encoder", "torch_encoder"])
def encoder(request: pytest.FixtureRequest) -> TextEncoder:
    chosen: TextEncoder = request.getfixturevalue(request.param)
    return chosen


def test_it_is_a_text_encoder_and_describes_itself(encoder: TextEncoder) -> None:
    assert isinstance(encoder, TextEncoder)
    assert encoder.name
    assert len(bytes.fromhex(encoder.fingerprint)) == 32
    assert encoder.dimension >= 1
    assert encoder.max_length >= 3


def test_rows_are_unit_and_float32(encoder: TextEncoder) -> None:
    rows = encoder.encode(TEXTS)
    assert rows.dtype == np.float32
    assert rows.shape == (len(TEXTS), encoder.dimension)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-5)


def test_no_texts_return_no_rows(encoder: TextEncoder) -> None:
    assert encoder.encode([]).shape == (0, encoder.dimension)
    assert encoder.encode([]).dtype == np.float32


def test_rows_are_in_input_order(encoder: TextEncoder) -> None:
    order = [3, 0, 5, 2, 1, 4]
    np.testing.assert_allclose(
        encoder.encode([TEXTS[i] for i in order]), encoder.encode(TEXTS)[order], rtol=0, atol=1e-5
    )


def test_an_embedding_does_not_depend_on_the_other_texts_of_the_batch(encoder: TextEncoder) -> None:
    alone = np.concatenate([encoder.encode([text]) for text in TEXTS])
    np.testing.assert_allclose(alone, encoder.encode(TEXTS), rtol=0, atol=1e-5)


def test_equal_texts_have_equal_rows_and_others_do_not(encoder: TextEncoder) -> None:
    rows = encoder.encode(TEXTS)
    np.testing.assert_allclose(rows[1], rows[5], rtol=0, atol=1e-6)
    assert rows[0] @ rows[1] < 0.999


def test_a_second_call_returns_the_same_bits(encoder: TextEncoder) -> None:
    np.testing.assert_array_equal(encoder.encode(TEXTS), encoder.encode(TEXTS))


def test_truncated_tokens_do_not_change_the_embedding(encoder: TextEncoder) -> None:
    start = "a dog " * encoder.max_length
    rows = encoder.encode([start + "one end", start + "another way to end"])
    np.testing.assert_allclose(rows[0], rows[1], rtol=0, atol=1e-6)


@pytest.mark.parametrize("item", [None, b"bytes", 1.5, ["list"], ("a", "pair")])
def test_the_error_for_an_item_that_is_no_text_names_its_position(encoder: TextEncoder, item: object) -> None:
    with pytest.raises(InputError, match=r"texts\[2\]"):
        encoder.encode(["a", "b", item])  # type: ignore[list-item]


def test_threads_can_share_it(encoder: TextEncoder) -> None:
    expected = encoder.encode(TEXTS)
    encode: Callable[[int], np.ndarray] = lambda _: encoder.encode(TEXTS)  # noqa: E731
    with ThreadPoolExecutor(8) as pool:
        for rows in pool.map(encode, range(40)):
            np.testing.assert_array_equal(rows, expected)
