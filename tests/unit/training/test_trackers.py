"""Trackers: every record is logged once, on a resumed run too."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import pytest

from embedkit.errors import ConfigError, MissingExtraError
from embedkit.training.run_folder import RunFolder
from embedkit.training.trackers import find_trackers

LOSS = [{"step": step, "epoch": step / 100, "loss": 1 / step} for step in (10, 20, 30, 40)]
DEV = {"step": 20, "dev": 0.5, "dev_seconds": 0.1}


class FakeWandB:
    """Keeps what it is given, and records the arguments of init."""

    class Error(Exception):
        pass

    def __init__(self, refuse=None):
        self.inits, self.points, self.finished, self.refuse = [], [], 0, refuse

    def init(self, **options):
        if self.refuse:
            raise self.Error(self.refuse)
        self.inits.append(options)
        return SimpleNamespace(id=options.get("id", "abc123"), log=self.log, finish=self.finish)

    def log(self, figures, *, step):
        self.points.append((step, figures))

    def finish(self):
        self.finished += 1


@pytest.fixture
def wandb(monkeypatch):
    fake = FakeWandB()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return fake


@pytest.fixture
def go(tmp_path):
    """``go(name, records, step=0)``: one part of a run that resumes after ``step``."""

    def go(name, records, step=0):
        folder = RunFolder(tmp_path / "run")
        folder.trackers = find_trackers([name], folder.path, name="toy", config={"seed": 1})
        if step:
            folder.rewind(step)
        with folder.tracked(step):
            for record in records:
                folder.log(record)
        return folder

    return go


class TestWeightsAndBiases:
    def test_each_record_is_logged_as_it_is_written_to_the_file(self, go, wandb):
        folder = go("wandb", [*LOSS[:2], DEV])
        assert wandb.points == [
            (10, {"epoch": 0.1, "loss": 0.1}),
            (20, {"epoch": 0.2, "loss": 0.05}),
            (20, {"dev": 0.5, "dev_seconds": 0.1}),
        ]
        assert wandb.inits == [{"dir": str(folder.path), "name": "toy", "config": {"seed": 1}}]
        assert wandb.finished == 1
        assert [json.loads(line) for line in folder.metrics.read_text().splitlines()] == [*LOSS[:2], DEV]

    def test_a_resumed_run_continues_the_tracked_run_and_repeats_no_point(self, go, wandb):
        go("wandb", LOSS[:3])
        go("wandb", LOSS[1:], step=10)
        assert [step for step, _ in wandb.points] == [10, 20, 30, 40]
        assert (wandb.inits[1]["id"], wandb.inits[1]["resume"]) == ("abc123", "allow")

    def test_a_restarted_run_is_a_new_tracked_run(self, go, wandb):
        go("wandb", LOSS[:2])
        folder = go("wandb", [])
        folder.rewind(0)
        with folder.tracked(0):
            folder.log(LOSS[0])
        assert "id" not in wandb.inits[-1]
        assert [step for step, _ in wandb.points] == [10, 20, 10]

    def test_a_tracker_is_closed_after_an_error(self, tmp_path, wandb):
        folder = RunFolder(tmp_path / "run")
        folder.trackers = find_trackers(["wandb"], folder.path, name="toy", config={})
        with pytest.raises(ValueError, match="loss"), folder.tracked(0):
            raise ValueError("loss")
        assert wandb.finished == 1

    def test_its_errors_are_embedkit_errors(self, go, monkeypatch):
        monkeypatch.setitem(sys.modules, "wandb", FakeWandB(refuse="no API key"))
        with pytest.raises(ConfigError, match="wandb did not start: no API key; fix this"):
            go("wandb", LOSS)


class TestTensorBoard:
    @pytest.fixture(autouse=True)
    def installed(self):
        pytest.importorskip("tensorboard")

    def points(self, folder):
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        events = EventAccumulator(str(folder.path / "tensorboard"))
        events.Reload()
        return {
            tag: [(e.step, round(e.value, 6)) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]
        }

    def test_each_figure_is_a_scalar(self, go):
        assert self.points(go("tensorboard", [*LOSS[:2], DEV])) == {
            "epoch": [(10, 0.1), (20, 0.2)],
            "loss": [(10, 0.1), (20, 0.05)],
            "dev": [(20, 0.5)],
            "dev_seconds": [(20, 0.1)],
        }

    def test_a_resumed_run_repeats_no_point(self, go):
        go("tensorboard", LOSS[:3])
        folder = go("tensorboard", LOSS[1:], step=10)
        assert [step for step, _ in self.points(folder)["loss"]] == [10, 20, 30, 40]


@pytest.mark.parametrize(("name", "package"), [("wandb", "wandb"), ("tensorboard", "torch.utils.tensorboard")])
def test_a_package_that_is_missing_is_named(tmp_path, monkeypatch, name, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=rf'pip install "embedkit-onnx\[{name}\]"'):
        find_trackers([name], tmp_path, name="toy", config={})


@pytest.mark.usefixtures("wandb")
def test_a_tracker_named_twice_is_one(tmp_path):
    assert len(find_trackers(["wandb", "wandb"], tmp_path, name="toy", config={})) == 1
    assert find_trackers([], tmp_path, name="toy", config={}) == ()
