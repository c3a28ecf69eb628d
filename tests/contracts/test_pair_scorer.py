"""What every PairScorer guarantees. A new implementation is one more fixture in SCORERS."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from embedkit.errors import InputError
from embedkit.evaluation.sts import ScoredPairs, evaluate_cross_encoder
from embedkit.protocols import PairScorer

PAIRS = [
    ("a dog in the garden", "music"),
    ("", ""),
    ("the cat is asleep. " * 30, "naïve Ünïcode 北京 🙂"),
    ("music", "the sea. " * 40),
    ("a dog in the garden", "music"),
]


@pytest.fixture
def bundle_scorer(toy_cross_bundle: Path) -> PairScorer:
    from embedkit.runtime.cross_encoder import CrossEncoder

    return CrossEncoder.load(toy_cross_bundle)


@pytest.fixture
def folder_scorer(toy_cross_folder: Path) -> PairScorer:
    from embedkit.runtime.cross_encoder import CrossEncoder

    return CrossEncoder.load(toy_cross_folder)


@pytest.fixture
def torch_scorer(toy_tokenizer_json: str) -> PairScorer:
    torch = pytest.importorskip("torch")
    from embedkit.modeling.cross_encoder import PairEncoder
    from embedkit.modeling.initialisation import Size, random
    from embedkit.modeling.torch_encoder import TorchCrossEncoder
    from embedkit.runtime.tokenization import Tokenizer

    encoder = random(Tokenizer(toy_tokenizer_json, 12), Size(layers=1, hidden=16, heads=2), max_length=12, seed=1)
    model = PairEncoder.from_encoder(encoder, max_length=12, seed=1).eval()
    with torch.no_grad():  # makes scores differ between pairs
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(10)
    return TorchCrossEncoder(model)


@pytest.fixture(params=["bundle_scorer", "folder_scorer", "torch_scorer"])
def scorer(request: pytest.FixtureRequest) -> PairScorer:
    chosen: PairScorer = request.getfixturevalue(request.param)
    return chosen


def test_it_is_a_pair_scorer_and_describes_itself(scorer: PairScorer) -> None:
    assert isinstance(scorer, PairScorer)
    assert scorer.name
    assert len(bytes.fromhex(scorer.fingerprint)) == 32
    assert scorer.max_length == 12


def test_scores_are_float32_between_zero_and_one(scorer: PairScorer) -> None:
    scores = scorer.predict(PAIRS)
    assert scores.dtype == np.float32
    assert scores.shape == (len(PAIRS),)
    assert ((scores > 0) & (scores < 1)).all()
    assert scorer.predict([]).shape == (0,)
    assert scorer.predict([]).dtype == np.float32


def test_scores_are_in_input_order(scorer: PairScorer) -> None:
    order = [3, 0, 2, 1, 4]
    found = scorer.predict([PAIRS[i] for i in order])
    np.testing.assert_allclose(found, scorer.predict(PAIRS)[order], rtol=0, atol=1e-5)


def test_a_score_does_not_depend_on_the_other_pairs_of_the_batch(scorer: PairScorer) -> None:
    alone = np.concatenate([scorer.predict([pair]) for pair in PAIRS])
    np.testing.assert_allclose(alone, scorer.predict(PAIRS), rtol=0, atol=1e-5)


def test_equal_pairs_have_equal_scores_and_others_do_not(scorer: PairScorer) -> None:
    scores = scorer.predict(PAIRS)
    assert abs(scores[0] - scores[4]) < 1e-6
    assert abs(scores[0] - scores[1]) > 1e-4


def test_truncated_tokens_do_not_change_the_score(scorer: PairScorer) -> None:
    start = "a dog " * 20
    scores = scorer.predict([("music", start + "one end"), ("music", start + "another way to end")])
    assert abs(scores[0] - scores[1]) < 1e-6


@pytest.mark.parametrize("item", [None, "text", ("a",), ("a", None), ("a", "b", "c")])
def test_the_error_for_an_item_that_is_no_pair_names_its_position(scorer: PairScorer, item: object) -> None:
    with pytest.raises(InputError, match=r"pairs\[1\]"):
        scorer.predict([("a", "b"), item])  # type: ignore[list-item]


def test_threads_can_share_it(scorer: PairScorer) -> None:
    expected = scorer.predict(PAIRS)
    with ThreadPoolExecutor(8) as pool:
        for scores in pool.map(lambda _: scorer.predict(PAIRS), range(20)):
            np.testing.assert_array_equal(scores, expected)


def test_it_is_evaluated_by_its_scores(scorer: PairScorer) -> None:
    pairs = PAIRS[:4]
    first, second = map(list, zip(*pairs, strict=True))
    scores = scorer.predict(pairs).astype(np.float64)
    assert evaluate_cross_encoder(scorer, ScoredPairs("own", first, second, scores)) == pytest.approx(1)
    assert evaluate_cross_encoder(scorer, ScoredPairs("own", first, second, -scores)) == pytest.approx(-1)
