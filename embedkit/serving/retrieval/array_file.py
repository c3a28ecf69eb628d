"""Arrays on disk as ``.npy`` files, read without trusting their headers.

Shape and dtype are known before a file is opened (from a collection's manifest), so its header is compared with
the expected one and never parsed; pickled objects cannot be loaded.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from embedkit.errors import CollectionError
from embedkit.serving.retrieval.paced_file import PacedFile

__all__ = ["map_array", "map_bytes", "write_array"]

_HEADER_BYTES = 128


def write_array(path: Path, shape: tuple[int, ...], dtype: str, chunks: Iterable[npt.NDArray[Any]]) -> None:
    """Write a ``.npy`` file (version 1.0) chunk by chunk.

    Args:
        path: the file to write.
        shape: shape of the whole array.
        dtype: little-endian dtype in numpy's notation, e.g. ``"<f4"``.
        chunks: consecutive parts along the first axis, with ``shape`` in total.
    """
    with PacedFile(path) as file:
        file.write(_header(shape, dtype))
        for chunk in chunks:
            file.write(np.ascontiguousarray(chunk, dtype=dtype).data)


def map_array(path: Path, shape: tuple[int, ...], dtype: str) -> npt.NDArray[Any]:
    """Map a file written by :func:`write_array` read-only into memory.

    Raises:
        CollectionError: the file is missing, or contains an array of another shape or dtype.
    """
    expected = _header(shape, dtype)
    content = map_bytes(path)
    size = len(expected) + int(np.prod(shape, dtype=object)) * np.dtype(dtype).itemsize
    if len(content) != size or content[: len(expected)].tobytes() != expected:
        raise CollectionError(f"{path} is damaged: expected an array of shape {shape} and dtype {dtype}")
    return content[len(expected) :].view(dtype).reshape(shape)


def map_bytes(path: Path) -> npt.NDArray[np.uint8]:
    """Map any file read-only into memory.

    Raises:
        CollectionError: the file is missing, empty or cannot be read.
    """
    try:
        return np.asarray(np.memmap(path, dtype=np.uint8, mode="r"))  # slicing a plain array is twice as fast
    except (OSError, ValueError) as error:
        raise CollectionError(f"cannot read {path}: {error}") from error


def _header(shape: tuple[int, ...], dtype: str) -> bytes:
    # Not numpy's own writer, whose padding depends on its version.
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape!r}, }}"
    prefix = b"\x93NUMPY\x01\x00" + struct.pack("<H", _HEADER_BYTES - 10)
    return prefix + text.encode("ascii").ljust(_HEADER_BYTES - 11) + b"\n"
