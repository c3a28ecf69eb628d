from __future__ import annotations

import numpy as np
import pytest

from embedkit.errors import InputError
from embedkit.serving.retrieval import SearchOptions
from embedkit.serving.retrieval.exact_index import Ranking
from embedkit.serving.retrieval.options import SearchKeywords
from embedkit.serving.retrieval.search import fuse


def ranking(**scores):
    rows = [int(name[1:]) for name in scores]
    return Ranking(np.array([*scores.values()], dtype=np.float32), np.array(rows, dtype=np.int64))


def fused(dense, lexical):
    scores, rows = fuse(dense, lexical)
    return {f"r{row}": pytest.approx(score) for row, score in zip(rows.tolist(), scores.tolist(), strict=True)}


def test_rankings_of_one_or_none():
    nothing = ranking()
    assert fused(nothing, nothing) == {}
    assert list(fused(nothing, ranking(r4=2.0))) == ["r4"]
    assert set(fused(ranking(r4=2.0, r1=2.0), nothing)) == {"r1", "r4"}


def test_keywords_and_options_have_the_same_names():
    assert SearchKeywords.__annotations__.keys() - {"hybrid"} == SearchOptions.__dataclass_fields__.keys() - {"k"}


def test_hybrid_is_the_older_form_of_a_mode():
    assert SearchOptions.of(3, hybrid=True) == SearchOptions(k=3, mode="hybrid")
    assert SearchOptions.of(3, hybrid=False) == SearchOptions(k=3, mode="dense")
    for wrong in ({"hybrid": True, "mode": "dense"}, {"hybrid": "rrf"}, {"mode": "sparse"}):
        with pytest.raises(InputError, match=r"hybrid|mode must be one of hybrid, dense, lexical"):
            SearchOptions.of(3, **wrong)
