"""SCT's loss against nested loops written from the paper's equations, one similarity at a time."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional
from toys import dot, slope, softmax

from embedkit.training.losses import Keys, similarity_logits
from embedkit.training.self_supervision import cross_view_loss

TEMPERATURE, REFERENCE_TEMPERATURE = 0.4, 0.3


def similarity_distribution(query, keys, temperature):
    """Return SR(z, Q, temperature): the probability of each key, by its similarity to the query."""
    return softmax([dot(query, key) / temperature for key in keys])


def kl(target, online):
    return sum(t * math.log(t / c) for t, c in zip(target, online, strict=True))


def cross_entropy(target, online):
    return -sum(t * math.log(c) for t, c in zip(target, online, strict=True))


DIVERGENCES = {"kl": kl, "cross_entropy": cross_entropy}


def reference_loss(online, queues, references, *, objective="kl", identical=False, weight=0.5):
    """Return L of the paper; ``queues`` are D1 and D2, ``references`` r1 and r2, ``online`` z1 and z2."""
    keys = [[*queue.tolist(), *own.tolist()] for queue, own in zip(queues, references, strict=True)]
    total = 0.0
    for view in (0, 1):
        scored = view if identical else 1 - view
        for sentence in range(len(online[view])):
            c = similarity_distribution(online[view][sentence], keys[scored], TEMPERATURE)
            if objective == "contrastive":
                total += -math.log(c[len(queues[scored]) + sentence])
                continue
            t = similarity_distribution(references[scored][sentence], keys[scored], REFERENCE_TEMPERATURE)
            total += DIVERGENCES[objective](t, c)
    return weight * total / len(online[0])


def units(rows, width, generator):
    return functional.normalize(torch.randn(rows, width, generator=generator), dim=1)


def sample(seed=0, batch=3, size=5, width=4):
    """Return z1, z2; D1, D2; r1, r2."""
    generator = torch.Generator().manual_seed(seed)
    return tuple((units(rows, width, generator), units(rows, width, generator)) for rows in (batch, size, batch))


def loss_of(online, queues, references, **options):
    keys = (Keys(queues[0], references[0]), Keys(queues[1], references[1]))
    temperatures = {"temperature": TEMPERATURE, "reference_temperature": REFERENCE_TEMPERATURE}
    return cross_view_loss(online, keys, **{**temperatures, **options})


OBJECTIVES = ["kl", "cross_entropy", "contrastive"]


@pytest.mark.parametrize("identical", [False, True], ids=["cross", "identical"])
@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("size", [0, 1, 7], ids="K={}".format)
def test_equals_the_paper(objective, identical, size):
    given_ = sample(seed=size, size=size)
    expected = reference_loss(*given_, objective=objective, identical=identical)
    found = loss_of(*given_, objective=objective, identical_view=identical)
    assert found.item() == pytest.approx(expected, abs=1e-6)


def test_the_weight_scales_both_directions():
    given_ = sample()
    assert loss_of(*given_, weight=1.0).item() == pytest.approx(reference_loss(*given_, weight=1.0), abs=1e-6)


@given(st.integers(0, 2**32), st.integers(1, 4), st.integers(0, 5), st.integers(2, 5), st.sampled_from(OBJECTIVES))
@settings(max_examples=25, deadline=None)
def test_equals_the_paper_at_any_size(seed, batch, size, width, objective):
    given_ = sample(seed, batch, size, width)
    expected = reference_loss(*given_, objective=objective)
    assert loss_of(*given_, objective=objective).item() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_gradient_equals_differences_of_the_reference(objective):
    online, queues, references = sample()
    online = tuple(view.clone().requires_grad_() for view in online)
    loss_of(online, queues, references, objective=objective).backward()

    def loss(*moved):
        return reference_loss(moved, queues, references, objective=objective)

    for view in (0, 1):
        for place in [(0, 0), (1, 2), (2, 3)]:
            assert online[view].grad[place].item() == pytest.approx(slope(loss, online, view, place), abs=1e-5)


@pytest.mark.parametrize("identical", [False, True], ids=["cross", "identical"])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_no_gradient_reaches_queues_and_references(objective, identical):
    online, queues, references = (tuple(t.clone().requires_grad_() for t in pair) for pair in sample())
    loss_of(online, queues, references, objective=objective, identical_view=identical).backward()
    assert all(t.grad is None for t in (*queues, *references))
    assert all(z.grad.abs().sum() > 0 for z in online)


def test_a_view_used_twice_is_its_own_target():
    """One column, one teacher tensor, one queue: the target is computed only once and must still be correct."""
    online, queues, references = sample()
    given_ = (online, (queues[0], queues[0]), (references[0], references[0]))
    assert loss_of(*given_).item() == pytest.approx(reference_loss(*given_), abs=1e-6)


def test_logits_are_float32_at_the_papers_sharpest_temperature():
    generator = torch.Generator().manual_seed(0)
    vectors = units(4, 8, generator)
    keys = Keys(units(16, 8, generator), vectors)
    with torch.autocast("cpu", torch.bfloat16):
        logits = similarity_logits(vectors.bfloat16(), keys, 0.01)
        sharp = cross_view_loss((vectors, vectors), (keys, keys), temperature=0.01, reference_temperature=0.01)
    assert logits.dtype == torch.float32
    assert logits.shape == (4, 20)
    assert sharp.dtype == torch.float32
    assert sharp.item() == pytest.approx(0, abs=1e-5)


def reference_averaged_loss(online, references, *, size):
    """Several references: their distributions over the same sentences are averaged key by key, then learned."""
    total = 0.0
    for view in (0, 1):
        scored = 1 - view
        for sentence in range(len(online[view])):
            targets = []
            for queues, vectors in references:
                keys = [*queues[scored].tolist(), *vectors[scored].tolist()]
                targets.append(similarity_distribution(vectors[scored][sentence], keys, REFERENCE_TEMPERATURE))
            count = size + len(online[view])
            average = [sum(target[key] for target in targets) / len(targets) for key in range(count)]
            queues, vectors = references[0]
            first_keys = [*queues[scored].tolist(), *vectors[scored].tolist()]
            total += kl(average, similarity_distribution(online[view][sentence], first_keys, TEMPERATURE))
    return 0.5 * total / len(online[0])


def pairs_of_keys(queues, references):
    return Keys(queues[0], references[0]), Keys(queues[1], references[1])


class TestSeveralReferences:
    @given(st.integers(0, 2**32), st.integers(1, 4), st.integers(0, 5), st.integers(1, 3))
    @settings(max_examples=25, deadline=None)
    def test_targets_are_averaged_distributions_whatever_the_widths(self, seed, batch, size, others):
        online, queues, references = sample(seed, batch, size, 4)
        further = [sample(seed + 1 + number, batch, size, 3 + 2 * number)[1:] for number in range(others)]
        found = loss_of(online, queues, references, others=[pairs_of_keys(*one) for one in further])
        expected = reference_averaged_loss(online, [(queues, references), *further], size=size)
        assert found.item() == pytest.approx(expected, abs=1e-5)

    def test_no_gradient_reaches_any_of_them(self):
        online, queues, references = sample()
        online[0].requires_grad_()
        other = tuple(tuple(t.clone().requires_grad_() for t in pair) for pair in sample(1)[1:])
        loss_of(online, queues, references, others=[pairs_of_keys(*other)]).backward()
        assert all(t.grad is None for pair in other for t in pair)
        assert online[0].grad.abs().sum() > 0
