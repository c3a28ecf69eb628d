from __future__ import annotations

import numpy as np
import pytest

from embedkit.errors import InputError
from embedkit.serving.retrieval.exact_index import Ranking
from embedkit.serving.retrieval.search import Fusion, fusion_of


def ranking(**scores):
    rows = [int(name[1:]) for name in scores]
    return Ranking(np.array([*scores.values()], dtype=np.float32), np.array(rows, dtype=np.int64))


def fused(fusion, dense, lexical):
    scores, rows = fusion.fuse(dense, lexical)
    return {f"r{row}": pytest.approx(score) for row, score in zip(rows.tolist(), scores.tolist(), strict=True)}


def test_reciprocal_ranks_are_added():
    found = fused(Fusion(constant=10), ranking(r3=0.9, r1=0.8, r2=0.1), ranking(r2=7.0, r5=6.0))
    assert found == {
        "r2": 11 * (0.5 / 13 + 0.5 / 11),
        "r3": 11 * 0.5 / 11,
        "r1": 11 * 0.5 / 12,
        "r5": 11 * 0.5 / 12,
    }
    assert list(found) == ["r2", "r3", "r1", "r5"]


@pytest.mark.parametrize("method", ["rrf", "weighted"])
def test_the_first_of_both_rankings_scores_one(method):
    first, others = {"r1": 0.9}, {"r2": 0.2, "r3": 0.1}
    assert fused(Fusion(method=method), ranking(**first, **others), ranking(**first, r4=0.3))["r1"] == 1.0


def test_weighted_scores_are_scaled_to_a_common_range():
    found = fused(
        Fusion(method="weighted", dense_weight=0.75), ranking(r1=0.9, r2=0.5, r3=0.1), ranking(r3=8.0, r4=4.0)
    )
    assert found == {"r1": 0.75, "r2": 0.375, "r3": 0.25, "r4": 0.0}


def test_a_constant_may_be_of_any_size():
    found = fused(Fusion(constant=10**400), ranking(r1=0.9, r2=0.5), ranking(r3=3.0))
    assert found == {"r1": 0.5, "r2": 0.5, "r3": 0.5}


def test_a_weight_may_leave_one_out():
    dense, lexical = ranking(r1=0.9, r2=0.5), ranking(r2=3.0, r7=1.0)
    assert list(fused(Fusion(dense_weight=1.0), dense, lexical))[:2] == ["r1", "r2"]
    assert list(fused(Fusion(dense_weight=0.0), dense, lexical))[:2] == ["r2", "r7"]


@pytest.mark.parametrize("method", ["rrf", "weighted"])
def test_rankings_of_one_or_none(method):
    nothing = ranking()
    assert fused(Fusion(method=method), nothing, nothing) == {}
    assert list(fused(Fusion(method=method), nothing, ranking(r4=2.0))) == ["r4"]
    assert set(fused(Fusion(method=method), ranking(r4=2.0, r1=2.0), nothing)) == {"r1", "r4"}


def test_valid_values_of_hybrid():
    assert fusion_of(None) is fusion_of(False) is None
    assert fusion_of(True) == Fusion()
    assert fusion_of("weighted") == Fusion(method="weighted")
    assert fusion_of(Fusion(constant=3)).constant == 3


@pytest.mark.parametrize(
    "settings", [{"method": "sum"}, {"dense_weight": 1.1}, {"dense_weight": -1}, {"constant": 0}]
)
def test_impossible_settings_are_refused(settings):
    with pytest.raises(InputError, match="hybrid"):
        Fusion(**settings)
