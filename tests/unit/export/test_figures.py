"""Figures of gates as text."""

from __future__ import annotations

import pytest

from embedkit.export.card import describe_figures

COUNTS = {"layer_norms": 5, "gelus": 2, "pieces_of_decomposed": 0}


@pytest.mark.parametrize(
    ("figures", "expected"),
    [
        (
            {"largest_difference": 0.02, "largest_difference_allowed": 1e-05, "texts": 668},
            "largest difference 0.02 (at most 1e-05), texts 668",
        ),
        ({"largest_difference": 0.02, "largest_difference_allowed": None}, "largest difference 0.02"),
        ({"smallest_cosine": 0.9, "smallest_cosine_allowed": 0.95}, "smallest cosine 0.9 (at least 0.95)"),
        (
            {"pairs": "sts", "torch": 0.8, "file": 0.7, "retention": 0.875, "allowed": 0.99},
            "pairs sts, torch 0.8, file 0.7, retention 0.875 (at least 0.99)",
        ),
        ({"torch": -0.1, "retention": None, "allowed": 0.99}, "torch -0.1, retention undefined (at least 0.99)"),
        ({"graph_bytes": 7, "graph_bytes_allowed": 5}, "graph bytes 7 (at most 5)"),
        (
            {"tensors": 9, "largest_error_in_steps": {"int8": 0.6, "int4": None},
             "largest_error_allowed": {"int8": 0.51, "int4": 1.01}},
            "tensors 9, largest error in steps: int8 0.6 (at most 0.51), int4 undefined (at most 1.01)",
        ),
        ({"parity": {"texts": 3}, "agreement": {"spearman": 0.9, "allowed": 0.98}},
         "parity: texts 3, agreement: spearman 0.9 (at least 0.98)"),
        ({"expected": COUNTS, "written": COUNTS, "optimized": COUNTS}, "5 layer norms, 2 gelus"),
        (
            {"expected": COUNTS, "optimized": {**COUNTS, "layer_norms": 3, "pieces_of_decomposed": 4}},
            (
                "5 layer norms, 2 gelus, optimized: 3 layer norms instead of 5, "
                "optimized: 4 pieces of decomposed instead of 0"
            ),
        ),
    ],
)  # fmt: skip
def test_each_figure_is_shown_with_its_limit(figures, expected):
    assert describe_figures(figures) == expected
