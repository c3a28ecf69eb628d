"""Location of named sets: in a folder or, pinned to a revision, on the hub."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from embedkit.errors import DataError
from embedkit.evaluation.hub import HubDataset
from embedkit.evaluation.tasks import Task

__all__ = ["Conventions", "Entry", "Shelf", "Source"]

Source = Path | HubDataset

Conventions = tuple[str, ...]
"""Requested re-ranking conventions, ``"useb"`` or ``"mteb"``."""


@dataclass(frozen=True)
class Shelf:
    """A data folder or, without one, the hub.

    Attributes:
        folder: the folder that contains the sets.
        revision: revision of a hub data set, overriding the pinned one.
    """

    folder: Path | None
    revision: str | None = None

    _PLACES: ClassVar = (
        "", "sts", "STS", "rerank", "retrieval", "pairs", "transfer", "intents",
        "downstream", "downstream/STS", "data-eval",
    )  # fmt: skip
    """Sub-folders that contain sets: of custom data folders, of SentEval's and of USEB's."""

    def find(self, *names: str, hub: HubDataset | None = None) -> Source:
        """Return the first of ``names`` in the folder, or the hub's data set if there is no folder.

        Raises:
            DataError: the folder has none of them, or the set is not on the hub.
        """
        if self.folder is not None:
            places = (self.folder / place / name for place in self._PLACES for name in names)
            found = next((place for place in places if place.exists()), None)
            if found is None:
                raise DataError(f"{self.folder} has no {' or '.join(names)}")
            return found
        if hub is None:
            raise DataError(f"{names[0]} is not on the hub: it needs a data folder")
        return replace(hub, revision=self.revision or hub.revision)


@dataclass(frozen=True)
class Entry:
    """A named task, before its data is loaded.

    Attributes:
        what: short description of the set.
        size: its published size, as text.
        load: loads it from a shelf.
        hub: the pinned data set, None if it needs local files.
    """

    what: str
    size: str
    load: Callable[[Shelf, Conventions], Task]
    hub: HubDataset | None = None
