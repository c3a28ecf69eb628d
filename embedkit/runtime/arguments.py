"""Validation of arguments, for the public functions of all subpackages.

Each check returns the argument as a plain value of Python, or raises an InputError that names the argument and
shows what it is. True and False are not numbers.
"""

from __future__ import annotations

import errno
import math
import operator
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from embedkit.errors import InputError, shown


def check_whole(value: Any, name: str, *, least: int = 1, most: int | None = None) -> int:
    """Return a whole number of Python or numpy."""
    try:
        number = None if isinstance(value, bool | np.bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or number < least or (most is not None and number > most):
        expected = f"from {least} up" if most is None else f"from {least} to {most}"
        raise InputError(f"{name} must be a whole number {expected}, not {shown(value)}", parameters=[name])
    return number


def check_count(value: Any, name: str, *, most: int | None = None) -> int | None:
    """Accept None and whole numbers from 1 up."""
    return None if value is None else check_whole(value, name, most=most)


def check_number(value: Any, name: str) -> float:
    """Return a finite number of Python or numpy."""
    is_other = isinstance(value, (bool, np.bool, str, bytes)) or (isinstance(value, np.ndarray) and value.ndim)
    try:
        number = math.nan if is_other else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise InputError(f"{name} must be a number, not {shown(value)}", parameters=[name])
    return number


def check_flag(value: Any, name: str) -> bool:
    """Return True or False, of Python or numpy; other values, such as "no", are an InputError."""
    if not isinstance(value, bool | np.bool):
        raise InputError(f"{name} must be True or False, not {shown(value)}", parameters=[name])
    return bool(value)


def check_progress(show_progress_bar: Any) -> bool | None:
    """Return the argument that every long call has: True, False or None."""
    return None if show_progress_bar is None else check_flag(show_progress_bar, "show_progress_bar")


def check_choice(value: Any, choices: Sequence[str], name: str) -> str:
    """Return one of several texts."""
    if not isinstance(value, str) or value not in choices:
        raise InputError(f"{name} must be one of {', '.join(choices)}, not {shown(value)}", parameters=[name])
    return value


def check_text(value: Any, name: str) -> str:
    """Return a text, which is valid Unicode."""
    if not isinstance(value, str) or not is_unicode(value):
        raise InputError(f"{name} must be a text, not {shown(value)}", parameters=[name])
    return value


def check_path(value: Any, name: str) -> str:
    """Return a path as text; it need not exist, but this system must have such paths."""
    path = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
    if not isinstance(path, str) or not path:
        raise InputError(f"{name} must be a path, not {shown(value)}", parameters=[name])
    try:
        os.lstat(path)
    except ValueError as error:
        raise InputError(f"{name} must be a path, not {shown(value)}: {error}", parameters=[name]) from error
    except OSError as error:
        if error.errno in (errno.ENAMETOOLONG, errno.EINVAL):
            raise InputError(
                f"{name} must be a path, not {shown(value)}: {error.strerror}", parameters=[name]
            ) from error
    return path


def check_names(values: Any, name: str) -> list[str]:
    """Return several names."""
    if isinstance(values, str):
        raise InputError(f"{name} must be a list of names; did you mean [{shown(values)}]?", parameters=[name])
    try:
        return check_texts(values, name)
    except InputError:
        raise InputError(f"{name} must be a list of names, not {shown(values)}", parameters=[name]) from None


def check_texts(texts: Any, name: str) -> list[str]:
    """Return one or several texts as a list; an error names the position of any other value."""
    listed: list[Any] = [texts] if isinstance(texts, str) else list(check_iterable(texts, name))
    for position, text in enumerate(listed):
        if not isinstance(text, str):
            raise InputError(f"expected texts as {name}, got {shown(text)} at position {position}")
    return listed


def check_iterable(texts: Any, name: str = "texts") -> Iterable[Any]:
    """Accept iterables of texts, or of pairs; the items are validated when they are tokenized.

    Bytes, and mappings and tables, which iterate over keys or columns, are rejected.
    """
    if type(texts) is list:  # as most are
        return texts
    kind = type(texts).__name__
    if isinstance(texts, Mapping):
        raise InputError(f"expected an iterable as {name}, got {kind}; give its values()")
    if hasattr(texts, "columns"):
        raise InputError(f"expected an iterable as {name}, got {kind}, a table; give its column of texts")
    if isinstance(texts, str):
        raise InputError(f"expected an iterable as {name}, got one str; wrap it in a list")
    if hasattr(texts, "to_pylist"):  # of pyarrow, whose own items are not str
        return list(texts.to_pylist())
    is_single = isinstance(texts, (bytes, bytearray, type)) or getattr(texts, "ndim", None) == 0
    if is_single or not isinstance(texts, Iterable):
        raise InputError(f"expected an iterable as {name}, got {kind}")
    return texts


def is_unicode(text: str) -> bool:
    """Whether a text can be encoded: half of a surrogate pair, as JSON can hold, cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
