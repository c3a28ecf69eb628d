"""The kernels survive arbitrary arguments, and instruction sets agree. ``make fuzz`` searches for hours."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from embedkit.kernels import bert, unigram, wordpiece

pytestmark = pytest.mark.skipif(None in (bert, unigram, wordpiece), reason="no kernels")

ROUNDS = 60


@pytest.fixture(scope="module")
def kernels() -> ModuleType:
    path = Path(__file__).parents[1] / "kernels" / "exercise.py"
    spec = importlib.util.spec_from_file_location("exercise", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("first", range(0, 5 * ROUNDS, ROUNDS))
def test_arbitrary_arguments_are_rejected_or_accepted(kernels: ModuleType, first: int) -> None:
    outcomes = [
        kernels.exercise(kernels.random_input(seed), bert, wordpiece, unigram)
        for seed in range(first, first + ROUNDS)
    ]
    assert None in outcomes
    assert len(set(outcomes)) > 5


@pytest.mark.parametrize("data", [b"", b"\0", b"\n", b"\xff", b"\x07" * 50])
def test_inputs_of_one_byte_are_valid(kernels: ModuleType, data: bytes) -> None:
    kernels.exercise(data, bert, wordpiece, unigram)
