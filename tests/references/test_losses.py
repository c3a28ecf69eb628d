"""Every loss against nested loops written from its paper. A new loss is a row of LOSSES."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional
from toys import cosine, dot, slope, softmax

from embedkit.training.losses import Keys, info_nce, own_cross_entropy, similarity_logits, squared_distance
from embedkit.training.method import Batch, PairTrainingModule, View
from embedkit.training.methods.bsl import bootstrap_loss
from embedkit.training.methods.congen import congen_loss
from embedkit.training.methods.distillcse import average_cosines, cosines_with_others, similarity_distillation_loss
from embedkit.training.methods.pcl import (
    Embedded,
    cooperation_loss,
    copy_contrast_loss,
    every_positive_contrast_loss,
)
from embedkit.training.methods.sct import cross_view_loss
from embedkit.training.recipes.labelled_pairs import listwise_loss
from embedkit.training.recipes.score_distillation import pair_loss
from embedkit.training.recipes.trans_encoder import CrossToEncoder

TEMPERATURE, TEACHER_TEMPERATURE = 0.4, 0.3


@dataclass(frozen=True)
class Loss:
    """A loss and its definition.

    Attributes:
        shapes: shapes of its tensors; B is the batch, K a queue, P positives or others, D the width.
        ours: the loss of these tensors.
        reference: the same of their values, by loops.
        learners: how many of the first tensors learn.
        constants: whether the others must not get a gradient; if not, callers never ask for one.
        unit: whether rows have length 1.
    """

    shapes: tuple[str, ...]
    ours: Callable[..., torch.Tensor]
    reference: Callable[..., float]
    learners: int
    constants: bool = True
    unit: bool = False

    def sample(self, seed: int = 0, **sizes: int) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(seed)
        known = {"B": 3, "K": 5, "P": 2, "D": 4, **sizes}
        # Teachers of another width than the first one's.
        known |= {"E": known["D"] + 2, "F": known["D"] + 5}
        drawn = [torch.randn(*(known[axis] for axis in axes), generator=generator) for axes in self.shapes]
        return [functional.normalize(rows, dim=-1) if self.unit else rows for rows in drawn]


# Self-supervision


def reference_info_nce(anchors, positives, temperature=TEMPERATURE):
    total = 0.0
    for i, anchor in enumerate(anchors):
        total += -math.log(softmax([cosine(anchor, positive) / temperature for positive in positives])[i])
    return total / len(anchors)


def reference_bsl(z1, z2, h1, h2, *, scale):
    """L of the paper, or the loss that the authors' code minimises."""
    total = 0.0
    for i in range(len(z1)):
        there, back = cosine(z1[i], h2[i]), cosine(z2[i], h1[i])
        total += -there / 2 - back / 2 if scale == "paper" else (2 - 2 * there) + (2 - 2 * back)
    return total / len(z1)


def similarities(query, keys, i):
    """PCL's s of anchor i with its own positives, and with the other anchors."""
    (anchors, _), (others, positives) = query, keys
    own = [cosine(anchors[i], positive) / TEMPERATURE for positive in positives[i]]
    return own, [cosine(anchors[i], others[j]) / TEMPERATURE for j in range(len(others)) if j != i]


def distribution(query, keys, i):
    own, others = similarities(query, keys, i)
    return softmax([*own, *others])


def reference_cooperation(anchors, positives, peer_anchors, peer_positives, *, reduction):
    main, peer = (anchors, positives), (peer_anchors, peer_positives)
    total, entries = 0.0, 0
    for target, learner in [((peer, peer), (main, main)), ((peer, main), (main, peer))]:
        for i in range(len(anchors)):
            p, q = distribution(*target, i), distribution(*learner, i)
            total += sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
            entries = len(p) * len(anchors)
    return total / (entries if reduction == "entry" else len(anchors))


def reference_every_positive(anchors, positives):
    total = 0.0
    for i in range(len(anchors)):
        own, others = similarities((anchors, positives), (anchors, positives), i)
        for value in own:
            total += -math.log(softmax([value, *others])[0])
    return total / len(anchors)


def reference_copy(anchors, positives):
    embedded = anchors, positives
    entropy, entries = 0.0, 0
    for i in range(len(anchors)):
        for place, probability in enumerate(distribution(embedded, embedded, i)):
            sigmoid = 1 / (1 + math.exp(-probability))
            entropy += -math.log(sigmoid if place < len(positives[i]) else 1 - sigmoid)
            entries += 1
    return reference_info_nce(anchors, [own[0] for own in positives]) + entropy / entries


def cooperation(reduction):
    def ours(anchors, positives, peer_anchors, peer_positives):
        main, peer = Embedded(anchors, positives), Embedded(peer_anchors, peer_positives)
        return cooperation_loss(main, peer, temperature=TEMPERATURE, reduction=reduction)

    return Loss(("BD", "BPD") * 2, ours, partial(reference_cooperation, reduction=reduction), learners=4)


def contrast(function, reference):
    return Loss(
        ("BD", "BPD"),
        lambda anchors, positives: function(Embedded(anchors, positives), temperature=TEMPERATURE),
        reference,
        learners=2,
    )


# Distributions over the keys of a queue and of the batch


def scored(query, keys, temperature):
    """SR(z, Q, temperature): the probability of each key, by its similarity to the query."""
    return softmax([dot(query, key) / temperature for key in keys])


def cross_entropy(target, online):
    return -sum(t * math.log(c) for t, c in zip(target, online, strict=True))


def reference_sct(z1, z2, d1, d2, r1, r2, weight=0.5):
    """L of the paper."""
    total = 0.0
    for online, queue, vectors in ((z1, d2, r2), (z2, d1, r1)):
        for sentence in range(len(online)):
            keys = [*queue, *vectors]
            t, c = (
                scored(vectors[sentence], keys, TEACHER_TEMPERATURE),
                scored(online[sentence], keys, TEMPERATURE),
            )
            total += cross_entropy(t, c) - cross_entropy(t, t)
    return weight * total / len(z1)


def sct(**options):
    def ours(z1, z2, d1, d2, r1, r2):
        keys = Keys(d1, r1), Keys(d2, r2)
        temperatures = {"temperature": TEMPERATURE, "reference_temperature": TEACHER_TEMPERATURE}
        return cross_view_loss((z1, z2), keys, **temperatures, **options)

    return Loss(
        ("BD", "BD", "KD", "KD", "BD", "BD"), ours, partial(reference_sct, **options), learners=2, unit=True
    )


def reference_congen(s1, s2, queue, vectors, *, control):
    """alpha * CE(p, softmax(s1 Q)) + (1 - alpha) * CE(p, softmax(s2 Q)), Q = [queue; teachers of the batch]."""
    keys = [*queue, *vectors]
    total = 0.0
    for i in range(len(s1)):
        target = scored(vectors[i], keys, TEACHER_TEMPERATURE)
        for weight, view in ((control, s1), (1 - control, s2)):
            total += weight * cross_entropy(target, scored(view[i], keys, TEMPERATURE))
    return total / len(s1)


def congen(control):
    def ours(s1, s2, *keys):
        temperatures = {"temperature": TEMPERATURE, "teacher_temperature": TEACHER_TEMPERATURE}
        return congen_loss((s1, s2), Keys(*keys), control=control, **temperatures)

    shapes = "BD", "BD", "KD", "BD"
    return Loss(shapes, ours, partial(reference_congen, control=control), learners=2, unit=True)


def reference_ckd(students, queue, teachers):
    """Keys are the batch's teacher vectors, then the queue; the target of row i is key i."""
    total = 0.0
    for i, student in enumerate(students):
        total += -math.log(scored(student, [*teachers, *queue], TEMPERATURE)[i])
    return total / len(students)


# Vectors and cosines of teachers


def reference_distance(students, teachers):
    total = 0.0
    for student, teacher in zip(students, teachers, strict=True):
        total += sum((float(a) - float(b)) ** 2 for a, b in zip(student, teacher, strict=True))
    return total / len(students)


def reference_distillcse(students, *teachers, weights):
    """l_distill over full matrices, skipping the diagonal."""
    total = 0.0
    for i, anchor in enumerate(students):
        others = [j for j in range(len(students)) if j != i]
        t = [sum(w * cosine(rows[i], rows[j]) for w, rows in zip(weights, teachers, strict=True)) for j in others]
        q = softmax([value / TEACHER_TEMPERATURE for value in t])
        p = softmax([cosine(anchor, students[j]) / TEMPERATURE for j in others])
        total += cross_entropy(q, p)
    return total / len(students)


def distillcse(*weights):
    def ours(students, *teachers):
        targets = average_cosines(teachers, weights)
        temperatures = {"temperature": TEMPERATURE, "teacher_temperature": TEACHER_TEMPERATURE}
        return similarity_distillation_loss(cosines_with_others(students), targets, **temperatures)

    shapes = "BD", *("B" + width for width in "DEF"[: len(weights)])
    return Loss(shapes, ours, partial(reference_distillcse, weights=weights), learners=1)


# Labels and scores of pairs, through the methods, whose networks are rows of numbers


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


def of_logits(loss, reference):
    """A cross-encoder's loss of logits and labels, ``(Q, G)``."""

    def ours(logits, labels):
        learner = PairTrainingModule(Rows(logits.flatten()), loss, group=logits.shape[1])
        return learner(Batch((view(0, logits.numel()),), scores=labels.flatten())).loss

    return Loss(("BP", "BP"), ours, reference, learners=1, constants=False)


def of_cosines(first, second, labels):
    method = CrossToEncoder(Rows(torch.cat([first, second])))
    count = len(first)
    return method(Batch((view(0, count), view(count, 2 * count)), scores=labels)).loss


def reference_of_cosines(first, second, labels):
    total = 0.0
    for u, v, y in zip(first, second, labels, strict=True):
        total += (cosine(u, v) - float(y)) ** 2
    return total / len(labels)


def reference_binary(logits, labels):
    total, count = 0.0, 0
    for x, y in itertools.chain(*map(zip, logits, labels)):
        probability = 1 / (1 + math.exp(-float(x)))
        total -= float(y) * math.log(probability) + (1 - float(y)) * math.log(1 - probability)
        count += 1
    return total / count


def reference_listwise(logits, labels):
    total = 0.0
    for scores, grades in zip(logits, labels, strict=True):
        shares = [abs(float(grade)) / sum(abs(float(other)) for other in grades) for grade in grades]
        total += cross_entropy(shares, softmax([float(score) for score in scores]))
    return total / len(logits)


def reference_pairs(logits, labels, *, name):
    squares, margins = [], []
    for own, wanted in zip(logits, labels, strict=True):
        for i, j in itertools.product(range(len(own)), repeat=2):
            squares.append(float(own[i] - wanted[i]) ** 2)  # each value as often as the others
            margins.append(float((own[i] - own[j]) - (wanted[i] - wanted[j])) ** 2)
    mse, margin_mse = sum(squares) / len(squares), sum(margins) / len(margins)
    return {"mse": mse, "margin-mse": margin_mse, "both": mse + margin_mse}[name]


LOSSES = {
    "info_nce": Loss(("BD", "BD"), partial(info_nce, temperature=TEMPERATURE), reference_info_nce, learners=2),
    **{
        f"bsl {scale}": Loss(
            ("BD",) * 4,
            lambda z1, z2, h1, h2, scale=scale: bootstrap_loss((z1, z2), (h1, h2), scale=scale),
            partial(reference_bsl, scale=scale),
            learners=2,
        )
        for scale in ("paper", "code")
    },
    "pcl cooperation by sentence": cooperation("sentence"),
    "pcl cooperation by entry": cooperation("entry"),
    "pcl contrast of the paper": contrast(every_positive_contrast_loss, reference_every_positive),
    "pcl contrast of the code": contrast(copy_contrast_loss, reference_copy),
    "sct": sct(),
    "sct of weight 1": sct(weight=1.0),
    **{f"congen {control}": congen(control) for control in (0.0, 0.3, 1.0)},
    "ckd": Loss(
        ("BD", "KD", "BD"),
        lambda students, *keys: own_cross_entropy(students, Keys(*keys), temperature=TEMPERATURE),
        reference_ckd,
        learners=1,
        unit=True,
    ),
    "squared distance": Loss(("BD", "BD"), squared_distance, reference_distance, learners=1, unit=True),
    "distillcse": distillcse(1.0),
    "distillcse of three teachers": distillcse(1 / 6, 1 / 3, 1 / 2),
    "trans-encoder, cross-encoder": of_logits(functional.binary_cross_entropy_with_logits, reference_binary),
    "trans-encoder, encoder": Loss(
        ("BD", "BD", "B"), of_cosines, reference_of_cosines, learners=2, constants=False
    ),
    "listwise": of_logits(lambda logits, labels: listwise_loss(logits, labels.abs()), reference_listwise),
    **{
        f"pairs {name}": of_logits(partial(pair_loss, name), partial(reference_pairs, name=name))
        for name in ("mse", "margin-mse", "both")
    },
}


@pytest.fixture(params=LOSSES)
def loss(request):
    return LOSSES[request.param]


@pytest.mark.parametrize("name", LOSSES)
@given(
    seed=st.integers(0, 2**32),
    batch=st.integers(2, 4),
    queue=st.integers(0, 5),
    positives=st.integers(1, 4),
    width=st.integers(2, 5),
)
@settings(max_examples=20, deadline=None)
def test_equals_the_paper(name, seed, batch, queue, positives, width):
    tensors = LOSSES[name].sample(seed, B=batch, K=queue, P=positives, D=width)
    expected = LOSSES[name].reference(*(rows.tolist() for rows in tensors))
    assert LOSSES[name].ours(*tensors).item() == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_the_gradient_equals_differences_of_the_reference_and_reaches_no_constant(loss):
    tensors = loss.sample()
    for number, rows in enumerate(tensors):
        rows.requires_grad_(loss.constants or number < loss.learners)
    loss.ours(*tensors).backward()

    assert all(rows.grad is None for rows in tensors[loss.learners :])
    for number, rows in enumerate(tensors[: loss.learners]):
        assert rows.grad.isfinite().all()
        for place in ((0,) * rows.ndim, (1,) * rows.ndim, (-1,) * rows.ndim):
            expected = slope(loss.reference, tensors, number, place)
            assert rows.grad[place].item() == pytest.approx(expected, abs=1e-4)


def test_it_is_float32_under_autocast(loss):
    tensors = loss.sample()
    half = [rows.bfloat16() for rows in tensors[: loss.learners]] + tensors[loss.learners :]
    with torch.autocast("cpu", torch.bfloat16):
        found = loss.ours(*half)
    assert found.dtype == torch.float32
    assert found.item() == pytest.approx(loss.reference(*(rows.tolist() for rows in half)), rel=1e-4, abs=1e-5)


def test_a_view_used_twice_is_its_own_target():
    """One column, one teacher tensor, one queue: the target is computed only once and must still be correct."""
    z1, z2, queue, _, vectors, _ = LOSSES["sct"].sample()
    tensors = z1, z2, queue, queue, vectors, vectors
    assert LOSSES["sct"].ours(*tensors).item() == pytest.approx(reference_sct(*tensors), abs=1e-6)


def test_logits_are_float32_at_the_papers_sharpest_temperature():
    (vectors, _, queue, *_) = LOSSES["sct"].sample(B=4, K=16, D=8)
    keys = Keys(queue, vectors)
    with torch.autocast("cpu", torch.bfloat16):
        logits = similarity_logits(vectors.bfloat16(), keys, 0.01)
        sharp = cross_view_loss((vectors, vectors), (keys, keys), temperature=0.01, reference_temperature=0.01)
    assert (logits.dtype, logits.shape) == (torch.float32, (4, 20))
    assert sharp.dtype == torch.float32
    assert sharp.item() == pytest.approx(0, abs=1e-5)


def test_a_sentence_alone_has_nothing_to_learn_from_others():
    students, teachers = LOSSES["distillcse"].sample(B=1)
    loss = LOSSES["distillcse"].ours(students.requires_grad_(), teachers)
    loss.backward()
    assert loss.item() == 0
    assert not students.grad.any()
