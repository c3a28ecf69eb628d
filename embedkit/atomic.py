"""Atomic writes of files and folders, home folders, and the folder for files that can be downloaded again."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from embedkit.errors import EmbedkitError, InputError, StorageError
from embedkit.threads import submit_each

_FLUSHES = 8
_ANOTHER_CACHE = "; set XDG_CACHE_HOME to a folder that can be written"


@contextlib.contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn OSErrors while writing ``path`` into :class:`StorageError`."""
    try:
        yield
    except EmbedkitError:
        raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise StorageError(error.errno, f"cannot write {path}: {reason}{_advice(path)}") from error


def _advice(path: Path) -> str:
    """The policy for a file of the cache that cannot be written."""
    with contextlib.suppress(InputError):  # there is no home folder, and so no cache
        if path.is_relative_to(cache_folder("")):
            return _ANOTHER_CACHE
    return ""


def file_signature(path: Path) -> tuple[int, int, int] | None:
    """Return what differs once a file was replaced or changed, without opening it; None if there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def identity_of(folder: Path) -> tuple[int, int] | None:
    """Return what differs once another folder has taken the name; None if there is none."""
    try:
        status = folder.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


@contextlib.contextmanager
def atomic_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path beside ``path``; on success flush it to disk and rename it into place.

    On any exception, including an interrupt, the temporary file is removed and a previous file at ``path`` is left
    unchanged. The new file has the permissions of the previous one.

    Raises:
        StorageError: the disk is full, the folder cannot be written, or ``path`` is not a regular file.
    """
    target = Path(path)
    with storage_errors(target):
        if target.exists() and not target.is_file():  # renaming over /dev/null would replace the device
            raise StorageError(errno.EEXIST, f"cannot write {target}: it is not a regular file")
        temporary = _name_beside(target)
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    try:
        with storage_errors(target):
            _keep_mode(target, temporary)
            yield temporary
            flush(temporary)
            temporary.replace(target)
            flush(target.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary folder beside ``path``; on success it replaces ``path``.

    A previous folder is moved aside first and removed last, so the two are never mixed. A kill between the two
    renames leaves the old folder under its hidden name.

    Raises:
        StorageError: the disk is full, the folder cannot be written, or ``path`` is a file.
    """
    target = Path(path)
    with storage_errors(target):
        if target.exists() and not target.is_dir():
            raise StorageError(errno.ENOTDIR, f"cannot write {target}: it is not a folder")
        temporary = _name_beside(target)
        temporary.mkdir()
        _keep_mode(target, temporary)
    retired = temporary.with_suffix(".old")
    try:
        with storage_errors(target):
            yield temporary
            flush_folder(temporary)
            if target.exists():
                target.rename(retired)
            temporary.rename(target)
            flush(target.parent)
    finally:
        if retired.exists() and not target.exists():
            retired.rename(target)
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.rmtree(retired, ignore_errors=True)


def flush_folder(folder: Path) -> None:
    """Flush ``folder`` and all in it to disk, together, which costs little more than flushing one file."""
    paths = [folder, *folder.rglob("*")]
    with ThreadPoolExecutor(_FLUSHES) as pool:
        flushes = submit_each(pool, flush, paths)
        for path in paths[len(flushes) :]:
            flush(path)
        for done in flushes:
            done.result()


def _keep_mode(old: Path, new: Path) -> None:
    """Give the successor of a file or folder its permissions; a private file stays private."""
    with contextlib.suppress(FileNotFoundError):
        new.chmod(stat.S_IMODE(old.stat().st_mode))


def make_folder(path: Path) -> bool:
    """Create a folder and its parents, durably; return whether it did not exist."""
    if path.is_dir():
        return False
    make_folder(path.parent)
    try:
        path.mkdir()
    except FileExistsError:
        if not path.is_dir():
            raise
        return False
    flush(path.parent)
    return True


def _name_beside(target: Path) -> Path:
    """Return an unused hidden name in the same folder, which is created if necessary."""
    make_folder(target.parent)
    return target.parent / f".{target.name[:40]}.{os.urandom(6).hex()}.part"


def flush(path: Path) -> None:
    """Flush a file or folder to disk; Windows has no such call for folders and does not need it."""
    if path.is_dir() and os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def cache_folder(name: str) -> Path:
    """Return ``~/.cache/embedkit/NAME``, or ``$XDG_CACHE_HOME/embedkit/NAME`` if that variable is set.

    Raises:
        InputError: there is no home folder.
    """
    try:
        return expanded(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "embedkit" / name
    except InputError as error:
        raise InputError(f"{error}{_ANOTHER_CACHE}") from error


def is_readable_file(path: Path) -> bool:
    """Return whether there is a file; False, too, if its folder cannot be read."""
    return os.path.isfile(path)  # noqa: PTH113 - Path.is_file raises where a folder cannot be read


def read_regular(path: Path) -> bytes:
    """Read a whole file; anything but a regular file, such as a pipe without a writer, is an OSError."""
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is not a regular file")
    return path.read_bytes()


def expanded(path: str | os.PathLike[str]) -> Path:
    """Return a path with the home folder in place of a leading ``~`` or ``~user``.

    Raises:
        InputError: there is no such home folder.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise InputError(f"{path}: there is no home folder {Path(path).parts[0]}") from error
