from __future__ import annotations

import numpy as np
import pytest

from embedkit.errors import DataError
from embedkit.evaluation.reranking import (
    Query,
    RerankingSet,
    average_precisions,
    merged,
    stable,
    trec_eval,
    trec_eval_1000,
)
from embedkit.evaluation.tasks import EmbeddingPool


def query(relevant, *, ids=None, missing=0):
    names = ids or [f"d{i}" for i in range(len(relevant))]
    return Query("q", names, names, np.array(relevant, dtype=np.bool_), missing)


def scores(*values):
    return np.array(values, dtype=np.float32)


@pytest.mark.parametrize("rule", [stable, trec_eval, trec_eval_1000, merged])
def test_without_ties_the_rules_agree(rule):
    # ranking: relevant, not, relevant -> (1 + 2/3) / 2
    assert rule(scores(0.9, 0.1, 0.5), query([True, True, False])) == pytest.approx((1 + 2 / 3) / 2)


@pytest.mark.parametrize("rule", [stable, trec_eval, merged])
def test_all_positive_is_perfect(rule):
    assert rule(scores(0.1, 0.9), query([True, True])) == 1


def test_stable_keeps_the_order_of_ties():
    tied = scores(0.5, 0.5)
    assert stable(tied, query([True, False])) == 1
    assert stable(tied, query([False, True])) == 0.5


def test_trec_eval_breaks_ties_by_descending_id():
    tied = scores(0.5, 0.5)
    assert trec_eval(tied, query([True, False], ids=["a", "b"])) == 0.5
    assert trec_eval(tied, query([True, False], ids=["b", "a"])) == 1
    # as strings, so "d9" comes before "d10"
    assert trec_eval(tied, query([True, False], ids=["d9", "d10"])) == 1


def test_merged_counts_a_tie_as_one_step():
    assert merged(scores(0.5, 0.5), query([True, False])) == 0.5
    assert merged(scores(0.5, 0.5), query([False, True])) == 0.5


def test_only_trec_eval_counts_missing_relevant_documents():
    ranked = query([True, False], missing=1)
    assert trec_eval(scores(2, 1), ranked) == 0.5
    assert stable(scores(2, 1), ranked) == 1


def test_the_cutoff_ends_the_ranking_but_not_the_count():
    ranked = query([True, False, True])
    assert trec_eval(scores(3, 2, 1), ranked, cutoff=2) == 0.5
    many = query([False] * 1000 + [True], ids=[f"{i:04d}" for i in range(1001)])
    assert trec_eval_1000(np.arange(1001, 0, -1, dtype=np.float32), many) == 0
    assert trec_eval(np.arange(1001, 0, -1, dtype=np.float32), many) == pytest.approx(1 / 1001)


def test_no_candidate_left_is_zero():
    assert trec_eval(scores(), query([], missing=2)) == 0


def test_candidates_are_ranked_by_cosine_with_their_query(words):
    queries = [
        Query("red apple", ["a", "b"], ["green pear", "red apple pie"], np.array([False, True])),
        Query("blue sky", ["a", "b"], ["blue sky", "sky"], np.array([False, True])),
    ]
    two = RerankingSet("two", queries)
    pool = EmbeddingPool(words, two.texts(), label="two")
    np.testing.assert_allclose(average_precisions(pool, two.queries, stable), [1, 0.5])


def test_a_set_without_queries_says_what_was_left_out():
    with pytest.raises(DataError, match=r"empty: expected queries .* 3 without a positive"):
        RerankingSet("empty", [], {"without a positive": 3})
