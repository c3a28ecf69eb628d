"""Shuffling within groups, against groups formed one rank at a time."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import softmax

from embedkit.training.methods.distillcse import rank_groups, shuffle_within_groups

SEEDS = st.integers(0, 2**32)
MASSES = st.sampled_from([0.05, 0.08, 0.1, 0.12, 0.15, 0.3, 0.7, 1.0])


def reference_group_count(mass):
    whole = math.floor(1 / mass)
    return whole + 1 if whole * mass < 1 else whole


def reference_groups(ranked, mass):
    """Return the first group whose upper limit the cumulative mass is strictly below; the last takes the rest."""
    count, reached, groups = reference_group_count(mass), 0.0, []
    for probability in softmax(ranked):
        reached += probability
        below = [group for group in range(count) if reached < (group + 1) * mass]
        groups.append(below[0] if below else count - 1)
    return groups


def members_by_mass(row, mass):
    """Return the columns of each group."""
    columns = sorted(range(len(row)), key=lambda column: -row[column])
    members = {}
    for column, group in zip(columns, reference_groups([row[c] for c in columns], mass), strict=True):
        members.setdefault(group, set()).add(column)
    return members


def scores(seed, rows, columns, scale=0.3):
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(rows, columns, generator=generator, dtype=torch.float64)


class TestScores:
    """DistillCSE shuffles cosines within groups of a mass."""

    @given(SEEDS, st.integers(1, 4), st.integers(1, 70), MASSES, st.sampled_from([0.06, 0.5, 3.0]))
    @settings(max_examples=60, deadline=None)
    def test_values_move_only_inside_the_papers_groups(self, seed, rows, columns, mass, scale):
        before = scores(seed, rows, columns, scale)
        torch.manual_seed(seed % 1000)
        after = shuffle_within_groups(before, mass)
        for old, new in zip(before.tolist(), after.tolist(), strict=True):
            assert sorted(old) == sorted(new)
            for members in members_by_mass(old, mass).values():
                assert {old[column] for column in members} == {new[column] for column in members}

    @given(SEEDS, st.integers(1, 70), MASSES, st.sampled_from([0.06, 0.5, 3.0]))
    @settings(max_examples=60, deadline=None)
    def test_groups_equal_the_papers(self, seed, columns, mass, scale):
        ranked = scores(seed, 3, columns, scale).sort(dim=1, descending=True)[0]
        found = rank_groups(ranked, mass)
        assert found.tolist() == [reference_groups(row, mass) for row in ranked.tolist()]

    @pytest.mark.parametrize(
        ("mass", "count"), [(0.1, 10), (0.08, 13), (0.12, 9), (0.15, 7), (0.05, 20), (1.0, 1), (1 / 49, 49)]
    )
    def test_the_last_group_takes_the_rest(self, mass, count):
        """With many small scores, no group is empty; U = 1, rounded up or down, falls into the last."""
        for dtype in (torch.float32, torch.float64):
            groups = rank_groups(torch.zeros(1, 5000, dtype=dtype), mass)
            assert groups.unique().tolist() == list(range(count))

    def test_a_heavy_top_leaves_the_first_group_empty_and_skips_more(self):
        ranked = torch.tensor([[3.0, 0.0, 0.0, -9.0]])  # masses 0.91, 0.045, 0.045 and almost 0
        assert rank_groups(ranked, 0.1).tolist() == [[9, 9, 9, 9]]
        assert rank_groups(ranked, 0.3).tolist() == [[3, 3, 3, 3]]
        assert rank_groups(torch.tensor([[1.0, 0.9, 0.0, 0.0]]), 0.25).tolist() == [[1, 2, 3, 3]]

    def test_rows_and_calls_are_shuffled_independently(self):
        torch.manual_seed(0)
        rows = torch.linspace(0.5, -0.5, 30).repeat(2, 1)
        grouping = 0.5
        first, second = shuffle_within_groups(rows, grouping), shuffle_within_groups(rows, grouping)
        assert not torch.equal(first[0], first[1])
        assert not torch.equal(first, second)

    def test_only_torchs_generator_decides(self):
        rows, grouping = scores(1, 4, 30), 0.3
        torch.manual_seed(5)
        first = shuffle_within_groups(rows, grouping)
        torch.manual_seed(5)
        assert torch.equal(shuffle_within_groups(rows, grouping), first)

    def test_equal_scores_are_neither_dropped_nor_duplicated(self):
        """Shuffling neither drops nor duplicates equal scores."""
        rows = torch.tensor([[0.2, 0.2, 0.2, 0.1, 0.1]])
        after = shuffle_within_groups(rows, 0.5)
        assert after.sort(dim=1)[0].tolist() == rows.sort(dim=1)[0].tolist()

    def test_no_gradient_flows_through(self):
        rows = scores(0, 3, 6).requires_grad_()
        assert not shuffle_within_groups(rows, 0.5).requires_grad
