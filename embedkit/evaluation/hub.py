"""Data sets on the Hugging Face hub, read through the optional package ``datasets``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from embedkit.errors import DataError
from embedkit.evaluation.rows import Row
from embedkit.extras import require

__all__ = ["HubDataset"]

_WRITTEN = re.compile(r"(?:hf://)?([\w.-]+/[\w.-]+)(?:@([^:@]+))?(?::([\w.-]+))?")


@dataclass(frozen=True, slots=True)
class HubDataset:
    """A data set on the hub, written ``org/name`` or ``hf://org/name[@revision][:split]``.

    Attributes:
        id: ``org/name``.
        revision: branch, tag or commit; None is the newest.
        split: the split to read where the caller names none.
    """

    id: str
    revision: str | None = None
    split: str | None = None

    @classmethod
    def parse(cls, text: str) -> HubDataset:
        """Read the written form.

        Raises:
            DataError: ``text`` is not of that form.
        """
        match = _WRITTEN.fullmatch(text)
        if match is None:
            raise DataError(f"no file or folder {text!r}, nor a hub data set hf://org/name[@revision][:split]")
        return cls(*match.groups())

    def __str__(self) -> str:
        return f"hf://{self.id}" + (f"@{self.revision}" if self.revision else "")

    def configurations(self) -> list[str]:
        """The names of its tables, ``["default"]`` for a data set of one.

        Raises:
            MissingExtraError: the package ``datasets`` is not installed.
            DataError: the hub does not have the data set, or cannot be reached.
        """
        return list(self._call("get_dataset_config_names"))

    def rows(self, *, configuration: str | None = None, split: str = "test") -> Iterator[Row]:
        """The rows of one split.

        Args:
            configuration: which of its tables.
            split: used where the written form names none; a table of one split is read whatever its name.

        Raises:
            MissingExtraError: the package ``datasets`` is not installed.
            DataError: the hub does not have it, or cannot be reached.
        """
        splits = self._call("get_dataset_split_names", configuration)
        wanted = self.split or split
        found = wanted if wanted in splits or len(splits) != 1 else splits[0]
        for number, fields in enumerate(self._call("load_dataset", configuration, split=found), start=1):
            yield Row(f"{self}:{found}, row {number}", fields)

    def _call(self, function: str, *arguments: str | None, **options: str) -> Any:
        datasets = require("datasets", extra="bench")
        try:
            return getattr(datasets, function)(self.id, *arguments, revision=self.revision, **options)
        except Exception as error:
            # Network, authentication, unknown id, table or split: each of the clients beneath has its own tree.
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            raise DataError(f"cannot load {self} from the hub: {reason}") from error
