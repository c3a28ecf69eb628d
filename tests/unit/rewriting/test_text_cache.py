from __future__ import annotations

import pytest
from rewrite import TextCache

from embedkit.errors import CacheError, StorageError


@pytest.fixture
def cache(tmp_path):
    return TextCache(tmp_path, fingerprint="one")


def test_added_texts_are_found_in_any_order(cache):
    cache.add(["a", "b", "ü"], ["A", "", "Ü"])
    assert cache.find(["ü", "c", "b", "a", "a"]) == ["Ü", None, "", "A", "A"]
    assert len(cache) == 3


def test_it_lasts(cache, tmp_path):
    cache.add(["a"], ["A"])
    assert TextCache(tmp_path, fingerprint="one").find(["a"]) == ["A"]


def test_another_rewriter_finds_nothing(cache, tmp_path):
    cache.add(["a"], ["A"])
    assert TextCache(tmp_path, fingerprint="two").find(["a"]) == [None]


def test_the_newest_text_wins(cache):
    cache.add(["a"], ["A"])
    cache.add(["a"], ["Ä"])
    assert cache.find(["a"]) == ["Ä"]
    assert len(cache) == 1


def test_an_addition_is_whole_or_not_at_all(cache):
    with pytest.raises(CacheError):
        cache.add(["a", "b"], ["A", None])
    assert cache.find(["a", "b"]) == [None, None]


def test_no_texts_find_nothing(cache):
    cache.add([], [])
    assert cache.find([]) == []


def test_a_damaged_file_is_reported_with_its_name(cache, tmp_path):
    cache.path.write_bytes(b"not a database" * 100)
    with pytest.raises(CacheError, match=str(cache.path)):
        TextCache(tmp_path, fingerprint="one")


def test_an_existing_file_is_an_error(tmp_path):
    (tmp_path / "texts").write_text("a file")
    with pytest.raises(StorageError):
        TextCache(tmp_path, fingerprint="one")
