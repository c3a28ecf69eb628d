"""Validation of arguments, shared by several modules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from numbers import Integral

import numpy as np

from embedkit.errors import InputError

__all__ = ["check_count", "check_iterable", "is_whole"]


def check_count(value: int | None, name: str) -> int | None:
    """Accept None and whole numbers from 1 up.

    Raises:
        InputError: the value is something else.
    """
    if value is None:
        return None
    if not is_whole(value) or value < 1:
        raise InputError(f"{name} must be a whole number from 1 up, not {value!r}")
    return int(value)


def is_whole(value: object) -> bool:
    """Whether a value is a whole number of Python or numpy; True and False are none."""
    return isinstance(value, Integral) and not isinstance(value, bool | np.bool)


def check_iterable(texts: object) -> Iterable[str]:
    """Accept iterables of texts; the items are validated when they are tokenized.

    Raises:
        InputError: the argument is something else: bytes, or a mapping or table, which iterate over keys or
            columns.
    """
    if isinstance(texts, Mapping):
        raise InputError(f"expected a text or an iterable of texts, got {type(texts).__name__}; give its values()")
    if hasattr(texts, "columns"):
        raise InputError(
            f"expected a text or an iterable of texts, got {type(texts).__name__}, a table; give its column of "
            "texts"
        )
    if hasattr(texts, "to_pylist"):  # of pyarrow, whose own items are no str
        return list(texts.to_pylist())
    if isinstance(texts, (bytes, bytearray)) or not isinstance(texts, Iterable):
        raise InputError(f"expected a text or an iterable of texts, got {type(texts).__name__}")
    return texts
