"""DistillCSE's parts and its weights."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from embedkit.config import from_mapping
from embedkit.errors import ConfigError
from embedkit.training.losses import info_nce
from embedkit.training.method import Batch, pooled
from embedkit.training.methods.distillcse import (
    DistillCSE,
    DistillCSEConfig,
    average_cosines,
    cosines_with_others,
    similarity_distillation_loss,
)

GENERATOR = torch.Generator().manual_seed(0)
VECTORS = [functional.normalize(torch.randn(5, width, generator=GENERATOR), dim=1) for width in (6, 9)]


@pytest.fixture
def make(make_encoder):
    return lambda count=2, **settings: DistillCSE(
        make_encoder(), from_mapping(DistillCSEConfig, settings), seed=1, teacher_dimensions=[6, 9, 7][:count]
    )


@pytest.fixture
def batch(make_view):
    return Batch((make_view(),), tuple((vectors,) for vectors in VECTORS))


@pytest.mark.parametrize("weights", [(), (1.0, 3.0)])
def test_the_loss_is_that_of_head_outputs_and_averaged_cosines(make, batch, embeddings, weights):
    method = make(group_mass=1e-9, distillation=0.7, teacher_weights=weights)
    with torch.no_grad():
        heads = method.head(embeddings(method.encoder))
        contrast = info_nce(heads, heads, temperature=0.05)
        distillation = similarity_distillation_loss(
            cosines_with_others(heads),
            average_cosines(VECTORS, (0.25, 0.75) if weights else (0.5, 0.5)),
            temperature=0.02,
            teacher_temperature=0.01,
        )
        output = method.eval()(batch)
    assert torch.allclose(output.loss, contrast + 0.7 * distillation, rtol=1e-3)
    assert torch.allclose(output.metrics["contrastive"], contrast, rtol=1e-3)
    assert torch.allclose(output.metrics["distillation"], distillation, rtol=1e-3)


@pytest.mark.parametrize("mass", [0.95, 1.0])
def test_each_step_shuffles_differently(make, batch, mass):
    method = make(group_mass=mass).eval()
    torch.manual_seed(0)
    with torch.no_grad():
        losses = {float(method(batch).metrics["distillation"]) for _ in range(8)}
        plain = float(make(group_mass=1e-9).eval()(batch).metrics["distillation"])
    assert len(losses - {plain}) > 1


def test_distillation_is_of_the_first_pass_with_itself(make, batch):
    method = make(group_mass=1e-9).train()
    torch.manual_seed(0)
    with torch.no_grad():
        first = method.head(pooled(method.encoder, batch.views[0]))
        torch.manual_seed(0)
        output = method(batch)
    expected = similarity_distillation_loss(
        cosines_with_others(first),
        average_cosines(VECTORS, (0.5, 0.5)),
        temperature=0.02,
        teacher_temperature=0.01,
    )
    assert torch.allclose(output.metrics["distillation"], expected)


def test_only_the_first_view_of_each_teacher_counts(make, batch):
    method = make(group_mass=1e-9).eval()
    noisy = Batch(batch.views, tuple((vectors, torch.zeros(5, 2)) for vectors in VECTORS))
    assert torch.equal(method(batch).loss, method(noisy).loss)


class TestWeights:
    def test_weights_are_equal_by_default(self, make):
        assert make(2).weights == [0.5, 0.5]

    def test_they_are_brought_to_sum_1(self, make):
        assert make(3, teacher_weights=(0.33, 0.33, 1.34)).weights == pytest.approx([0.165, 0.165, 0.67])

    @pytest.mark.parametrize(("weights", "message"), [((0.0, 0.0), "not all 0"), ((2.0, -1.0), "non-negative")])
    def test_others_are_refused(self, weights, message):
        with pytest.raises(ConfigError, match=message):
            DistillCSEConfig(teacher_weights=weights)
