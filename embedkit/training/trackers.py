"""Trackers: send a run's metrics to TensorBoard or Weights & Biases, if configured."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from embedkit.atomic import atomic_file, storage_errors
from embedkit.errors import ConfigError
from embedkit.extras import require

TrackerName = Literal["tensorboard", "wandb"]


class _TensorBoard:
    """Event files in ``folder/tensorboard``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "tensorboard"
        self._package: Any = require("torch.utils.tensorboard", extra="tensorboard")
        self._writer: Any = None

    def open(self, *, step: int, sent: int) -> None:
        """Start tracking, or continue an interrupted run at a step; 0 is a new run.

        ``sent`` is the last step logged before; TensorBoard itself drops points of steps after ``step``, which
        will be sent again.
        """
        self._writer = self._package.SummaryWriter(str(self._folder), purge_step=step + 1 if sent else None)

    def log(self, record: Mapping[str, float]) -> None:
        """Log a record with a ``step`` and values by name."""
        for name, value in _figures(record):
            self._writer.add_scalar(name, value, int(record["step"]))

    def close(self) -> None:
        """Send pending records and close."""
        self._writer.close()


@dataclasses.dataclass
class _WandB:
    """A run of Weights & Biases; its environment variables determine project, account and mode."""

    folder: Path
    name: str
    config: Mapping[str, Any]

    def __post_init__(self) -> None:
        self._package: Any = require("wandb", extra="wandb")
        self._id = self.folder / "wandb-id.txt"
        self._run: Any = None
        self._sent = 0

    def open(self, *, step: int, sent: int) -> None:
        """See :class:`_TensorBoard`; points cannot be dropped in W&B, so repeated ones are not sent.

        Their values are the same: a resumed run repeats its steps bit for bit.
        """
        known = self._id.read_text(encoding="utf-8") if step and self._id.exists() else None
        self._sent = sent if known else 0
        with storage_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)  # otherwise wandb uses a temporary folder
        again = {"id": known, "resume": "allow"} if known else {}
        try:
            self._run = self._package.init(dir=str(self.folder), name=self.name, config=dict(self.config), **again)
        except self._package.Error as error:
            raise ConfigError(f"wandb did not start: {error}; fix this or remove it from trackers") from error
        with atomic_file(self._id) as temporary:
            temporary.write_text(self._run.id, encoding="utf-8")

    def log(self, record: Mapping[str, float]) -> None:
        """See :class:`_TensorBoard`."""
        if record["step"] > self._sent:
            self._run.log(dict(_figures(record)), step=int(record["step"]))

    def close(self) -> None:
        """See :class:`_TensorBoard`."""
        self._run.finish()


Tracker = _TensorBoard | _WandB
"""Receives every record that is written to metrics.jsonl."""


def find_trackers(
    names: Sequence[TrackerName], folder: Path, *, name: str, config: Mapping[str, Any]
) -> tuple[Tracker, ...]:
    """Create the trackers of a run, which are not yet open, with its name and its configuration to show.

    Raises:
        MissingExtraError: a tracker's package is not installed.
    """
    makers: dict[TrackerName, Callable[[], Tracker]] = {
        "tensorboard": lambda: _TensorBoard(folder),
        "wandb": lambda: _WandB(folder, name, config),
    }
    return tuple(makers[tracker]() for tracker in dict.fromkeys(names))


def _figures(record: Mapping[str, float]) -> list[tuple[str, float]]:
    return [(name, value) for name, value in record.items() if name != "step"]
