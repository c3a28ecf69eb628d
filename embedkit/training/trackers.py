"""Trackers: what a run logs, sent on to TensorBoard or Weights & Biases if its configuration names them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

from embedkit.atomic import atomic_file, storage_errors
from embedkit.errors import ConfigError
from embedkit.extras import require

__all__ = ["Tracker", "TrackerName", "find_trackers"]

TrackerName = Literal["tensorboard", "wandb"]


class Tracker(Protocol):
    """Takes every record that goes to metrics.jsonl."""

    def open(self, *, step: int, sent: int) -> None:
        """Begin, or go on with a run that was interrupted.

        Args:
            step: where training goes on; 0 for a new run.
            sent: the last step of which anything was logged before; those above ``step`` come again.
        """

    def log(self, record: Mapping[str, float]) -> None:
        """Take a record; it has a ``step``, and figures by name."""

    def close(self) -> None:
        """Send what is left."""


def find_trackers(
    names: Sequence[TrackerName], folder: Path, *, name: str, config: Mapping[str, Any]
) -> tuple[Tracker, ...]:
    """Trackers of a run; none of them is open.

    Args:
        names: of trackers.
        folder: of the run.
        name: what the run is called there.
        config: resolved; shown with the run.

    Raises:
        MissingExtraError: a tracker's package is not installed.
    """
    makers: dict[TrackerName, Callable[[], Tracker]] = {
        "tensorboard": lambda: _TensorBoard(folder),
        "wandb": lambda: _WandB(folder, name, config),
    }
    return tuple(makers[each]() for each in dict.fromkeys(names))


class _TensorBoard:
    """Event files in ``folder/tensorboard``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "tensorboard"
        self._package: Any = require("torch.utils.tensorboard", extra="tensorboard")
        self._writer: Any = None

    def open(self, *, step: int, sent: int) -> None:
        """See :class:`Tracker`; points after ``step`` are dropped by TensorBoard itself."""
        self._writer = self._package.SummaryWriter(str(self._folder), purge_step=step + 1 if sent else None)

    def log(self, record: Mapping[str, float]) -> None:
        """See :class:`Tracker`."""
        for name, value in _figures(record):
            self._writer.add_scalar(name, value, int(record["step"]))

    def close(self) -> None:
        """See :class:`Tracker`."""
        self._writer.close()


@dataclasses.dataclass
class _WandB:
    """A run of Weights & Biases; project, account and mode are what its own environment variables say."""

    folder: Path
    name: str
    config: Mapping[str, Any]

    def __post_init__(self) -> None:
        self._package: Any = require("wandb", extra="wandb")
        self._id = self.folder / "wandb-id.txt"
        self._run: Any = None
        self._sent = 0

    def open(self, *, step: int, sent: int) -> None:
        """See :class:`Tracker`; points cannot be dropped there, so those that come again are left out.

        They are the same figures: a resumed run repeats its steps bit for bit.
        """
        known = self._id.read_text(encoding="utf-8") if step and self._id.exists() else None
        self._sent = sent if known else 0
        with storage_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)  # elsewhere wandb would take a temporary folder
        again = {"id": known, "resume": "allow"} if known else {}
        try:
            self._run = self._package.init(dir=str(self.folder), name=self.name, config=dict(self.config), **again)
        except self._package.Error as error:
            raise ConfigError(f"wandb did not start: {error}; mend that, or leave it out of trackers") from error
        with atomic_file(self._id) as temporary:
            temporary.write_text(self._run.id, encoding="utf-8")

    def log(self, record: Mapping[str, float]) -> None:
        """See :class:`Tracker`."""
        if record["step"] > self._sent:
            self._run.log(dict(_figures(record)), step=int(record["step"]))

    def close(self) -> None:
        """See :class:`Tracker`."""
        self._run.finish()


def _figures(record: Mapping[str, float]) -> list[tuple[str, float]]:
    return [(name, value) for name, value in record.items() if name != "step"]
