"""Augmentations of token ids: what each does, for any text."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedkit.config import from_mapping
from embedkit.errors import ConfigError
from embedkit.training.views import AUGMENTATIONS, ViewsConfig, augment

ROOM = 32
# Few values, so that pieces repeat, as they do in text.
texts = st.lists(st.integers(5, 12), max_size=ROOM - 2).map(lambda inner: [2, *inner, 3])
rates = st.floats(0, 1, exclude_min=True)
seeds = st.integers(0, 2**32)
names = st.sampled_from(sorted(AUGMENTATIONS))


def change(ids, name, rate=0.2, seed=0):
    return augment(ids, name, rate=rate, max_length=ROOM, generator=np.random.default_rng(seed))


def is_part_in_order(part, whole):
    rest = iter(whole)
    return all(piece in rest for piece in part)


@given(texts, names, rates, seeds)
def test_ends_stay_and_the_length_keeps_its_bound(ids, name, rate, seed):
    before = list(ids)
    changed = change(ids, name, rate, seed)
    assert (changed[0], changed[-1]) == (ids[0], ids[-1])
    assert len(changed) <= ROOM
    assert (len(changed) > 2) == (len(ids) > 2)
    assert set(changed) <= set(ids)
    assert ids == before


@given(texts, names, rates, seeds)
def test_the_seed_decides(ids, name, rate, seed):
    assert change(ids, name, rate, seed) == change(ids, name, rate, seed)


@given(texts, rates, seeds)
def test_shuffle_is_a_permutation(ids, rate, seed):
    assert Counter(change(ids, "shuffle", rate, seed)) == Counter(ids)


@given(texts, rates, seeds)
def test_inversion_reverses_and_twice_gives_the_text_back(ids, rate, seed):
    changed = change(ids, "inversion", rate, seed)
    assert changed == [ids[0], *reversed(ids[1:-1]), ids[-1]]
    assert change(changed, "inversion", rate, seed) == ids


@given(texts, rates, seeds)
def test_deletion_drops_its_share_and_keeps_the_order(ids, rate, seed):
    changed, inner = change(ids, "deletion", rate, seed), len(ids) - 2
    assert len(ids) - len(changed) == max(0, min(round(rate * inner), inner - 1))
    assert is_part_in_order(changed, ids)


@given(texts, rates, seeds)
def test_span_drops_neighbours(ids, rate, seed):
    changed, inner = change(ids, "span", rate, seed), len(ids) - 2
    gone = max(0, min(round(rate * inner), inner - 1))
    assert len(ids) - len(changed) == gone
    places = range(1, len(ids) - gone)
    assert any(changed == ids[:start] + ids[start + gone :] for start in places)


@given(texts, rates, seeds)
def test_repetition_adds_its_share_as_far_as_there_is_room(ids, rate, seed):
    changed = change(ids, "repetition", rate, seed)
    assert len(changed) - len(ids) == min(round(rate * (len(ids) - 2)), ROOM - len(ids))
    assert is_part_in_order(ids, changed)


@given(texts, seeds)
def test_none_changes_nothing(ids, seed):
    assert change(ids, "none", seed=seed) == ids


@pytest.mark.parametrize(("inner", "touched"), [(1, 0), (2, 0), (3, 1), (7, 1), (8, 2), (10, 2), (30, 6)])
def test_a_fifth_is_rounded(inner, touched):
    ids = [2, *range(10, 10 + inner), 3]
    assert len(ids) - len(change(ids, "deletion")) == touched
    if inner < 30:
        assert len(change(ids, "repetition")) - len(ids) == touched


@pytest.mark.parametrize(("inner", "touched"), [(1, 0), (3, 2), (5, 2), (7, 4)])
def test_halves_are_rounded_to_the_even_number(inner, touched):
    ids = [2, *range(10, 10 + inner), 3]
    assert len(ids) - len(change(ids, "deletion", rate=0.5)) == touched


def test_a_full_text_gets_no_repetition():
    ids = [2, *range(10, 40), 3]
    assert len(ids) == ROOM
    assert change(ids, "repetition") == ids


def test_repetition_copies_any_piece_to_any_place():
    ids = [2, 10, 11, 12, 3]
    seen = {tuple(change(ids, "repetition", seed=seed)[1:-1]) for seed in range(300)}
    expected = {(*ids[1:-1][:place], piece, *ids[1:-1][place:]) for piece in (10, 11, 12) for place in range(4)}
    assert seen == expected


def test_deletion_drops_any_piece():
    ids = [2, 10, 11, 12, 3]
    assert {tuple(change(ids, "deletion", seed=seed)) for seed in range(100)} == {
        (2, 11, 12, 3),
        (2, 10, 12, 3),
        (2, 10, 11, 3),
    }


def test_shuffle_reaches_every_order():
    ids = [2, 10, 11, 12, 3]
    assert len({tuple(change(ids, "shuffle", seed=seed)) for seed in range(200)}) == 6


@pytest.mark.parametrize("name", sorted(AUGMENTATIONS))
def test_every_augmentation_can_be_configured(name):
    config = from_mapping(ViewsConfig, {"first": name, "second": name, "positives": ["none", name]})
    assert config.positives == ("none", name)


def test_an_unknown_augmentation_is_refused_with_its_place():
    with pytest.raises(ConfigError, match=r"positives\[1\] is one of none, shuffle"):
        from_mapping(ViewsConfig, {"positives": ["none", "shufle"]})
