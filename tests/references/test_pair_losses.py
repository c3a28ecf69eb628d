"""Losses of pairs of texts, Trans-Encoder's and score distillation's, against loops written from the papers."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional
from toys import cosine, slope

from embedkit.training.method import Batch, PairLearner, View
from embedkit.training.recipes.score_distillation import pair_loss
from embedkit.training.recipes.trans_encoder import CrossToEncoder


class Rows(torch.nn.Module):
    """A network without weights: the "embedding" or "logit" of a text is the row of its first token."""

    head = None

    def __init__(self, rows):
        super().__init__()
        self.rows = rows

    def forward(self, input_ids, attention_mask):
        return self.rows[input_ids[:, 0]]

    pooled = forward


def view(start, stop):
    ids = torch.arange(start, stop)[:, None]
    return View(((ids, torch.ones_like(ids)),), torch.arange(stop - start))


def cross_entropy(logits, labels):
    """The loss of a cross-encoder that returns these logits."""
    learner = PairLearner(Rows(logits), functional.binary_cross_entropy_with_logits)
    return learner(Batch((view(0, len(logits)),), scores=labels)).loss


def squared_error(first, second, labels):
    """The loss of an encoder that returns these embeddings."""
    count = len(first)
    method = CrossToEncoder(Rows(torch.cat([first, second])))
    return method(Batch((view(0, count), view(count, 2 * count)), scores=labels)).loss


def reference_cross_entropy(logits, labels):
    total = 0.0
    for x, y in zip(logits, labels, strict=True):
        probability = 1 / (1 + math.exp(-x))
        total -= y * math.log(probability) + (1 - y) * math.log(1 - probability)
    return total / len(logits)


def reference_squared_error(first, second, labels):
    total = 0.0
    for u, v, y in zip(first, second, labels, strict=True):
        total += (cosine(u, v) - y) ** 2
    return total / len(labels)


def sample(seed, batch, width=5):
    generator = torch.Generator().manual_seed(seed)
    first, second = (3 * torch.randn(batch, width, generator=generator) for _ in range(2))
    return 4 * torch.randn(batch, generator=generator), first, second, torch.rand(batch, generator=generator)


@given(st.integers(0, 2**32), st.integers(1, 6))
@settings(max_examples=30, deadline=None)
def test_both_equal_the_paper(seed, batch):
    logits, first, second, labels = sample(seed, batch)
    assert cross_entropy(logits, labels).item() == pytest.approx(
        reference_cross_entropy(logits.tolist(), labels.tolist()), abs=1e-5
    )
    assert squared_error(first, second, labels).item() == pytest.approx(
        reference_squared_error(first.tolist(), second.tolist(), labels.tolist()), abs=1e-5
    )


def test_gradients_equal_differences_of_the_reference():
    logits, first, second, labels = sample(0, 3)
    logits.requires_grad_()
    first.requires_grad_()
    cross_entropy(logits, labels).backward()
    squared_error(first, second, labels).backward()

    def cross_encoder(values):
        return reference_cross_entropy(values.tolist(), labels.tolist())

    def encoder(rows):
        return reference_squared_error(rows.tolist(), second.tolist(), labels.tolist())

    for row in range(3):
        assert logits.grad[row].item() == pytest.approx(slope(cross_encoder, [logits], 0, row), abs=1e-5)
        assert first.grad[row, 1].item() == pytest.approx(slope(encoder, [first], 0, (row, 1)), abs=1e-5)


def test_losses_are_float32_under_autocast():
    logits, first, second, labels = sample(2, 4)
    with torch.autocast("cpu", torch.bfloat16):
        for loss in (
            cross_entropy(logits.bfloat16(), labels),
            squared_error(first.bfloat16(), second.bfloat16(), labels),
        ):
            assert loss.dtype == torch.float32


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
