"""Files that appear under their name whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
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
        StorageError: the disk is full, the folder cannot be written, or ``path`` is no ordinary file.
    """
    target = Path(path)
    with storage_errors(target):
        if target.exists() and not target.is_file():  # renaming over /dev/null would remove it
            raise StorageError(errno.EEXIST, f"cannot write {target}: it is not an ordinary file")
        temporary = _name_beside(target)
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    try:
        with storage_errors(target):
            yield temporary
            _flush(temporary)
            temporary.replace(target)
            _flush(target.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary folder beside ``path``; on success it takes the place of ``path``.

    A folder that stood there is moved aside first and removed last. So there is never a mixture of the
    two; a kill in the instant between the moves leaves the old one under its hidden name.

    Raises:
        StorageError: the disk is full, the folder cannot be written, or ``path`` is a file.
    """
    target = Path(path)
    with storage_errors(target):
        if target.exists() and not target.is_dir():
            raise StorageError(errno.ENOTDIR, f"cannot write {target}: it is not a folder")
        temporary = _name_beside(target)
        temporary.mkdir()
    retired = temporary.with_suffix(".old")
    try:
        with storage_errors(target):
            yield temporary
            for file in temporary.rglob("*"):
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


def _name_beside(target: Path) -> Path:
    """A hidden name in the same folder, which is made if need be; nothing stands under it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    return target.parent / f".{target.name[:40]}.{secrets.token_hex(6)}.part"


def _flush(path: Path) -> None:
    """Have the disk hold what was written; Windows does so for folders by itself and cannot be asked."""
    if path.is_dir() and os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
