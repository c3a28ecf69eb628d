"""Losses of score distillation equal slow versions, written from the paper."""

import itertools

import pytest
import torch

from embedkit.training.recipes.score_distillation import pair_loss

LOGITS = [[1.5, -2.0, 0.3], [0.0, 4.0, -1.0]]
SCORES = [[8.0, -11.0, 1.0], [2.0, 3.0, -5.0]]


def measure(name, targets):
    return pair_loss(name, torch.tensor(LOGITS), torch.tensor(targets)).item()


def test_mse():
    squares = [
        (a - b) ** 2 for own, wanted in zip(LOGITS, SCORES, strict=True) for a, b in zip(own, wanted, strict=True)
    ]
    assert measure("mse", SCORES) == pytest.approx(sum(squares) / 6)


def test_margin_mse():
    squares = []
    for own, wanted in zip(LOGITS, SCORES, strict=True):
        for i, j in itertools.product(range(3), repeat=2):
            squares.append(((own[i] - own[j]) - (wanted[i] - wanted[j])) ** 2)
    assert measure("margin-mse", SCORES) == pytest.approx(sum(squares) / 18)
    assert measure("both", SCORES) == pytest.approx(measure("mse", SCORES) + measure("margin-mse", SCORES))
