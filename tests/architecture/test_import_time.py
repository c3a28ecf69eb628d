"""Import time, as a ratio to the unavoidable import time."""

from __future__ import annotations

import math
import os
import subprocess
import sys

import pytest

resource = pytest.importorskip("resource")  # not on Windows

LEAST_ROUNDS, MOST_ROUNDS = 3, 40  # other work on the machine slows down rounds, sometimes many in a row


def processor_seconds(statement, compiled):
    """Return the processor time of a fresh interpreter, which other work changes less than elapsed time.

    Its byte code is kept in the folder ``compiled``, as an installation keeps it. Otherwise, where Python may not
    write byte code, it would compile embedkit each time, but not the dependencies, which pip has compiled.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-c", statement], check=True, env=environment | {"PYTHONPYCACHEPREFIX": str(compiled)}
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.mark.timing
@pytest.mark.parametrize(
    ("statement", "floor", "limit"),
    [
        ("import embedkit", "import typing", 1.3),
        ("from embedkit import Encoder", "import numpy, onnxruntime, tokenizers", 1.7),
        ("from embedkit import Collection", "import numpy, onnxruntime, tokenizers", 1.7),
    ],
)
def test_importing_costs_little_more_than_its_dependencies(statement, floor, limit, tmp_path):
    cost = least = math.inf
    for number in range(1, MOST_ROUNDS + 1):
        cost = min(cost, processor_seconds(statement, tmp_path))
        least = min(least, processor_seconds(floor, tmp_path))
        if number >= LEAST_ROUNDS and cost < limit * least:
            break
    assert cost < limit * least
