"""Where the sets of named tasks are: in a folder or, pinned to a revision, on the hub."""

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
"""Of re-ranking: those that are wanted, ``"useb"`` or ``"mteb"``."""


@dataclass(frozen=True)
class Shelf:
    """A data folder or, without one, the hub.

    Attributes:
        folder: where sets are looked for.
        revision: of a hub data set, in place of the pinned one.
    """

    folder: Path | None
    revision: str | None = None

    _PLACES: ClassVar = (
        "", "sts", "STS", "rerank", "retrieval", "pairs", "transfer", "intents",
        "downstream", "downstream/STS", "data-eval",
    )  # fmt: skip
    """Sub-folders that hold sets: of a data folder of one's own, of SentEval's, of USEB's."""

    def find(self, *names: str, hub: HubDataset | None = None) -> Source:
        """The first of ``names`` in the folder; without a folder the hub's data set.

        Raises:
            DataError: the folder has none of them, or the hub does not have the set.
        """
        if self.folder is not None:
            places = (self.folder / place / name for place in self._PLACES for name in names)
            found = next((place for place in places if place.exists()), None)
            if found is None:
                raise DataError(f"{self.folder} has no {' or '.join(names)}")
            return found
        if hub is None:
            raise DataError(f"{names[0]} is not on the hub: a data folder must have it")
        return replace(hub, revision=self.revision or hub.revision)


@dataclass(frozen=True)
class Entry:
    """A named task, before its data is loaded.

    Attributes:
        what: the set in a few words.
        size: its published size, in words.
        load: loads it from a shelf.
        hub: the pinned data set, None if it needs files.
    """

    what: str
    size: str
    load: Callable[[Shelf, Conventions], Task]
    hub: HubDataset | None = None
