"""The load generator of benchmarks/serve, on a toy server; by hand it runs longer and on its own processors."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("uvloop")

LOAD = Path(__file__).parents[4] / "benchmarks" / "serve" / "load.py"


@pytest.fixture
def load(tmp_path: Path) -> Any:
    """``load(url, clients=3)``: the output of load.py."""
    texts = tmp_path / "texts.json"
    texts.write_text(json.dumps(["bees dance", "a shop", "refunds take thirty days"] * 4))

    def run(url: str, **how: Any) -> dict[str, Any]:
        job = {"port": int(url.rpartition(":")[2]), "path": "/v1/embeddings", "model": "toy", "texts": str(texts)}
        text = json.dumps({**job, "per_request": 1, "seconds": 0.4, **how})
        done = subprocess.run([sys.executable, LOAD], input=text, check=True, capture_output=True, text=True)
        return json.loads(done.stdout)

    return run


@pytest.mark.parametrize("how", [{"clients": 3}, {"rate": 60, "seed": 1}, {"clients": 2, "per_request": 4}])
def test_every_request_is_answered_and_timed(load, serve, how):
    with serve() as url:
        found = load(url, **how)
    assert found["sent"] >= 2
    assert (found["refused"], found["failed"]) == (0, 0)
    assert 0 < found["p50_ms"] <= found["p95_ms"] <= found["p99_ms"]


def test_refusals_are_counted_apart(load, serve):
    with serve(concurrent_requests=1) as url:
        found = load(url, clients=16)
    assert found["refused"] > 0
    assert found["failed"] == 0
    assert found["refused_p99_ms"] is not None


def test_other_answers_are_failures(load, serve):
    with serve() as url:
        found = load(url, clients=2, model="another")
    assert found["failed"] == found["sent"] > 0
    assert found["p50_ms"] is None
