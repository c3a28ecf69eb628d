"""Checkpoints: the complete state of a run in one safetensors file, written atomically."""

from __future__ import annotations

import dataclasses
import json
import zlib
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from embedkit.atomic import atomic_file
from embedkit.errors import CheckpointError
from embedkit.modeling.shared_layers import separate, writing_tensors
from embedkit.training.optim import AdamW

_FORMAT = "1"


@dataclasses.dataclass
class TrainState:
    """The progress of a run; tensors are stored separately.

    Attributes:
        step: number of optimizer steps so far.
        best_score: best development score so far.
        best_step: step at which ``best_score`` was measured.
        scores_differ: whether two development scores differ.
        stale_epochs: number of consecutive epochs without an improvement.
        epoch_best: best score when the current epoch began.
        seconds: training time.
        finished: whether the run has completed.
    """

    step: int = 0
    best_score: float | None = None
    best_step: int | None = None
    scores_differ: bool = False
    stale_epochs: int = 0
    epoch_best: float | None = None
    seconds: float = 0.0
    finished: bool = False


def save_checkpoint(
    path: Path, method: nn.Module, optimizer: AdamW, scaler: torch.amp.GradScaler, state: TrainState
) -> None:
    """Write parameters, buffers, optimizer state, gradient scaler and random state.

    Raises:
        StorageError: the file cannot be written; the previous checkpoint is kept.
    """
    tensors = {f"method/{name}": tensor for name, tensor in method.state_dict().items()}
    groups = []
    for number, group in enumerate(optimizer.param_groups):
        groups.append({key: value for key, value in group.items() if key != "params"})
        for place, parameter in enumerate(group["params"]):
            for name, tensor in optimizer.state.get(parameter, {}).items():
                tensors[f"optimizer/{number}/{place}/{name}"] = tensor
    tensors["random/cpu"] = torch.get_rng_state()
    if torch.cuda.is_available():
        tensors["random/cuda"] = torch.cuda.get_rng_state()
    tensors = separate({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
    metadata = {
        "format": _FORMAT,
        "state": json.dumps(dataclasses.asdict(state)),
        "groups": json.dumps(groups),
        "scaler": json.dumps(scaler.state_dict()),
    }
    metadata["crc32"] = str(_checksum(metadata, tensors))
    with atomic_file(path) as temporary, writing_tensors():
        save_file(tensors, temporary, metadata)


def load_checkpoint(path: Path, method: nn.Module, optimizer: AdamW, scaler: torch.amp.GradScaler) -> TrainState:
    """Restore a run from a file written by :func:`save_checkpoint`.

    Raises:
        CheckpointError: the file is missing or damaged, or was written with other settings.
    """
    try:
        with safe_open(path, framework="pt") as file:
            metadata: dict[str, str] = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
        _check(metadata, tensors)
        state = TrainState(**json.loads(metadata["state"]))
        method.load_state_dict(_section(tensors, "method/"))
        _restore_optimizer(optimizer, json.loads(metadata["groups"]), _section(tensors, "optimizer/"))
        if saved := json.loads(metadata["scaler"]):
            scaler.load_state_dict(saved)
        torch.set_rng_state(tensors["random/cpu"])
        if torch.cuda.is_available() and "random/cuda" in tensors:
            torch.cuda.set_rng_state(tensors["random/cuda"])
    except FileNotFoundError:
        raise CheckpointError(f"there is no checkpoint {path}") from None
    except (OSError, SafetensorError, KeyError, IndexError, TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"{path} is damaged or was written with other settings: {error}") from error
    return state


def _check(metadata: dict[str, str], tensors: dict[str, Tensor]) -> None:
    """Verify the checksum; checkpoints of early versions have none."""
    recorded = metadata.pop("crc32", None)
    if recorded not in (None, str(_checksum(metadata, tensors))):
        raise ValueError("its checksum is wrong")


def _checksum(metadata: dict[str, str], tensors: dict[str, Tensor]) -> int:
    """Return the CRC-32 of a checkpoint's contents; safetensors validates sizes only."""
    checksum = zlib.crc32(json.dumps(metadata, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        checksum = zlib.crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), checksum)
        checksum = zlib.crc32(tensor.flatten().view(torch.uint8).numpy().data, checksum)
    return checksum


def _section(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _restore_optimizer(optimizer: AdamW, groups: list[dict[str, Any]], tensors: dict[str, Tensor]) -> None:
    for group, saved in zip(optimizer.param_groups, groups, strict=True):
        group.update(saved)
    for path, tensor in tensors.items():
        number, place, name = path.split("/")
        parameter = optimizer.param_groups[int(number)]["params"][int(place)]
        optimizer.state[parameter][name] = tensor.to(parameter.device)
