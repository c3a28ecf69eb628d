"""The run folder: one run each, metrics without gaps or repetitions."""

from __future__ import annotations

import json

import pytest

from embedkit.config import load_toml
from embedkit.errors import ConfigError, StorageError
from embedkit.training.run_folder import RunFolder

CONFIG = {"method": "sct", "seed": 1, "optim": {"lr": 5e-4, "steps": 3}, "corpus": [{"path": "a.txt"}]}


@pytest.fixture
def folder(tmp_path):
    return RunFolder(tmp_path / "runs" / "one")


def test_a_new_run_writes_configuration_and_environment(folder):
    folder.start(CONFIG, resume=False)
    assert load_toml(folder.config) == CONFIG
    environment = json.loads((folder.path / "environment.json").read_text())
    assert environment["packages"]["torch"]
    assert set(environment) == {"python", "platform", "threads", "cuda", "packages"}


def test_looking_writes_nothing(folder):
    folder.check(CONFIG, resume=False)
    folder.check(CONFIG, resume=True)
    assert not folder.path.exists()


def test_a_second_run_is_refused_unless_it_resumes(folder):
    folder.start(CONFIG, resume=False)
    with pytest.raises(ConfigError, match="already holds a run; add --resume"):
        folder.start(CONFIG, resume=False)
    folder.start(CONFIG, resume=True)


def test_resuming_where_nothing_is_starts(folder):
    folder.start(CONFIG, resume=True)
    assert load_toml(folder.config) == CONFIG


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"seed": 2}, "seed"),
        ({"optim": {"lr": 5e-4, "steps": 4}}, "optim.steps"),
        ({"optim": {"lr": 5e-4}}, "optim.steps"),
        ({"corpus": [{"path": "b.txt"}]}, "corpus"),
        ({"name": "x", "optim": {"lr": 1e-4, "steps": 3}}, "name, optim.lr"),
    ],
)
def test_resuming_with_other_settings_names_them(folder, changes, named):
    folder.start(CONFIG, resume=False)
    with pytest.raises(ConfigError, match=f"with other settings: {named}$"):
        folder.start({**CONFIG, **changes}, resume=True)
    assert load_toml(folder.config) == CONFIG


class TestMetrics:
    def lines(self, folder):
        return [json.loads(line) for line in folder.metrics.read_text().splitlines()]

    def test_rewinding_drops_what_will_be_repeated(self, folder):
        folder.start(CONFIG, resume=False)
        for step in (10, 20, 20, 30):
            folder.log({"step": step, "loss": 1.0})
        folder.rewind(20)
        assert [line["step"] for line in self.lines(folder)] == [10, 20, 20]
        folder.rewind(0)
        assert self.lines(folder) == []

    def test_rewinding_drops_a_line_that_a_kill_tore(self, folder):
        folder.start(CONFIG, resume=False)
        folder.log({"step": 10})
        with folder.metrics.open("a") as file:
            file.write('{"step": 1')
        folder.rewind(50)
        assert self.lines(folder) == [{"step": 10}]

    def test_rewinding_without_metrics(self, folder):
        folder.rewind(5)
        assert not folder.metrics.exists()

    def test_a_full_disk_is_told(self, folder):
        folder.start(CONFIG, resume=False)
        folder.metrics.mkdir()
        with pytest.raises(StorageError, match=r"cannot write .*metrics\.jsonl"):
            folder.log({"step": 1})


def test_the_card_is_what_export_reads(folder):
    folder.start(CONFIG, resume=False)
    folder.finish({"name": "one"})
    assert json.loads(folder.card.read_text()) == {"name": "one"}
