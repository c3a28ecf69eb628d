"""Arrays that processes of one user keep in memory once: files of a private folder, mapped read-only."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

if sys.platform != "win32":
    import fcntl

logger = logging.getLogger(__name__)

Arrays: TypeAlias = Mapping[str, npt.NDArray[Any]]

_RECORD = "record.json"  # written last, so that a folder without it is incomplete


class SharedArrays:
    """The arrays of one model. The first process writes them, and all map the same files.

    Arrays of another version of the model replace the files; processes that have mapped them keep the old arrays.
    The memory is released when the last process unmaps it and the files are gone.

    Args:
        folder: an existing folder that only this user can write to; its owner removes it.
        name: tells the models in the folder apart.
        key: identifies the version of the model.
    """

    def __init__(self, folder: str | os.PathLike[str], name: str, key: str) -> None:
        self._folder, self._key = Path(folder) / hashlib.sha256(name.encode()).hexdigest()[:16], key

    def get(self, form: str, make: Callable[[], Arrays]) -> Arrays:
        """Return the arrays, mapped read-only and aligned to 64 bytes.

        If the disk is full, or the system is Windows, a warning is logged and the arrays are those of ``make``.
        ``form`` identifies how the weights are arranged; ``make`` is called unless the folder contains them.
        """
        try:
            with _locked(self._folder.with_suffix(".lock")):
                arrays = self._find(form)
                if arrays is None:
                    self._write(form, make())
                    arrays = self._map()
                return arrays
        except OSError as error:
            reason = error.strerror or error
            logger.warning("weights are not shared with other processes: %s: %s", self._folder, reason)
            return make()

    def _find(self, form: str) -> Arrays | None:
        """Return the arrays; None if they are of another version, or a file is missing or has another length.

        Such files remain where a cleaner of temporary folders removes the ones that were not opened for days.
        """
        with contextlib.suppress(FileNotFoundError, ValueError):
            if json.loads((self._folder / _RECORD).read_text(encoding="utf-8")) == self._describe(form):
                return self._map()
        return None

    def _map(self) -> Arrays:
        return {file.stem: np.load(file, mmap_mode="r") for file in self._files()}

    def _write(self, form: str, arrays: Arrays) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir()
        try:
            for name, array in arrays.items():
                np.save(self._folder / f"{name}.npy", array, allow_pickle=False)
            (self._folder / _RECORD).write_text(json.dumps(self._describe(form)), encoding="utf-8")
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)  # a full disk has no space for half a model
            raise

    def _describe(self, form: str) -> dict[str, Any]:
        """Return the record of the files as they are."""
        return {
            "key": self._key,
            "form": form,
            "bytes": {file.name: file.stat().st_size for file in self._files()},
        }

    def _files(self) -> list[Path]:
        return list(self._folder.glob("*.npy"))


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock of a file once no other process holds it; OSError if there are no such locks here."""
    if sys.platform == "win32":
        raise OSError("Windows cannot replace files that are mapped")
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
