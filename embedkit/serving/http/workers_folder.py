"""The private folder of a server's workers, for their sockets and for the weights that they share."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from embedkit.errors import WorkerError
from embedkit.write_lock import write_lock

_PREFIX = "embedkit-workers-"


@contextlib.contextmanager
def workers_folder() -> Iterator[Path]:
    """Yield a new folder, locked until its end; remove those of servers that were killed with all their workers.

    Raises:
        WorkerError: there is no folder for temporary files, or its disk is full.
    """
    with contextlib.ExitStack() as held:
        try:
            _remove_abandoned()
            folder = _create(held)
        except OSError as error:
            reason = error.strerror or error
            raise WorkerError(f"workers need a folder for temporary files (TMPDIR): {reason}") from None
        yield folder


def _remove_abandoned() -> None:
    """Remove the folders of this user that no process has locked."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError, WorkerError):
            if folder.stat().st_uid == os.geteuid():
                with write_lock(folder, refusal=WorkerError, needed=True):
                    shutil.rmtree(folder)


def _create(held: contextlib.ExitStack) -> Path:
    """Create a folder that is locked before it has the name by which other servers find it."""
    new = Path(tempfile.mkdtemp(prefix="embedkit-"))
    held.callback(shutil.rmtree, new, ignore_errors=True)
    held.enter_context(write_lock(new, refusal=WorkerError))
    folder = new.rename(new.with_name(_PREFIX + new.name.removeprefix("embedkit-")))
    held.callback(shutil.rmtree, folder, ignore_errors=True)
    return folder
