"""Data sets on the Hugging Face hub, read through the optional package ``datasets``.

Rows of a pinned commit are cached under ``~/.cache/embedkit/sets`` (``$XDG_CACHE_HOME/embedkit/sets``) and never
requested again. By itself, ``datasets`` would need the hub to list tables and splits, and offline it would use
whatever revision it loaded last.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, cast

from embedkit.atomic import atomic_file
from embedkit.cache import cache_folder
from embedkit.errors import DataError
from embedkit.evaluation.rows import Row
from embedkit.extras import require
from embedkit.records import Record, read_records

__all__ = ["HubDataset"]

_COMMIT = re.compile("[0-9a-f]{40}")
_WRITTEN = re.compile(r"(?:hf://)?([\w.-]+/[\w.-]+)(?:@([^:@]+))?(?::([\w.-]+))?")


@dataclass(frozen=True, slots=True)
class HubDataset:
    """A data set on the hub, written ``org/name`` or ``hf://org/name[@revision][:split]``.

    Attributes:
        id: ``org/name``.
        revision: branch, tag or commit; None is the latest.
        split: the split to read unless the caller names one.
    """

    id: str
    revision: str | None = None
    split: str | None = None

    @classmethod
    def parse(cls, text: str) -> HubDataset:
        """Parse the written form.

        Raises:
            DataError: ``text`` does not have that form.
        """
        match = _WRITTEN.fullmatch(text)
        if match is None:
            raise DataError(
                f"{text!r} is neither a file or folder nor a hub data set hf://org/name[@revision][:split]"
            )
        return cls(*match.groups())

    def __str__(self) -> str:
        return (
            f"hf://{self.id}"
            + (f"@{self.revision}" if self.revision else "")
            + (f":{self.split}" if self.split else "")
        )

    def configurations(self) -> list[str]:
        """Return the names of its tables, ``["default"]`` for a data set with a single table.

        Raises:
            MissingExtraError: the package ``datasets`` is not installed.
            DataError: the hub does not have the data set, or cannot be reached.
        """
        rows = self._kept("tables", lambda: ({"name": name} for name in self._call("get_dataset_config_names")))
        return [row["name"] for row in rows]

    def rows(self, *, configuration: str | None = None, split: str = "test") -> Iterator[Row]:
        """Yield the rows of one split.

        Args:
            configuration: name of the table.
            split: default split if the written form names none; the only split of a table is used whatever its
                name.

        Raises:
            MissingExtraError: the package ``datasets`` is not installed.
            DataError: the hub does not have it, or cannot be reached.
        """
        wanted = self.split or split
        rows = self._kept(f"{configuration or 'default'}.{wanted}", lambda: self._load(configuration, wanted))
        for number, fields in enumerate(rows, start=1):
            yield Row(f"{replace(self, split=wanted)}, row {number}", fields)

    def _load(self, configuration: str | None, wanted: str) -> Iterable[Record]:
        splits = self._call("get_dataset_split_names", configuration)
        found = wanted if wanted in splits or len(splits) != 1 else splits[0]
        return cast("Iterable[Record]", self._call("load_dataset", configuration, split=found))

    def _kept(self, name: str, load: Callable[[], Iterable[Record]]) -> Iterator[Record]:
        """Yield rows from the cache file, which is written on first use of a pinned commit; else load them."""
        if self.revision is None or not _COMMIT.fullmatch(self.revision):
            yield from load()
            return
        path = cache_folder("sets") / self.id / self.revision / f"{name}.jsonl.gz"
        if not path.is_file():
            rows = load()
            with atomic_file(path) as temporary, gzip.open(temporary, "wt", encoding="utf-8") as file:
                file.writelines(json.dumps(fields, default=_no_json) + "\n" for fields in rows)
        for _, record in read_records(path):
            yield record

    def _call(self, function: str, *arguments: str | None, **options: str) -> Any:
        datasets = require("datasets", extra="bench")
        try:
            return getattr(datasets, function)(self.id, *arguments, revision=self.revision, **options)
        except Exception as error:
            # Network, authentication, unknown id, table or split: each underlying client has its own exceptions.
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            raise DataError(f"cannot load {self} from the hub: {reason}") from error


def _no_json(_: object) -> None:
    """Replace images, timestamps and the like, which no task reads, by null."""
