"""`embedkit train` under torchrun: two processes, one run folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from embedkit.modeling.encoder import SentenceEncoder

TWO = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "embedkit", "--json", "train"]
RECIPE = """
method = "mse"
settings = { head = "linear" }
student = { start = "random", tokenizer = '%s', max_length = 12 }
teacher = { source = '%s' }
corpus = [{ path = "texts.txt" }]
dev = { pairs = "dev.tsv", every = 2 }
optim = { batch_size = 8, steps = 6, lr = 1e-3 }
"""


@pytest.mark.release  # three processes import torch; test_processes.py tests two processes together
def test_two_processes_leave_one_run(tmp_path, toy_bundle):
    texts = [f"the {who} {what} {count}" for count in range(8) for who in "ab" for what in ("sleeps", "reads")]
    (tmp_path / "texts.txt").write_text("\n".join(texts), encoding="utf-8")
    (tmp_path / "dev.tsv").write_text("the cat\ta cat\t5\ndog\tsea\t1\na cat\ta dog\t3\n", encoding="utf-8")
    (tmp_path / "recipe.toml").write_text(RECIPE % (toy_bundle, toy_bundle), encoding="utf-8")
    loopback = {"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}
    ended = subprocess.run(
        [sys.executable, *TWO, "recipe.toml", "-o", "run"],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1", **loopback},
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    result = json.loads(ended.stdout)  # only the first process prints it
    assert result["finished"]
    assert result["steps"] == 6
    assert ended.stderr.count("trained: ") == 1
    lines = (tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    steps = [(record["step"], "dev" in record) for record in map(json.loads, lines)]
    assert steps == [(2, True), (4, True), (6, False), (6, True)]
    encoder = SentenceEncoder.load(tmp_path / "run" / "model")
    assert (encoder.max_length, encoder.head.activation) == (12, "linear")
    assert json.loads((tmp_path / "run" / "run.json").read_text(encoding="utf-8"))["metrics"]["steps"] == 6
