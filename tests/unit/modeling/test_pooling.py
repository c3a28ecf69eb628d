"""Every mode of pooling against loops written from sentence-transformers' definitions, in torch and in numpy."""

import math

import numpy as np
import pytest
import torch

from embedkit.modeling.pooling import pool_states
from embedkit.runtime.folders import POOLINGS
from embedkit.runtime.sentence_transformers import pool
from embedkit.runtime.tokenization import TokenBatch

LENGTHS = (1, 3, 5)


def reference(rows, mode):
    n = len(rows)
    weighted = sum((place + 1) * row for place, row in enumerate(rows)) / sum(range(1, n + 1))
    return {
        "cls": rows[0],
        "lasttoken": rows[-1],
        "max": [max(column) for column in rows.T],
        "mean": sum(rows) / n,
        "mean_sqrt_len_tokens": sum(rows) / math.sqrt(n),
        "weightedmean": weighted,
    }[mode]


@pytest.mark.parametrize("pooling", [*POOLINGS, "mean+max", "lasttoken+cls+weightedmean"])
def test_pooling_follows_its_definition(pooling):
    states = np.random.default_rng(0).normal(size=(len(LENGTHS), max(LENGTHS), 4)).astype(np.float32) - 3
    mask = (np.arange(max(LENGTHS)) < np.array(LENGTHS)[:, None]).astype(np.int64)
    expected = [
        np.concatenate([reference(row[:length], mode) for mode in pooling.split("+")])
        for row, length in zip(states, LENGTHS, strict=True)
    ]

    in_torch = pool_states(torch.from_numpy(states), torch.from_numpy(mask), pooling).numpy()
    in_numpy = pool(states, TokenBatch(mask, mask), pooling)

    np.testing.assert_allclose(in_torch, expected, atol=1e-6)
    np.testing.assert_allclose(in_numpy, expected, atol=1e-6)
