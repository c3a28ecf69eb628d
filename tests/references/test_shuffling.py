"""Shuffling within groups, against groups formed one rank at a time."""

from __future__ import annotations

import math
from collections import Counter
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import softmax

from embedkit.config import from_mapping
from embedkit.errors import ConfigError
from embedkit.training.losses import (
    Keys,
    group_of_length,
    group_of_mass,
    group_shuffle,
    group_window,
    shuffle_probabilities,
    shuffle_within_groups,
)
from embedkit.training.methods.congen import congen_loss
from embedkit.training.methods.sct import SCTDistillationConfig
from embedkit.training.self_supervision import cross_view_loss

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
    """DistillCSE shuffles cosines within groups of a mass, a length, or one window."""

    @given(SEEDS, st.integers(1, 4), st.integers(1, 70), MASSES, st.sampled_from([0.06, 0.5, 3.0]))
    @settings(max_examples=60, deadline=None)
    def test_values_move_only_inside_the_papers_groups(self, seed, rows, columns, mass, scale):
        before = scores(seed, rows, columns, scale)
        torch.manual_seed(seed % 1000)
        after = shuffle_within_groups(before, partial(group_of_mass, mass=mass))
        for old, new in zip(before.tolist(), after.tolist(), strict=True):
            assert sorted(old) == sorted(new)
            for members in members_by_mass(old, mass).values():
                assert {old[column] for column in members} == {new[column] for column in members}

    @given(SEEDS, st.integers(1, 70), MASSES, st.sampled_from([0.06, 0.5, 3.0]))
    @settings(max_examples=60, deadline=None)
    def test_groups_equal_the_papers(self, seed, columns, mass, scale):
        ranked = scores(seed, 3, columns, scale).sort(dim=1, descending=True)[0]
        found = group_of_mass(ranked, mass)
        assert found.tolist() == [reference_groups(row, mass) for row in ranked.tolist()]

    @pytest.mark.parametrize(
        ("mass", "count"), [(0.1, 10), (0.08, 13), (0.12, 9), (0.15, 7), (0.05, 20), (1.0, 1), (1 / 49, 49)]
    )
    def test_the_last_group_takes_the_rest(self, mass, count):
        """With many small scores, no group is empty; U = 1, rounded up or down, falls into the last."""
        for dtype in (torch.float32, torch.float64):
            groups = group_of_mass(torch.zeros(1, 5000, dtype=dtype), mass)
            assert groups.unique().tolist() == list(range(count))

    def test_a_heavy_top_leaves_the_first_group_empty_and_skips_more(self):
        ranked = torch.tensor([[3.0, 0.0, 0.0, -9.0]])  # masses 0.91, 0.045, 0.045 and almost 0
        assert group_of_mass(ranked, 0.1).tolist() == [[9, 9, 9, 9]]
        assert group_of_mass(ranked, 0.3).tolist() == [[3, 3, 3, 3]]
        assert group_of_mass(torch.tensor([[1.0, 0.9, 0.0, 0.0]]), 0.25).tolist() == [[1, 2, 3, 3]]

    def test_a_rank_at_a_limit_is_in_the_next_group(self):
        assert group_of_mass(torch.zeros(1, 4), 0.25).tolist() == [[1, 2, 3, 3]]

    def test_a_batch_of_64_is_shuffled_in_windows_of_about_six(self):
        """Return the sizes simulated with the paper's statistics of logits."""
        torch.manual_seed(0)
        ranked = (0.27 + 0.064 * torch.randn(2000, 63)).sort(dim=1, descending=True)[0]
        groups = group_of_mass(ranked, 0.1)
        sizes = [(groups == group).sum(dim=1).double().mean().item() for group in range(10)]
        assert sizes == pytest.approx([5, 6, 6, 6, 6, 7, 6, 7, 6, 8], abs=0.8)

    def test_a_tiny_mass_changes_nothing(self):
        before = scores(0, 5, 20)
        assert torch.equal(shuffle_within_groups(before, partial(group_of_mass, mass=1e-6)), before)

    def test_mass_one_shuffles_the_whole_row_uniformly(self):
        torch.manual_seed(0)
        rows = torch.tensor([0.3, 0.2, 0.1]).repeat(6000, 1)
        after = shuffle_within_groups(rows, partial(group_of_mass, mass=1.0))
        _, counts = after.unique(dim=0, return_counts=True)
        assert len(counts) == 6
        assert (counts - 1000).abs().max() < 150  # five standard deviations

    def test_rows_and_calls_are_shuffled_independently(self):
        torch.manual_seed(0)
        rows = torch.linspace(0.5, -0.5, 30).repeat(2, 1)
        grouping = partial(group_of_mass, mass=0.5)
        first, second = shuffle_within_groups(rows, grouping), shuffle_within_groups(rows, grouping)
        assert not torch.equal(first[0], first[1])
        assert not torch.equal(first, second)

    def test_only_torchs_generator_decides(self):
        rows, grouping = scores(1, 4, 30), partial(group_of_mass, mass=0.3)
        torch.manual_seed(5)
        first = shuffle_within_groups(rows, grouping)
        torch.manual_seed(5)
        assert torch.equal(shuffle_within_groups(rows, grouping), first)

    def test_equal_scores_are_neither_dropped_nor_duplicated(self):
        """Shuffling neither drops nor duplicates equal scores."""
        rows = torch.tensor([[0.2, 0.2, 0.2, 0.1, 0.1]])
        after = shuffle_within_groups(rows, partial(group_of_mass, mass=0.5))
        assert after.sort(dim=1)[0].tolist() == rows.sort(dim=1)[0].tolist()

    def test_no_gradient_flows_through(self):
        rows = scores(0, 3, 6).requires_grad_()
        assert not shuffle_within_groups(rows, partial(group_of_mass, mass=0.5)).requires_grad

    @given(SEEDS, st.integers(1, 20), st.integers(1, 8))
    @settings(max_examples=20, deadline=None)
    def test_groups_of_equal_length(self, seed, columns, length):
        found = group_of_length(scores(seed, 2, columns), length)
        assert found.tolist() == [[rank // length for rank in range(columns)]] * 2

    @given(SEEDS, st.integers(1, 20), st.integers(0, 8), st.integers(1, 30))
    @settings(max_examples=20, deadline=None)
    def test_a_window_leaves_all_other_ranks_unchanged(self, seed, columns, start, length):
        before = scores(seed, 3, columns)
        torch.manual_seed(0)
        after = shuffle_within_groups(before, partial(group_window, start=start, stop=start + length))
        for old, new in zip(before.tolist(), after.tolist(), strict=True):
            order = sorted(range(columns), key=lambda column: -old[column])
            assert sorted(old) == sorted(new)
            for rank, column in enumerate(order):
                assert start <= rank < start + length or new[column] == old[column]


def distributions(seed, rows, columns, sharpness=3.0):
    """Return probabilities, with a separate own column for each row."""
    generator = torch.Generator().manual_seed(seed)
    probabilities = (sharpness * torch.randn(rows, columns, generator=generator)).softmax(dim=1)
    return probabilities, torch.randint(columns, (rows,), generator=generator)


def members_of_others(row, own, mass, ranks):
    """Return the columns of each group: walk down the ranks of the others and add up their shares."""
    columns = sorted((c for c in range(len(row)) if c != own), key=lambda c: -row[c])[:ranks]
    held, reached, members = sum(row[c] for c in columns), 0.0, {}
    for column in columns:
        reached += row[column] / held
        group = min(math.floor(reached / mass), math.ceil(1 / mass - 1e-9) - 1)
        members.setdefault(group, []).append(column)
    return members


class TestDistributions:
    """Group-P on distributions over keys; a row's own key is left out."""

    @given(
        SEEDS, st.integers(1, 4), st.integers(2, 30), st.sampled_from([0.07, 0.13, 0.31, 1.0]), st.integers(1, 40)
    )
    @settings(max_examples=60, deadline=None)
    def test_values_move_only_within_their_group(self, seed, rows, columns, mass, ranks):
        probabilities, own = distributions(seed, rows, columns)
        found = shuffle_probabilities(probabilities, own, mass=mass, ranks=ranks)
        for before, after, column in zip(probabilities.tolist(), found.tolist(), own.tolist(), strict=True):
            assert Counter(before) == Counter(after)
            assert after[column] == before[column]
            members = members_of_others(before, column, mass, ranks)
            for group in members.values():
                assert Counter(after[c] for c in group) == Counter(before[c] for c in group)
            shuffled = {c for group in members.values() for c in group}
            assert all(after[c] == before[c] for c in range(columns) if c not in shuffled)

    def test_every_order_of_a_group_is_equally_likely(self):
        row = torch.tensor([[0.2, 0.5, 0.17, 0.13]])
        orders = Counter(
            tuple(shuffle_probabilities(row, torch.tensor([1]), mass=1.0, ranks=9)[0].tolist()) for _ in range(600)
        )
        assert len(orders) == 6
        assert min(orders.values()) > 60
        assert {order[1] for order in orders} == {0.5}

    def test_rows_are_shuffled_independently(self):
        probabilities = distributions(0, 1, 12)[0].expand(20, 12)
        found = shuffle_probabilities(probabilities, torch.zeros(20, dtype=torch.int64), mass=1.0, ranks=12)
        assert len({tuple(row) for row in found.tolist()}) > 10

    @pytest.mark.parametrize("columns", [1, 2, 3])
    def test_an_own_key_with_all_mass_changes_nothing(self, columns):
        certain = torch.zeros(2, columns)
        certain[:, 0] = 1
        found = shuffle_probabilities(certain, torch.zeros(2, dtype=torch.int64), mass=0.1, ranks=5)
        assert torch.equal(found, certain)

    def test_arguments_get_no_gradient_and_no_change(self):
        probabilities, own = distributions(1, 3, 9)
        given_ = probabilities.clone().requires_grad_()
        found = shuffle_probabilities(given_, own, mass=0.5, ranks=4)
        assert not found.requires_grad
        assert torch.equal(given_, probabilities)


class TestLosses:
    """Only the target is shuffled."""

    @staticmethod
    def sample(batch=4, size=9, width=5):
        generator = torch.Generator().manual_seed(0)
        shapes = (batch, batch, size, batch)
        rows = [torch.randn(count, width, generator=generator) for count in shapes]
        first, second, queue, teachers = (torch.nn.functional.normalize(one, dim=1) for one in rows)
        return (first, second), Keys(queue, teachers)

    def losses(self, shuffle):
        students, keys = self.sample()
        return (
            congen_loss(students, keys, temperature=0.4, teacher_temperature=0.3, shuffle=shuffle),
            *(
                cross_view_loss(
                    students,
                    (keys, keys),
                    temperature=0.4,
                    reference_temperature=0.3,
                    objective=objective,
                    shuffle=shuffle,
                )
                for objective in ("kl", "cross_entropy")
            ),
        )

    def test_the_target_is_the_shuffled_distribution(self):
        """Rotating the keys of the queue by one equals rotating the target of an unchanged student."""
        students, keys = self.sample()
        seen = []

        def turn(probabilities, own):
            seen.append(own.tolist())
            return torch.cat([probabilities[:, :9].roll(1, dims=1), probabilities[:, 9:]], dim=1)

        congen, kl, cross_entropy = self.losses(turn)
        scored = torch.cat([keys.queue, keys.batch])
        target = turn((keys.batch @ scored.T / 0.3).softmax(dim=1), torch.arange(0))
        each = [
            -(target * (student @ scored.T / 0.4).log_softmax(dim=1)).sum(dim=1).mean() for student in students
        ]
        assert congen.item() == pytest.approx(float(sum(each)) / 2, abs=1e-5)
        assert cross_entropy.item() == pytest.approx(float(sum(each)) / 2, abs=1e-5)
        entropy = -(target * target.log()).sum(dim=1).mean()
        assert kl.item() == pytest.approx(float(sum(each) / 2 - entropy), abs=1e-5)
        assert seen[0] == [9, 10, 11, 12]

    def test_groups_of_one_change_nothing(self):
        for shuffled, plain in zip(self.losses(group_shuffle(1e-6, 99)), self.losses(None), strict=True):
            assert torch.equal(shuffled, plain)

    def test_wide_groups_change_the_loss_each_time(self):
        draws = {tuple(loss.item() for loss in self.losses(group_shuffle(1.0, 99))) for _ in range(5)}
        assert len(draws) == 5

    def test_a_mass_of_zero_does_not_shuffle(self):
        assert group_shuffle(None, 5) is None

    def test_a_loss_without_probabilities_has_none_to_shuffle(self):
        with pytest.raises(ConfigError, match="no probabilities"):
            from_mapping(SCTDistillationConfig, {"objective": "contrastive", "group_mass": 0.1})
