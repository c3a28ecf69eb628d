"""The run folder: one run each, metrics without gaps or repetitions."""

from __future__ import annotations

import json

import pytest

from embedkit.config import load_toml
from embedkit.errors import ConfigError, StorageError
from embedkit.training.run_folder import RunFolder

CONFIG = {"method": "sct", "seed": 1, "optim": {"lr": 5e-4, "steps": 3}, "corpus": [{"path": "a.txt"}]}
ENVIRONMENT = {"python": "3.11.7", "packages": {"torch": "2.13.0"}}


@pytest.fixture
def folder(tmp_path):
    return RunFolder(tmp_path / "runs" / "one")


def test_a_new_run_writes_configuration_and_environment(folder):
    folder.start(CONFIG, ENVIRONMENT, resume=False)
    assert load_toml(folder.config) == CONFIG
    assert json.loads(folder.environment.read_text()) == ENVIRONMENT


def test_a_resumed_run_keeps_the_environment_that_it_began_in(folder):
    folder.start(CONFIG, ENVIRONMENT, resume=False)
    folder.start(CONFIG, {"python": "3.14.0"}, resume=True)
    assert json.loads(folder.environment.read_text()) == ENVIRONMENT


def test_looking_writes_nothing(folder):
    folder.check(CONFIG, resume=False)
    folder.check(CONFIG, resume=True)
    assert not folder.path.exists()


def test_a_second_run_is_refused_unless_it_resumes(folder):
    folder.start(CONFIG, ENVIRONMENT, resume=False)
    with pytest.raises(ConfigError, match="already holds a run; add --resume"):
        folder.start(CONFIG, ENVIRONMENT, resume=False)
    folder.start(CONFIG, ENVIRONMENT, resume=True)


def test_resuming_where_nothing_is_starts(folder):
    folder.start(CONFIG, ENVIRONMENT, resume=True)
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
    folder.start(CONFIG, ENVIRONMENT, resume=False)
    with pytest.raises(ConfigError, match=f"with other settings: {named}$"):
        folder.start({**CONFIG, **changes}, ENVIRONMENT, resume=True)
    assert load_toml(folder.config) == CONFIG


class TestMetrics:
    def lines(self, folder):
        return [json.loads(line) for line in folder.metrics.read_text().splitlines()]

    def test_rewinding_drops_what_will_be_repeated(self, folder):
        folder.start(CONFIG, ENVIRONMENT, resume=False)
        for step in (10, 20, 20, 30):
            folder.log({"step": step, "loss": 1.0})
        folder.rewind(20)
        assert [line["step"] for line in self.lines(folder)] == [10, 20, 20]
        folder.rewind(0)
        assert self.lines(folder) == []

    def test_rewinding_drops_a_line_that_a_kill_tore(self, folder):
        folder.start(CONFIG, ENVIRONMENT, resume=False)
        folder.log({"step": 10})
        with folder.metrics.open("a") as file:
            file.write('{"step": 1')
        folder.rewind(50)
        assert self.lines(folder) == [{"step": 10}]

    def test_rewinding_without_metrics(self, folder):
        folder.rewind(5)
        assert not folder.metrics.exists()

    def test_a_full_disk_is_told(self, folder):
        folder.start(CONFIG, ENVIRONMENT, resume=False)
        folder.metrics.mkdir()
        with pytest.raises(StorageError, match=r"cannot write .*metrics\.jsonl"):
            folder.log({"step": 1})


def test_the_card_is_what_export_reads(folder):
    folder.start(CONFIG, ENVIRONMENT, resume=False)
    folder.finish({"name": "one"})
    assert json.loads(folder.card.read_text()) == {"name": "one"}
