"""Contrastive losses against loops written from their papers, and the gradient of batches encoded in parts."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from toys import softmax

from embedkit.modeling.initialisation import Size, random
from embedkit.runtime.tokenization import Tokenizer
from embedkit.training import method
from embedkit.training.batches import chunk_view
from embedkit.training.methods.contrastive import cosent, info_nce_of_lists, kl_of_lists, margin_mse_of_lists

TEMPERATURE = 0.1


@pytest.fixture
def lists():
    """Cosines of three queries with five passages, and scores of which some are unknown."""
    generator = torch.Generator().manual_seed(3)
    cosines, scores = (torch.rand(3, 5, generator=generator, dtype=torch.float64) for _ in range(2))
    scores[0, 2] = scores[1, 0] = scores[1, 4] = math.nan
    return cosines.requires_grad_(), 10 * scores


def known(row):
    return [column for column, value in enumerate(row.tolist()) if not math.isnan(value)]


def test_info_nce_counts_a_passage_once_and_leaves_out_what_is_unknown(lists):
    cosines, _ = lists
    labels = torch.tensor([[1.0, 0, math.nan, 0, 0], [math.nan, 0, 0, 2, 1], [0, 0, 0, 0, 1]])
    expected = 0.0
    for found, wanted in zip(cosines.detach(), labels, strict=True):
        columns = known(wanted)
        shares = softmax([float(found[column]) / TEMPERATURE for column in columns])
        weights = [float(wanted[column]) for column in columns]
        expected -= sum(w / sum(weights) * math.log(p) for w, p in zip(weights, shares, strict=True)) / 3
    loss = info_nce_of_lists(cosines, labels, temperature=TEMPERATURE)
    assert loss.item() == pytest.approx(expected)
    loss.backward()
    assert cosines.grad[0, 2] == cosines.grad[1, 0] == 0


def test_kl_compares_the_distributions_over_the_passages_that_were_scored(lists):
    cosines, scores = lists
    expected = 0.0
    for found, wanted in zip(cosines.detach(), scores, strict=True):
        columns = known(wanted)
        target = softmax([float(wanted[column]) for column in columns])
        ours = softmax([float(found[column]) / TEMPERATURE for column in columns])
        expected += sum(t * math.log(t / p) for t, p in zip(target, ours, strict=True)) / 3
    loss = kl_of_lists(cosines, scores, temperature=TEMPERATURE)
    assert loss.item() == pytest.approx(expected)
    loss.backward()
    assert torch.isfinite(cosines.grad).all()


def test_margin_mse_compares_the_margins_below_the_best_passage(lists):
    cosines, scores = lists
    squares = []
    for found, wanted in zip(cosines.detach(), scores, strict=True):
        columns = known(wanted)
        best = max(columns, key=lambda column: float(wanted[column]))
        for column in columns:
            if column != best:
                ours = (found[best] - found[column]) / TEMPERATURE
                squares.append(float(ours - (wanted[best] - wanted[column])) ** 2)
    loss = margin_mse_of_lists(cosines, scores, temperature=TEMPERATURE)
    assert loss.item() == pytest.approx(np.mean(squares))
    loss.backward()
    assert torch.isfinite(cosines.grad).all()


def test_cosent_counts_every_pair_of_pairs_in_the_wrong_order():
    cosines = torch.tensor([0.9, 0.2, 0.5, 0.4], dtype=torch.float64)
    scores = torch.tensor([1.0, 3.0, 2.0, 2.0])
    wrong = sum(
        math.exp((float(cosines[j]) - float(cosines[i])) / TEMPERATURE)
        for i in range(4)
        for j in range(4)
        if scores[i] > scores[j]
    )
    assert cosent(cosines, scores, temperature=TEMPERATURE).item() == pytest.approx(math.log(1 + wrong))
    assert cosent(cosines, torch.ones(4), temperature=TEMPERATURE).item() == 0


def test_a_batch_encoded_in_parts_has_the_gradient_of_the_whole(toy_tokenizer_json, monkeypatch):
    encoder = random(Tokenizer(toy_tokenizer_json, 16), Size(1, 16, 2), max_length=16, seed=0).train()
    texts = ["the cat", "a good dog will sleep by the sea", "my sister wants to read", "an old king"] * 20
    view = chunk_view(encoder.tokenizer.tokenize(texts), encoder.tokenizer.pad_id)
    assert len(view.chunks) > 1

    def gradients():
        encoder.zero_grad()
        torch.manual_seed(0)  # of dropout
        rows = method.unit_embeddings(encoder, method.pooled(encoder, view))
        (rows @ rows.T).exp().sum().backward()
        return [parameter.grad.clone() for parameter in encoder.parameters() if parameter.grad is not None]

    whole = gradients()
    monkeypatch.setattr(method, "_MOST_TOKENS", 10)
    for expected, found in zip(whole, gradients(), strict=True):
        torch.testing.assert_close(found, expected)
