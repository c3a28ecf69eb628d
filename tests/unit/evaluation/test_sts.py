from __future__ import annotations

import math

import numpy as np
import pytest

from embedkit.errors import DataError
from embedkit.evaluation.sts import ScoredPairs, StsSet, StsTask, evaluate_pairs, spearman
from embedkit.evaluation.tasks import EmbeddingPool


def pairs(name, rows):
    first, second, scores = zip(*rows, strict=True)
    return ScoredPairs(name, list(first), list(second), np.array(scores, dtype=np.float64))


LIKE = pairs("like", [("a b", "a b", 5.0), ("a b", "a c", 3.0), ("a b", "c d", 0.0)])
MIXED = pairs("mixed", [("x y", "x y", 1.0), ("x y", "x z", 4.0)])


def test_the_order_decides_and_not_the_values():
    assert spearman([1, 2, 3], [10, 1000, 1001]) == pytest.approx(1)
    assert spearman([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)


def test_tied_values_share_the_average_of_their_ranks():
    # ranks 1, 2.5, 2.5, 4 against 1, 2, 3, 4
    assert spearman([0, 5, 5, 9], [1, 2, 3, 4]) == pytest.approx(4.5 / math.sqrt(4.5 * 5))


@pytest.mark.parametrize("values", [[2, 2, 2], [1, math.nan, 3]])
def test_spearman_of_a_constant_or_of_nan_is_undefined(values):
    assert math.isnan(spearman(values, [1, 2, 3]))
    assert math.isnan(spearman([1, 2, 3], values))


def test_spearman_of_one_pair_is_undefined():
    assert math.isnan(spearman([1], [1]))


def test_each_distinct_text_is_encoded_once(words):
    assert evaluate_pairs(words, LIKE) == pytest.approx(1)
    assert sorted(words.seen) == ["a b", "a c", "c d"]


def test_a_constant_model_has_no_correlation(words):
    same = pairs("same", [("a", "a", 1.0), ("b", "b", 2.0)])
    assert math.isnan(evaluate_pairs(words, same))


def test_all_mean_and_wmean_differ(words):
    pool = EmbeddingPool(words, [*LIKE.first, *LIKE.second, *MIXED.first, *MIXED.second], label="")
    (found,) = StsTask("two", [StsSet("two", [LIKE, MIXED], {}, "here")]).results(pool)
    assert {name: part.value for name, part in found.parts.items()} == {
        "like": pytest.approx(1),
        "mixed": pytest.approx(-1),
    }
    assert found.measures["mean"] == pytest.approx(0)
    assert found.measures["wmean"] == pytest.approx((3 * 1 + 2 * -1) / 5)
    # cosines 1, .5, 0, 1, .5 have the ranks 4.5, 2.5, 1, 4.5, 2.5; scores 5, 3, 0, 1, 4 the ranks 5, 3, 1, 2, 4
    assert found.value == pytest.approx(spearman([4.5, 2.5, 1, 4.5, 2.5], [5, 3, 1, 2, 4]))
    assert found.notes == []


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ([("a", "a", 2.0), ("a", "b", 2.0)], "all scores of the set are equal"),
        ([("a", "a", 1.0), ("b", "b", 2.0)], "all similarities of the model are equal"),
        ([("a", "b", 1.0)], "there is only one pair"),
    ],
)
def test_an_undefined_correlation_says_why(words, rows, why):
    one = pairs("one", rows)
    pool = EmbeddingPool(words, [*one.first, *one.second], label="")
    (found,) = StsTask("one", [StsSet("one", [one], {}, "here")]).results(pool)
    assert (found.value, found.notes) == (None, [f"Spearman's correlation is undefined: {why}"])


def test_scored_pairs_must_have_equal_lengths():
    with pytest.raises(DataError, match="got 2, 1 and 1"):
        ScoredPairs("uneven", ["a", "b"], ["c"], np.array([1.0]))
    with pytest.raises(DataError, match="nothing: expected scored pairs, found none"):
        ScoredPairs("nothing", [], [], np.array([]))
    with pytest.raises(DataError, match="not a finite number"):
        ScoredPairs("nan", ["a"], ["b"], np.array([math.nan]))
