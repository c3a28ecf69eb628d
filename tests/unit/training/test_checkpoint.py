"""Checkpoints: everything is restored, or an error explains why not."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from embedkit.errors import CheckpointError, StorageError
from embedkit.training.losses import VectorQueue
from embedkit.training.optim import OptimConfig, build_optimizer
from embedkit.training.run_folder import TrainState, _checksum, load_checkpoint, save_checkpoint


class Parts:
    """Return a module with a parameter of each kind, and its optimizer."""

    def __init__(self, seed, width=3, size=4, algorithm="adamw"):
        torch.manual_seed(seed)
        self.module = nn.Sequential(nn.Linear(width, 2), VectorQueue(size, 2, seed=seed))
        self.optimizer = build_optimizer(self.module, OptimConfig(algorithm=algorithm))
        self.state = TrainState(step=seed, best_score=seed / 7, best_step=1, stale_epochs=2, seconds=1.5)

    def step(self):
        self.module[0](torch.randn(5, 3)).square().sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.module[1].enqueue(torch.randn(3, 2))

    def save(self, path):
        save_checkpoint(path, self.module, self.optimizer, self.state)

    def load(self, path):
        return load_checkpoint(path, self.module, self.optimizer)

    def everything(self):
        return [tensor.tolist() for tensor in self.module.state_dict().values()]


@pytest.fixture
def saved(tmp_path):
    return save_parts(tmp_path)


def save_parts(folder, algorithm="adamw"):
    parts = Parts(5, algorithm=algorithm)
    parts.step()
    parts.save(folder / "last.safetensors")
    return parts, folder / "last.safetensors"


@pytest.mark.parametrize("algorithm", ["adamw", "muon"])
def test_everything_is_restored_and_training_continues_the_same(tmp_path, algorithm):
    parts, path = save_parts(tmp_path, algorithm)
    other = Parts(6, algorithm=algorithm)
    other.step()
    state = other.load(path)
    assert state == parts.state
    resumed = torch.randn(3)
    parts.load(path)
    assert torch.equal(resumed, torch.randn(3))
    for part in (parts, other):
        torch.manual_seed(0)
        part.step()
        part.step()
    assert parts.everything() == other.everything()


def test_shared_weights_are_restored(tmp_path):
    parts, other = Parts(5), Parts(6)
    for part in (parts, other):
        part.module.append(part.module[0])
    parts.save(tmp_path / "last.safetensors")
    other.load(tmp_path / "last.safetensors")
    assert parts.everything() == other.everything()
    assert other.module[0] is other.module[2]


def test_loading_changes_nothing_on_disk(saved):
    parts, path = saved
    before = path.read_bytes()
    parts.load(path)
    parts.step()
    assert path.read_bytes() == before


def test_a_file_cut_anywhere_is_reported(saved):
    _, path = saved
    content = path.read_bytes()
    for cut in range(0, len(content), 211):
        path.write_bytes(content[:cut])
        with pytest.raises(CheckpointError, match="damaged or was written with other settings"):
            Parts(5).load(path)


def test_a_bit_flipped_anywhere_is_reported(saved):
    _, path = saved
    content = path.read_bytes()
    whole = load_file(path)
    for place in range(8, len(content), 53):
        path.write_bytes(content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :])
        try:
            Parts(5).load(path)
        except CheckpointError:
            continue
        # Padding of the header, and unused names of the format.
        found = load_file(path)
        assert found.keys() == whole.keys()
        assert all(torch.equal(found[name], whole[name]) for name in whole)


@pytest.mark.parametrize("other", [{"width": 4}, {"size": 5}], ids=str)
def test_other_shapes_are_other_settings(saved, other):
    with pytest.raises(CheckpointError):
        Parts(5, **other).load(saved[1])


def test_state_of_a_parameter_of_another_shape_is_refused_by_its_name(saved):
    """The optimizer's fused kernel reads a moment as far as its parameter reaches."""
    _, path = saved
    with safe_open(path, framework="pt") as file:
        metadata, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    tensors["optimizer/first/0.weight"] = torch.zeros(1, 1)
    del metadata["crc32"]
    metadata["crc32"] = str(_checksum(metadata, tensors))
    save_file(tensors, path, metadata)
    with pytest.raises(
        CheckpointError, match=r"optimizer's state of 0\.weight has the shape \(1, 1\), not \(2, 3\)"
    ):
        Parts(5).load(path)


@pytest.mark.parametrize("state", ["{}x", "[]", json.dumps({"steps": 1})])
def test_metadata_of_something_else(saved, state):
    _, path = saved
    save_file(load_file(path), path, {"state": state})
    with pytest.raises(CheckpointError):
        Parts(5).load(path)


def test_a_missing_file(tmp_path):
    with pytest.raises(CheckpointError, match="there is no checkpoint"):
        Parts(5).load(tmp_path / "gone")


FULL = SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device"), FULL])
def test_a_failed_save_leaves_the_previous_checkpoint(saved, monkeypatch, error):
    parts, path = saved
    before = path.read_bytes()

    def fail(_tensors, temporary, _metadata):
        temporary.write_bytes(b"half")
        raise error

    monkeypatch.setattr("embedkit.training.run_folder.save_file", fail)
    with pytest.raises(KeyboardInterrupt if isinstance(error, KeyboardInterrupt) else StorageError):
        parts.save(path)
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == [path.name]
