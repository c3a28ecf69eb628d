"""The nested loss against loops over dimensions, rows and the rows beside them."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from embedkit.training.losses.nested import nested_similarity_loss


def cosine(a, b):
    product = sum(x * y for x, y in zip(a, b, strict=True))
    return product / math.sqrt(sum(x * x for x in a)) / math.sqrt(sum(y * y for y in b))


def distribution(rows, anchor, temperature):
    weights = [math.exp(cosine(rows[anchor], row) / temperature) for j, row in enumerate(rows) if j != anchor]
    return [weight / sum(weights) for weight in weights]


def reference_loss(rows, dimensions, temperature):
    total = 0.0
    for width in dimensions:
        cut = [row[:width] for row in rows]
        for anchor in range(len(rows)):
            p = distribution(rows, anchor, temperature)
            q = distribution(cut, anchor, temperature)
            total += sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
    return total / len(rows) / len(dimensions)


def sample(seed=0, rows=4, width=7):
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))


@given(st.integers(0, 2**32), st.integers(2, 5), st.lists(st.integers(1, 6), min_size=1, max_size=3, unique=True))
@settings(max_examples=25, deadline=None)
def test_equals_the_loops(seed, rows, dimensions):
    embeddings = sample(seed, rows)
    found = nested_similarity_loss(embeddings, dimensions, temperature=0.3)
    assert found.item() == pytest.approx(reference_loss(embeddings.tolist(), dimensions, 0.3), rel=1e-4, abs=1e-5)


def test_gradient_is_that_of_the_cut_side_alone():
    """Differences of the loops in which the full side stays where it is."""
    embeddings = sample().requires_grad_()
    nested_similarity_loss(embeddings, [3], temperature=0.5).backward()
    full = embeddings.detach().double()
    assert not embeddings.grad[:, 3:].any()
    for place in [(0, 0), (2, 1), (3, 2)]:
        values = []
        for step in (1e-4, -1e-4):
            moved = full.clone()
            moved[place] += step
            total = 0.0
            for anchor in range(4):
                p = distribution(full.tolist(), anchor, 0.5)
                q = distribution(moved[:, :3].tolist(), anchor, 0.5)
                total -= sum(a * math.log(b) for a, b in zip(p, q, strict=True))
            values.append(total / 4)
        assert embeddings.grad[place].item() == pytest.approx((values[0] - values[1]) / 2e-4, abs=1e-4)


def test_nothing_is_left_to_learn_where_the_first_dimensions_say_it_all():
    embeddings = torch.cat([sample(), torch.zeros(4, 3)], dim=1)
    assert nested_similarity_loss(embeddings, [7, 9], temperature=0.05).item() == pytest.approx(0, abs=1e-6)
    assert nested_similarity_loss(embeddings, [6], temperature=0.05).item() > 1e-3


def test_length_does_not_matter():
    embeddings = sample()
    lengths = torch.tensor([[0.1], [1.0], [5.0], [20.0]])
    plain, scaled = (
        nested_similarity_loss(rows, [2, 5], temperature=0.2) for rows in (embeddings, embeddings * lengths)
    )
    assert torch.allclose(plain, scaled, atol=1e-5)


def test_a_sentence_alone_has_nothing_to_learn():
    embeddings = sample(rows=1).requires_grad_()
    loss = nested_similarity_loss(embeddings, [2], temperature=0.05)
    loss.backward()
    assert loss.item() == 0
    assert not embeddings.grad.any()


def test_float32_under_autocast():
    embeddings = sample()
    with torch.autocast("cpu", torch.bfloat16):
        found = nested_similarity_loss(embeddings, [2, 5], temperature=0.05)
    assert found.dtype == torch.float32
    assert torch.equal(found, nested_similarity_loss(embeddings, [2, 5], temperature=0.05))
