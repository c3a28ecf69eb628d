"""Augmentations: special tokens stay, lengths are as announced, no token is invented."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedkit.config import from_mapping
from embedkit.training.batches import AUGMENTATIONS, ViewsConfig, augment

CLS, SEP, LONGEST = 2, 3, 16

texts = st.lists(st.integers(10, 99), max_size=LONGEST - 2).map(lambda inner: [CLS, *inner, SEP])
rates = st.floats(0.001, 1.0)
seeds = st.integers(0, 2**32)


def view(ids, name, rate, seed):
    return augment(ids, name, rate=rate, max_length=LONGEST, generator=np.random.default_rng(seed))


def is_subsequence(short, long):
    rest = iter(long)
    return all(piece in rest for piece in short)


@given(texts, st.sampled_from([*AUGMENTATIONS]), rates, seeds)
def test_any_view_keeps_special_tokens_and_bounds(ids, name, rate, seed):
    before = list(ids)
    found = view(ids, name, rate, seed)
    assert ids == before
    assert (found[0], found[-1]) == (CLS, SEP)
    assert 2 <= len(found) <= LONGEST
    assert len(found) > 2 or len(ids) == 2
    assert set(found[1:-1]) <= set(ids[1:-1])
    assert found == view(ids, name, rate, seed)


@given(texts, rates, seeds)
def test_deletion_drops_a_share_and_keeps_the_order(ids, rate, seed):
    found, length = view(ids, "deletion", rate, seed), len(ids) - 2
    assert is_subsequence(found, ids)
    assert len(ids) - len(found) == (min(round(rate * length), length - 1) if length else 0)


@given(texts, rates, seeds)
def test_span_drops_one_run(ids, rate, seed):
    found, length = view(ids, "span", rate, seed), len(ids) - 2
    gone = len(ids) - len(found)
    assert gone == (min(round(rate * length), length - 1) if length else 0)
    assert any(found == ids[:start] + ids[start + gone :] for start in range(1, len(ids)))


@given(texts, rates, seeds)
def test_repetition_adds_copies_as_far_as_there_is_room(ids, rate, seed):
    found, length = view(ids, "repetition", rate, seed), len(ids) - 2
    assert is_subsequence(ids, found)
    assert len(found) - len(ids) == min(round(rate * length), LONGEST - len(ids))
    assert not Counter(ids) - Counter(found)


@given(texts, rates, seeds)
def test_shuffle_is_a_permutation(ids, rate, seed):
    assert Counter(view(ids, "shuffle", rate, seed)) == Counter(ids)


def test_shuffle_reaches_every_order():
    ids = [CLS, 10, 11, 12, SEP]
    assert len({tuple(view(ids, "shuffle", 0.2, seed)) for seed in range(200)}) == 6


@given(texts, rates, seeds)
def test_inversion_reverses_and_twice_gives_the_text_back(ids, rate, seed):
    found = view(ids, "inversion", rate, seed)
    assert found == [CLS, *reversed(ids[1:-1]), SEP]
    assert view(found, "inversion", rate, seed) == ids


@pytest.mark.parametrize(
    ("rate", "length", "touched"),
    [
        (0.2, 1, 0),
        (0.2, 2, 0),
        (0.2, 3, 1),
        (0.2, 7, 1),
        (0.2, 8, 2),
        (0.2, 10, 2),
        (0.5, 3, 2),
        (0.5, 5, 2),
        (0.5, 7, 4),
    ],
)
def test_shares_are_rounded_half_to_even(rate, length, touched):
    ids = [CLS, *range(10, 10 + length), SEP]
    assert len(ids) - len(view(ids, "deletion", rate, 0)) == touched
    assert len(view(ids, "repetition", rate, 0)) - len(ids) == touched


def test_repetition_copies_any_piece_to_any_place():
    inner = [10, 11, 12]
    found = {tuple(view([CLS, *inner, SEP], "repetition", 0.2, seed)[1:-1]) for seed in range(300)}
    assert found == {(*inner[:place], piece, *inner[place:]) for piece in inner for place in range(4)}


def test_deletion_drops_any_piece():
    ids = [CLS, 10, 11, 12, SEP]
    found = {tuple(view(ids, "deletion", 0.2, seed)) for seed in range(100)}
    assert found == {(CLS, 11, 12, SEP), (CLS, 10, 12, SEP), (CLS, 10, 11, SEP)}


@pytest.mark.parametrize("ids", [[], [7]])
def test_without_special_tokens_there_is_nothing_between(ids):
    assert view(ids, "deletion", 1.0, 0) == ids


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_every_augmentation_can_be_configured(name):
    config = from_mapping(ViewsConfig, {"first": name, "second": name, "positives": ["none", name]})
    assert config.positives == ("none", name)
