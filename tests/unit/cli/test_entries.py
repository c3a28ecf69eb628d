"""Sources of a comparison: what is read from runs, bundles and model folders."""

from __future__ import annotations

import pytest

from embedkit.cli.report import is_run, read_entry
from embedkit.training.run_folder import RunFolder

CARD = {
    "name": "mine", "method": "sct", "base": "tiny", "teacher": {"name": "minilm", "fingerprint": "ab"},
    "corpus": [{"name": "wiki", "rows": 1234, "licence": "CC0"}], "dev": "dev.tsv",
    "metrics": {"dev_spearman": 0.8312, "steps": 100},
}  # fmt: skip


@pytest.fixture
def run(tmp_path):
    folder = RunFolder(tmp_path / "runs" / "mine")
    folder.start({"method": "sct", "data": "/somewhere", "optim": {"lr": 0.1}}, {}, {}, resume=False)
    return folder


def test_a_finished_run(run, tmp_path):
    run.finish(CARD)
    (run.path / "model").mkdir()
    (run.path / "model" / "model.safetensors").write_bytes(b"12345")
    entry = read_entry(str(run.path), page=tmp_path / "page.html", identify=False)
    assert is_run(str(run.path))
    assert (entry.label, entry.kind, entry.size_bytes) == ("mine fp32 (torch)", "run", 5)
    assert entry.recipe == {"method": "sct", "optim.lr": "0.1"}  # not the place of the run
    assert entry.development == pytest.approx(83.12)
    assert entry.facts["corpus"] == "wiki: 1,234 rows, CC0"
    assert (entry.facts["teacher"], entry.page) == ("minilm", "runs/mine/report.html")
