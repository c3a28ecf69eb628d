"""Group-P on distributions over keys, against groups formed one rank at a time."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from embedkit.config import from_mapping
from embedkit.errors import ConfigError
from embedkit.training.losses import Keys, group_shuffle, shuffle_probabilities
from embedkit.training.methods.congen import congen_loss
from embedkit.training.methods.sct import SCTDistillationConfig
from embedkit.training.self_supervision import cross_view_loss

SEEDS = st.integers(0, 2**32)


def distributions(seed, rows, columns, sharpness=3.0):
    """Return probabilities, with a separate own column for each row."""
    generator = torch.Generator().manual_seed(seed)
    probabilities = (sharpness * torch.randn(rows, columns, generator=generator)).softmax(dim=1)
    return probabilities, torch.randint(columns, (rows,), generator=generator)


def reference_members(row, own, mass, ranks):
    """Return the columns of each group: walk down the ranks of the others and add up their shares."""
    columns = sorted((c for c in range(len(row)) if c != own), key=lambda c: -row[c])[:ranks]
    held, reached, members = sum(row[c] for c in columns), 0.0, {}
    for column in columns:
        reached += row[column] / held
        group = min(math.floor(reached / mass), math.ceil(1 / mass - 1e-9) - 1)
        members.setdefault(group, []).append(column)
    return members


class TestProperties:
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
            members = reference_members(before, column, mass, ranks)
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
