"""Ray's engine, on a cluster of two workers on this machine: the same bits as one process."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
from toys import write_parquet

from embedkit.errors import DataError, FingerprintError, WorkerError

pytest.importorskip("pyarrow")
ray = pytest.importorskip("ray")

import pyarrow as pa  # noqa: E402
from pyarrow import parquet  # noqa: E402
from ray import data as ray_data  # noqa: E402

from embedkit.serving.bulk import BulkEncoding, ray_engine  # noqa: E402

ROOT = Path(__file__).parents[3]

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray.*"),  # warnings of Ray itself
    pytest.mark.release,  # each starts a cluster; test_bulk.py covers all that engines share
]


@pytest.fixture(scope="module", autouse=True)
def cluster():
    """Two processors; Ray's own warnings are ignored."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ray.init(
            num_cpus=2,
            include_dashboard=False,
            logging_level="ERROR",
            runtime_env={"env_vars": {"PYTHONPATH": str(ROOT)}},
        )
    yield
    ray.shutdown()


@pytest.fixture
def pages(tmp_path: Path) -> Path:
    words = np.random.default_rng(0).choice(["dog", "sea", "music", "the", "garden"], size=(60, 5))
    rows = {"text": [" ".join(row) for row in words], "id": list(range(60))}
    write_parquet(tmp_path / "pages.parquet", rows, row_group_size=25)
    return tmp_path / "pages.parquet"


def digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def test_an_engine_finishes_what_another_began_with_the_same_bytes(pages: Path, tmp_path: Path) -> None:
    """With the bundled int8 model, whose rows do depend on their batch."""
    bars = ray_data.DataContext.get_current().enable_progress_bars
    encoding = BulkEncoding.prepare(pages, tmp_path / "out", model="tiny", rows_per_shard=13, threads=1)
    assert encoding.run() == 60
    whole = digests(tmp_path / "out")
    assert len(whole) == 6
    for shard in sorted((tmp_path / "out").glob("shard-*"))[1:]:
        shard.unlink()
    assert encoding.run(engine="ray", workers=2) == 47
    assert digests(tmp_path / "out") == whole
    assert ray.is_initialized()  # an existing cluster is left running
    assert ray_data.DataContext.get_current().enable_progress_bars == bars


def test_refusals_of_a_worker_are_embedkit_errors(
    toy_bundle: Path, write_toy_bundle, pages: Path, tmp_path: Path
) -> None:
    table = parquet.read_table(pages).set_column(0, "text", pa.array([*["a"] * 30, None, *["b"] * 29]))
    write_parquet(pages, table)
    encoding = BulkEncoding.prepare(pages, tmp_path / "out", model=toy_bundle, rows_per_shard=20)
    with pytest.raises(DataError, match=r"pages.parquet:31: 'text' is null"):
        encoding.run(engine="ray")
    assert not (tmp_path / "out" / "shard-000001.parquet").exists()
    other = write_toy_bundle(tmp_path / "other.onnx", name="other")
    encoding.job = dataclasses.replace(encoding.job, model=str(other))
    with pytest.raises(FingerprintError, match="is another model here"):
        encoding.run(engine="ray", workers=1)


def test_a_failure_of_ray_is_reported_as_such() -> None:
    with (
        pytest.raises(WorkerError, match=r"Ray could not finish the work: .*node was lost"),
        ray_engine._errors_converted(),
    ):
        raise ray.exceptions.RaySystemError("a node was lost")


def test_a_killed_run_resumes_to_the_same_bytes(pages: Path, tmp_path: Path) -> None:
    """The driver is killed with its own small cluster; both end, and no shard is incomplete."""
    BulkEncoding.prepare(pages, tmp_path / "whole", model="tiny", rows_per_shard=1, threads=1).run()
    command = [
        sys.executable,
        "-m",
        "embedkit",
        "encode",
        "-m",
        "tiny",
        str(pages),
        "-o",
        str(tmp_path / "out"),
    ]
    command += ["--rows-per-shard", "1", "--engine", "ray", "--processes", "1"]
    environment = {**os.environ, "RAY_ADDRESS": "local"}
    run = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 200
    while not (tmp_path / "out" / "shard-000002.parquet").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    run.kill()
    run.wait()
    assert 3 <= len(list((tmp_path / "out").glob("shard-*"))) < 60
    encoding = BulkEncoding.prepare(pages, tmp_path / "out", model="tiny", rows_per_shard=1, threads=1)
    assert 0 < encoding.cost().rows < 60
    encoding.run()
    assert digests(tmp_path / "out") == digests(tmp_path / "whole")
