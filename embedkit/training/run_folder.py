"""The run folder: configuration, environment, metrics, checkpoints and the finished encoder.

A checkpoint is the complete state of a run in one safetensors file, written atomically.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import shutil
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import tomli_w
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from embedkit.atomic import atomic_file, make_folder, storage_errors
from embedkit.config import load_toml
from embedkit.errors import CheckpointError, ConfigError, DataError
from embedkit.modeling.pretrained import separate, writing_tensors
from embedkit.records import read_object
from embedkit.training.method import TrainingModule
from embedkit.training.optim import AdamW
from embedkit.write_lock import OpenFolder, write_lock

_FORMAT = "2"


@dataclasses.dataclass
class TrainState:
    """The progress of a run; tensors are stored separately.

    ``best_score`` was measured at ``best_step``, and ``epoch_best`` was the best when the current epoch began. The
    last ``stale_epochs`` epochs brought no better score; ``scores_differ`` once two development scores do.
    """

    step: int = 0
    best_score: float | None = None
    best_step: int | None = None
    scores_differ: bool = False
    stale_epochs: int = 0
    epoch_best: float | None = None
    seconds: float = 0.0
    finished: bool = False


def save_checkpoint(path: Path, method: TrainingModule, optimizer: AdamW, state: TrainState) -> None:
    """Write parameters, buffers, optimizer state by the parameters' names, and random state.

    Raises:
        StorageError: the file cannot be written; the previous checkpoint is kept.
    """
    tensors = {f"method/{name}": tensor for name, tensor in method.state_dict().items()}
    for name, parameter in method.named_parameters():
        for moment, tensor in optimizer.state.get(parameter, {}).items():
            tensors[f"optimizer/{moment}/{name}"] = tensor
    groups = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    tensors["random/cpu"] = torch.get_rng_state()
    if torch.cuda.is_available():
        tensors["random/cuda"] = torch.cuda.get_rng_state()
    tensors = separate({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
    metadata = {
        "format": _FORMAT,
        "network": json.dumps(_network(method)),
        "state": json.dumps(dataclasses.asdict(state)),
        "groups": json.dumps(groups),
    }
    metadata["crc32"] = str(_checksum(metadata, tensors))
    with atomic_file(path) as temporary, writing_tensors():
        save_file(tensors, temporary, metadata)


def load_checkpoint(path: Path, method: TrainingModule, optimizer: AdamW) -> TrainState:
    """Restore a run from a file written by :func:`save_checkpoint`.

    Raises:
        CheckpointError: the file is missing or damaged, or its network or optimizer is another one.
    """
    try:
        with safe_open(path, framework="pt") as file:
            metadata: dict[str, str] = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
        _check(metadata, tensors, _network(method))
        state = TrainState(**json.loads(metadata["state"]))
        method.load_state_dict(_section(tensors, "method/"))
        _restore_optimizer(method, optimizer, json.loads(metadata["groups"]), _section(tensors, "optimizer/"))
        torch.set_rng_state(tensors["random/cpu"])
        if torch.cuda.is_available() and "random/cuda" in tensors:
            torch.cuda.set_rng_state(tensors["random/cuda"])
    except FileNotFoundError:
        raise CheckpointError(f"there is no checkpoint {path}") from None
    except (OSError, SafetensorError, KeyError, IndexError, TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"{path} is damaged or was written with other settings: {error}") from error
    return state


def _network(method: TrainingModule) -> dict[str, Any]:
    """Return the encoder's pooling and its head's activation, which the shapes of tensors do not show."""
    encoder = getattr(method, "encoder", None)
    head = getattr(encoder, "head", None)
    return {"pooling": getattr(encoder, "pooling", None), "head": head and head.activation}


def _check(metadata: dict[str, str], tensors: dict[str, Tensor], network: dict[str, Any]) -> None:
    if metadata.pop("crc32") != str(_checksum(metadata, tensors)):
        raise ValueError("its checksum is wrong")
    if (saved := json.loads(metadata["network"])) != network:
        raise ValueError(f"the network was {saved} and is {network}")


def _checksum(metadata: dict[str, str], tensors: dict[str, Tensor]) -> int:
    """Return the CRC-32 of a checkpoint's contents; safetensors validates sizes only."""
    checksum = zlib.crc32(json.dumps(metadata, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        checksum = zlib.crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), checksum)
        checksum = zlib.crc32(tensor.flatten().view(torch.uint8).numpy().data, checksum)
    return checksum


def _section(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _restore_optimizer(
    method: nn.Module, optimizer: AdamW, groups: list[dict[str, Any]], tensors: dict[str, Tensor]
) -> None:
    """Restore the groups' settings and the state of each parameter, which must have the shape it had."""
    for group, saved in zip(optimizer.param_groups, groups, strict=True):
        group.update(saved)
    parameters = dict(method.named_parameters())
    for path, tensor in tensors.items():
        moment, _, name = path.partition("/")
        parameter = parameters[name]
        if tensor.shape != parameter.shape:
            raise ValueError(
                f"the optimizer's state of {name} has the shape {(*tensor.shape,)}, not {(*parameter.shape,)}"
            )
        optimizer.state[parameter][moment] = tensor.to(parameter.device)


class Savable(Protocol):
    """An object that saves itself atomically: an encoder, or a space of teachers."""

    def save(self, path: Path, /) -> object:
        """Write a file or a folder."""


_OWN_TO_A_MACHINE = {"checkpoint_minutes", "threads"}
"""Settings that a resumed run may change. Of these, only ``threads`` affects the result, by rounding."""


class RunFolder:
    """One training run on disk; a recipe has a folder per stage inside of that of the run, ``outer``.

    The folder is created when something is first written.
    """

    def __init__(self, path: str | Path, outer: RunFolder | None = None) -> None:
        self.path, self._outer = Path(path), outer
        self.config = self.path / "config.toml"
        self.metrics = self.path / "metrics.jsonl"
        self.card = self.path / "run.json"
        self.environment = self.path / "environment.json"
        self.inputs = self.path / "inputs.json"
        self.last = self.path / "checkpoints" / "last.safetensors"
        self.best = self.path / "checkpoints" / "best"
        self.initial = self.path / "initial"
        self.space = self.path / "space.npz"
        self.model = self.path / "model"
        self._locked: OpenFolder | None = None

    @property
    def name(self) -> str:
        """Name of the folder, also of the current one, ``.``."""
        return self.path.resolve().name

    def check(self, config: Mapping[str, Any], *, resume: bool) -> None:
        """Check that a run with this configuration may start or resume here; writes nothing.

        A run that ended before its first step left nothing worth keeping, so its folder may be reused by any run.

        Raises:
            ConfigError: the folder holds another run, or a run and ``resume`` is False.
            StorageError: there is a file of this name, or permission is missing.
        """
        with storage_errors(self.path):
            place = next(each for each in (self.path, *self.path.absolute().parents) if each.exists())
            if not place.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, f"{place} is not a folder")
            if not os.access(place, os.W_OK):
                raise PermissionError(errno.EACCES, f"{place} is read-only")
        if not self.is_begun:
            return
        if not resume:
            raise ConfigError(
                f"{self.path} already holds a run; set resume, or choose another folder", parameters=["resume"]
            )
        changed = sorted(_changes(load_toml(self.config), config) - _OWN_TO_A_MACHINE)
        if changed:
            raise ConfigError(f"{self.path} was started with other settings: {', '.join(changed)}")

    def check_inputs(self, inputs: Mapping[str, str]) -> None:
        """Check that inputs that were read when a run started have the same digests; early versions recorded none.

        Raises:
            ConfigError: an input has other content than when the run started.
        """
        if not (self.is_begun and self.inputs.exists()):
            return
        try:
            before = read_object(self.inputs)
        except DataError as error:
            raise ConfigError(f"{error}; start again in another folder") from error
        changed = [name for name, digest in inputs.items() if before.get(name, digest) != digest]
        if changed:
            raise ConfigError(
                f"{self.path} cannot be resumed, because the content of {' and of '.join(changed)} has changed "
                "since it started: restore it, or start again in another folder"
            )

    @contextlib.contextmanager
    def claimed(self) -> Iterator[None]:
        """Create the folder and keep other processes from training in it.

        Raises:
            ConfigError: another process is training here.
            StorageError: the folder cannot be created or opened.
        """
        with storage_errors(self.path):
            make_folder(self.path)
        with write_lock(self.path, refusal=ConfigError) as locked:
            self._locked = locked
            try:
                yield
            finally:
                self._locked = None

    def check_in_place(self) -> None:
        """Raise a ConfigError if another folder has taken the name of the run's, which is claimed."""
        if self._outer is not None:
            self._outer.check_in_place()
        elif self._locked is not None:
            self._locked.check()

    def stage(self, *names: str) -> RunFolder:
        """Return the folder of a stage of this run."""
        return RunFolder(self.path.joinpath(*names), self._outer or self)

    def save(self, network: Savable, path: Path) -> None:
        """Save an object to a path in the folder, unless another folder has taken its name."""
        self.check_in_place()
        network.save(path)

    def start(
        self,
        config: Mapping[str, Any],
        environment: Mapping[str, Any],
        inputs: Mapping[str, str],
        *,
        resume: bool,
    ) -> None:
        """Check the folder as :meth:`check` does; write configuration, environment and inputs of a new run."""
        self.check(config, resume=resume)
        if not self.is_begun:
            self.check_in_place()
            shutil.rmtree(self.initial, ignore_errors=True)  # left by a run that never started
            self.space.unlink(missing_ok=True)
            self.write(self.config, tomli_w.dumps(dict(config)))
            self.write(self.environment, json.dumps(environment, indent=1))
            self.write(self.inputs, json.dumps(inputs, indent=1))

    def log(self, record: Mapping[str, Any]) -> None:
        """Append a record to metrics.jsonl."""
        self.check_in_place()
        with storage_errors(self.metrics):
            make_folder(self.path)
            with self.metrics.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")

    def rewind(self, step: int) -> None:
        """Drop the metrics of steps after ``step``, which a resumed run will repeat.

        Raises:
            CheckpointError: the metrics are damaged.
        """
        if self.metrics.exists():
            try:
                lines = self.metrics.read_text(encoding="utf-8").splitlines(keepends=True)
                whole = [(int(json.loads(line)["step"]), line) for line in lines if line.endswith("\n")]
            except (ValueError, KeyError, TypeError) as error:
                raise CheckpointError(f"{self.metrics} is damaged; delete it to resume without curves") from error
            self.write(self.metrics, "".join(line for logged, line in whole if logged <= step))

    def finish(self, card: Mapping[str, Any]) -> None:
        """Write run.json, from which export builds the manifest."""
        self.write(self.card, json.dumps(card, indent=1))

    @property
    def is_begun(self) -> bool:
        """Whether the folder contains a run, and more of it than is written before the first step."""
        before = {self.config, self.environment, self.inputs, self.initial, self.space}
        return (
            self.config.exists()
            and not {path for path in self.path.iterdir() if not path.name.startswith(".")} <= before
        )

    def write(self, path: Path, text: str) -> None:
        """Write a text file in the folder, unless another folder has taken its name."""
        self.check_in_place()
        with atomic_file(path) as temporary:
            temporary.write_text(text, encoding="utf-8")


def _changes(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> set[str]:
    """Return the dotted names of settings that differ between two configurations."""
    changed = set()
    for key in {*old, *new}:
        before, after = old.get(key), new.get(key)
        if isinstance(before, dict) and isinstance(after, dict):
            changed |= _changes(before, after, f"{prefix}{key}.")
        elif before != after:
            changed.add(prefix + key)
    return changed
