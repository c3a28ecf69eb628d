"""The run folder: one run each, metrics without gaps or repetitions."""

from __future__ import annotations

import json
import os
from types import SimpleNamespace

import pytest

from embedkit.config import load_toml
from embedkit.errors import CheckpointError, ConfigError, StorageError
from embedkit.training.run_folder import RunFolder

CONFIG = {"method": "sct", "seed": 1, "optim": {"lr": 5e-4, "steps": 3}, "corpus": [{"path": "a.txt"}]}
INPUTS = {"the text a.txt": "1" * 64, "the vectors of teacher one": "2" * 64}
ENVIRONMENT = {"python": "3.11.7", "packages": {"torch": "2.13.0"}}


@pytest.fixture
def folder(tmp_path):
    return RunFolder(tmp_path / "runs" / "one")


@pytest.fixture
def trained(folder):
    """A folder whose run has completed steps."""
    folder.start(CONFIG, ENVIRONMENT, INPUTS, resume=False)
    folder.log({"step": 10})
    return folder


def test_a_new_run_writes_configuration_and_environment(folder):
    folder.start(CONFIG, ENVIRONMENT, INPUTS, resume=False)
    assert load_toml(folder.config) == CONFIG
    assert json.loads(folder.environment.read_text()) == ENVIRONMENT


def test_a_resumed_run_keeps_its_first_environment(trained):
    trained.start(CONFIG, {"python": "3.14.0"}, INPUTS, resume=True)
    assert json.loads(trained.environment.read_text()) == ENVIRONMENT


def test_reading_writes_nothing(folder):
    folder.check(CONFIG, resume=False)
    folder.check(CONFIG, resume=True)
    assert not folder.path.exists()


@pytest.mark.parametrize("name", ["file", "file/run"])
def test_a_folder_that_cannot_be_made_is_refused_at_once(tmp_path, name):
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="file is not a folder"):
        RunFolder(tmp_path / name).check(CONFIG, resume=False)


def test_a_read_only_folder_is_refused_at_once(folder, monkeypatch):
    monkeypatch.setattr(os, "access", lambda place, mode: False)  # root may write anywhere
    with pytest.raises(StorageError, match="is read-only"):
        folder.check(CONFIG, resume=True)


def test_a_second_run_is_refused_unless_it_resumes(trained):
    with pytest.raises(ConfigError, match="already holds a run; set resume"):
        trained.start(CONFIG, ENVIRONMENT, INPUTS, resume=False)
    trained.start(CONFIG, ENVIRONMENT, INPUTS, resume=True)


@pytest.mark.parametrize("resume", [False, True])
def test_a_folder_without_a_step_is_free_for_any_run(folder, resume):
    folder.start(CONFIG, ENVIRONMENT, INPUTS, resume=False)
    (folder.initial / "model").mkdir(parents=True)
    (folder.path / ".initial.5f0c.part").mkdir()  # left by a kill
    folder.space.write_bytes(b"of the other run")
    folder.start({**CONFIG, "seed": 2}, {"python": "3.14.0"}, INPUTS, resume=resume)
    assert load_toml(folder.config)["seed"] == 2
    assert json.loads(folder.environment.read_text()) == {"python": "3.14.0"}
    assert not folder.initial.exists()  # of the other run
    assert not folder.space.exists()


@pytest.mark.parametrize("made", ["checkpoints", "cycle-1", "self-supervised"])
def test_results_of_a_stage_are_kept(folder, made):
    folder.start(CONFIG, ENVIRONMENT, INPUTS, resume=False)
    (folder.path / made).mkdir()
    with pytest.raises(ConfigError, match="already holds a run"):
        folder.start(CONFIG, ENVIRONMENT, INPUTS, resume=False)


def test_only_one_process_trains_in_a_folder(folder):
    with folder.claimed():
        with pytest.raises(ConfigError, match="another process is writing to"), folder.claimed():
            pass
        folder.start(CONFIG, ENVIRONMENT, INPUTS, resume=False)
    with folder.claimed():
        pass


@pytest.mark.skipif(os.name == "nt", reason="folders with open files cannot be moved")
@pytest.mark.parametrize("names", [(), ("first",), ("round-1", "encoder")])
def test_a_run_and_its_stages_never_write_into_a_folder_that_took_its_name(tmp_path, names):
    folder, network = RunFolder(tmp_path / "run"), SimpleNamespace(save=lambda path: path.mkdir(parents=True))
    with folder.claimed():
        stage = folder.stage(*names)
        stage.log({"step": 1})
        folder.path.rename(tmp_path / "old")
        folder.path.mkdir()
        for write in (
            lambda: stage.log({"step": 2}),
            lambda: stage.finish({}),
            lambda: stage.start({}, {}, {}, resume=False),
            lambda: stage.save(network, stage.model),
        ):
            with pytest.raises(ConfigError, match="was moved or replaced"):
                write()
    assert list(folder.path.iterdir()) == []


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
def test_resuming_with_other_settings_names_them(trained, changes, named):
    with pytest.raises(ConfigError, match=f"with other settings: {named}$"):
        trained.start({**CONFIG, **changes}, ENVIRONMENT, INPUTS, resume=True)
    assert load_toml(trained.config) == CONFIG


def test_a_resumed_run_may_use_other_threads_and_checkpoint_at_other_times(trained):
    trained.start({**CONFIG, "threads": 2, "checkpoint_minutes": 1.0}, ENVIRONMENT, INPUTS, resume=True)
    assert load_toml(trained.config) == CONFIG


class TestMetrics:
    def lines(self, folder):
        return [json.loads(line) for line in folder.metrics.read_text().splitlines()]

    def test_rewinding_drops_records_to_be_repeated(self, folder):
        folder.start(CONFIG, ENVIRONMENT, INPUTS, resume=False)
        for step in (10, 20, 20, 30):
            folder.log({"step": step, "loss": 1.0})
        folder.rewind(20)
        assert [line["step"] for line in self.lines(folder)] == [10, 20, 20]
        folder.rewind(0)
        assert self.lines(folder) == []

    def test_rewinding_drops_a_line_torn_by_a_kill(self, folder):
        folder.start(CONFIG, ENVIRONMENT, INPUTS, resume=False)
        folder.log({"step": 10})
        with folder.metrics.open("a") as file:
            file.write('{"step": 1')
        folder.rewind(50)
        assert self.lines(folder) == [{"step": 10}]

    @pytest.mark.parametrize("line", [b"\0\0\0\n", b"\xff\n", b'{"loss": 1}\n', b"[]\n", b'{"step": null}\n'])
    def test_rewinding_reports_damaged_metrics(self, folder, line):
        folder.log({"step": 10})
        folder.metrics.write_bytes(folder.metrics.read_bytes() + line)
        with pytest.raises(CheckpointError, match=r"metrics\.jsonl is damaged; delete it"):
            folder.rewind(5)

    def test_rewinding_without_metrics(self, folder):
        folder.rewind(5)
        assert not folder.metrics.exists()

    def test_a_full_disk_is_reported(self, folder):
        folder.start(CONFIG, ENVIRONMENT, INPUTS, resume=False)
        folder.metrics.mkdir()
        with pytest.raises(StorageError, match=r"cannot write .*metrics\.jsonl"):
            folder.log({"step": 1})


def test_a_resumed_run_refuses_inputs_of_other_content(trained):
    trained.check_inputs(INPUTS)
    trained.check_inputs({"the text b.txt": "0" * 64})
    with pytest.raises(ConfigError, match=r"content of the text a\.txt has changed since it started: restore it"):
        trained.check_inputs({**INPUTS, "the text a.txt": "3" * 64})


def test_damaged_inputs_are_reported(trained):
    trained.inputs.write_text("[1")
    with pytest.raises(ConfigError, match=r"inputs\.json cannot be read as JSON"):
        trained.check_inputs(INPUTS)


def test_runs_of_early_versions_recorded_no_inputs(trained):
    trained.inputs.unlink()
    trained.check_inputs(INPUTS)
