"""Files that appear under their name whole or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from embedkit.errors import EmbedkitError, StorageError

__all__ = ["atomic_file", "atomic_folder", "storage_errors"]


@contextlib.contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn the operating system's refusals while writing ``path`` into :class:`StorageError`."""
    try:
        yield
    except EmbedkitError:
        raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise StorageError(error.errno, f"cannot write {path}: {reason}") from error


@contextlib.contextmanager
def atomic_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path beside ``path``; on success flush it to disk and rename it into place.

    On any exception, an interrupt included, the temporary file is removed and what stood under
    ``path`` before stays as it was.

    Raises:
        StorageError: the disk is full or the folder cannot be written.
    """
    target = Path(path)
    with storage_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
        os.close(handle)
    temporary = Path(name)
    try:
        with storage_errors(target):
            yield temporary
            _make_readable(temporary)
            _flush(temporary)
            temporary.replace(target)
            _flush(target.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary folder beside ``path``; on success it takes the place of ``path``.

    A folder that stood there is moved aside first and removed last, so that a kill leaves the old or
    the new one, never a mixture.

    Raises:
        StorageError: the disk is full or the folder cannot be written.
    """
    target = Path(path)
    with storage_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part"))
    retired = temporary.with_suffix(".old")
    try:
        with storage_errors(target):
            yield temporary
            temporary.chmod(0o777 & ~_umask())
            for file in temporary.rglob("*"):
                if file.is_file():
                    _flush(file)
            if target.exists():
                target.rename(retired)
            temporary.rename(target)
            _flush(target.parent)
    finally:
        if retired.exists() and not target.exists():
            retired.rename(target)
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.rmtree(retired, ignore_errors=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _make_readable(path: Path) -> None:
    """Give a file made by ``mkstemp`` (owner only) the permissions of an ordinary new file."""
    path.chmod(0o666 & ~_umask())


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
