"""Import time, as a ratio to the unavoidable import time."""

from __future__ import annotations

import subprocess
import sys

import pytest

resource = pytest.importorskip("resource")  # not on Windows

ROUNDS = 4


def processor_seconds(statement: str) -> float:
    """Return the processor time of a fresh interpreter; other work on the machine changes it little."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", statement], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.mark.parametrize(
    ("statement", "floor", "limit"),
    [
        ("import embedkit", "import typing", 1.3),
        ("from embedkit import Encoder", "import numpy, onnxruntime, tokenizers", 1.7),
        ("from embedkit import Collection", "import numpy, onnxruntime, tokenizers", 1.3),
    ],
)
def test_importing_costs_little_more_than_its_dependencies(statement, floor, limit):
    rounds = [(processor_seconds(statement), processor_seconds(floor)) for _ in range(ROUNDS)]
    cost, least = (min(seconds) for seconds in zip(*rounds, strict=True))
    assert cost < limit * least
