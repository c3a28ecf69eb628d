from __future__ import annotations

import pytest

from embedkit.errors import InputError
from embedkit.serving.retrieval import SearchOptions
from embedkit.serving.retrieval.options import SearchKeywords


def test_keywords_and_options_have_the_same_names():
    assert SearchKeywords.__annotations__.keys() - {"hybrid"} == SearchOptions.__dataclass_fields__.keys() - {"k"}


def test_hybrid_is_the_older_form_of_a_mode():
    assert SearchOptions.of(3, hybrid=True) == SearchOptions(k=3, mode="hybrid")
    assert SearchOptions.of(3, hybrid=False) == SearchOptions(k=3, mode="dense")
    for wrong in ({"hybrid": True, "mode": "dense"}, {"hybrid": "rrf"}, {"mode": "sparse"}):
        with pytest.raises(InputError, match=r"hybrid|mode must be one of hybrid, dense, lexical"):
            SearchOptions.of(3, **wrong)
