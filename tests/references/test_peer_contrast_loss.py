"""PCL's losses against nested loops, one similarity at a time."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import cosine, slope, softmax

from embedkit.training.methods.pcl import (
    Embedded,
    cooperation_loss,
    copy_contrast_loss,
    every_positive_contrast_loss,
)

TEMPERATURE = 0.3


def similarities(queries, keys, i):
    """Return s of anchor i with its own positives, and with the other anchors, divided by the temperature."""
    anchor = queries.anchors[i]
    own = [cosine(anchor, positive) / TEMPERATURE for positive in keys.positives[i]]
    others = [cosine(anchor, keys.anchors[j]) / TEMPERATURE for j in range(len(keys.anchors)) if j != i]
    return own, others


def distribution(queries, keys, i):
    own, others = similarities(queries, keys, i)
    return softmax([*own, *others])


def reference_cooperation(main, peer, *, per_entry):
    total, entries = 0.0, 0
    for target, learner in [((peer, peer), (main, main)), ((peer, main), (main, peer))]:
        for i in range(len(main.anchors)):
            p, q = distribution(*target, i), distribution(*learner, i)
            total += sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
            entries = len(p) * len(main.anchors)
    return total / (entries if per_entry else len(main.anchors))


def reference_every_positive(embedded):
    total = 0.0
    for i in range(len(embedded.anchors)):
        own, others = similarities(embedded, embedded, i)
        for value in own:
            below = math.exp(value) + sum(math.exp(other) for other in others)
            total += -math.log(math.exp(value) / below)
    return total / len(embedded.anchors)


def reference_copy(embedded):
    anchors, positives = embedded
    count = len(anchors)
    simcse = 0.0
    for i in range(count):
        weights = [math.exp(cosine(anchors[i], positives[j][0]) / TEMPERATURE) for j in range(count)]
        simcse += -math.log(weights[i] / sum(weights)) / count
    entropy, entries = 0.0, 0
    for i in range(count):
        for place, probability in enumerate(distribution(embedded, embedded, i)):
            positive = place < len(positives[i])
            sigmoid = 1 / (1 + math.exp(-probability))
            entropy += -math.log(sigmoid if positive else 1 - sigmoid)
            entries += 1
    return simcse + entropy / entries


def sample(seed=0, batch=3, positives=2, width=4):
    """Return the outputs of the main network and of the peer for a batch."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(
        Embedded(
            torch.randn(batch, width, generator=generator),
            torch.randn(batch, positives, width, generator=generator),
        )
        for _ in range(2)
    )


LOSSES = {
    "cooperation-sentence": (
        lambda main, peer: cooperation_loss(main, peer, temperature=TEMPERATURE, reduction="sentence"),
        lambda main, peer: reference_cooperation(main, peer, per_entry=False),
    ),
    "cooperation-entry": (
        lambda main, peer: cooperation_loss(main, peer, temperature=TEMPERATURE, reduction="entry"),
        lambda main, peer: reference_cooperation(main, peer, per_entry=True),
    ),
    "contrast-paper": (
        lambda main, _: every_positive_contrast_loss(main, temperature=TEMPERATURE),
        lambda main, _: reference_every_positive(main),
    ),
    "contrast-code": (
        lambda main, _: copy_contrast_loss(main, temperature=TEMPERATURE),
        lambda main, _: reference_copy(main),
    ),
}


@pytest.mark.parametrize("name", LOSSES)
@given(seed=st.integers(0, 2**32), batch=st.integers(2, 4), positives=st.integers(1, 4), width=st.integers(2, 5))
@settings(max_examples=25, deadline=None)
def test_equals_the_reference(name, seed, batch, positives, width):
    given_ = sample(seed, batch, positives, width)
    loss, reference = LOSSES[name]
    assert loss(*given_).item() == pytest.approx(reference(*given_), rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("name", LOSSES)
def test_gradient_equals_differences_of_the_reference(name):
    """For both networks: neither side is a constant."""
    loss, reference = LOSSES[name]
    given_ = [Embedded(*(rows.clone().requires_grad_() for rows in embedded)) for embedded in sample()]
    loss(*given_).backward()
    rows = [*given_[0], *given_[1]]

    def plain(*moved):
        return reference(Embedded(*moved[:2]), Embedded(*moved[2:]))

    for number, place in [(0, (0, 0)), (1, (1, 0, 2)), (1, (2, 1, 3)), (2, (1, 2)), (3, (0, 1, 1))]:
        gradient = 0.0 if rows[number].grad is None else rows[number].grad[place].item()
        assert gradient == pytest.approx(slope(plain, rows, number, place), abs=1e-4)


@pytest.mark.parametrize("name", LOSSES)
def test_stays_float32_under_autocast(name):
    half = [Embedded(*(rows.bfloat16() for rows in embedded)) for embedded in sample()]
    loss, reference = LOSSES[name]
    with torch.autocast("cpu", torch.bfloat16):
        found = loss(*half)
    assert found.dtype == torch.float32
    assert found.item() == pytest.approx(reference(*half), rel=1e-4, abs=1e-5)
