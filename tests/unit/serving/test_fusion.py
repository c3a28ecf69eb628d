from __future__ import annotations

import pytest

from embedkit.errors import InputError
from embedkit.serving.retrieval import SearchOptions
from embedkit.serving.retrieval.options import SearchKeywords


def test_keywords_and_options_have_the_same_names():
    assert SearchKeywords.__annotations__.keys() == SearchOptions.__dataclass_fields__.keys() - {"k"}


@pytest.mark.parametrize("wrong", ["sparse", True])
def test_another_mode_is_refused(wrong):
    with pytest.raises(InputError, match=r"mode must be one of hybrid, dense, lexical"):
        SearchOptions(mode=wrong)
