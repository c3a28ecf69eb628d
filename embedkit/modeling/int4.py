"""Rows in four bits a value: how export stores word tables, and what training can prepare for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from embedkit.protocols import FloatArray

_BLOCK = 32
_CLIPPED = (0.95, 0.9, 0.85)  # clipping thresholds to try, as shares of the largest magnitude

INT4_ZERO = 8
"""The stored value that represents 0: stored values 0 to 15 represent -8 to 7."""
INT4_ERROR = INT4_ZERO / _CLIPPED[-1] - (INT4_ZERO - 1)
"""Maximum error of a clipped value in steps; for other values it is half a step."""


def quantize_blocks(table: FloatArray) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float16]]:
    """Round rows ``(V, H) float32`` to integers in [-8, 7], int8, with a scale for each block of 32 values.

    A scale has the sign that makes the largest magnitude negative, because there are more negative integers than
    positive ones. It maps that magnitude to -8, or beyond if clipping reduces the squared error of the block.
    Scales are ``(V, H / 32, 1) float16``, or ``(V, 1, 1)`` if 32 does not divide H; a block of zeros has scale 1.
    """
    blocks = table.reshape(_blocks(table.shape))
    largest = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=-1)[..., None], axis=-1)
    best, scales = _round_blocks(blocks, largest)
    error = _squared_error(blocks, best, scales)
    for share in _CLIPPED:
        integers, clipped = _round_blocks(blocks, np.float32(share) * largest)
        squares = _squared_error(blocks, integers, clipped)
        better = squares < error
        best, scales = np.where(better, integers, best), np.where(better, clipped, scales)
        error = np.minimum(squares, error)
    return best.reshape(table.shape), scales


def round_blocks(table: Tensor) -> Tensor:
    """Return rows ``(V, H) float32`` as :func:`quantize_blocks` rounds them, computed where they are.

    It serves a GPU, to which NumPy has no access. Among clipping thresholds of equal error, up to the order of
    summation, it may choose another one.
    """
    blocks = table.reshape(_blocks(table.shape))
    largest = blocks.gather(-1, blocks.abs().argmax(dim=-1, keepdim=True))
    shares = torch.tensor([1.0, *_CLIPPED], dtype=torch.float32, device=table.device)
    scales = (largest * shares / -INT4_ZERO).half()
    scales = torch.where(scales == 0, 1.0, scales.float())[..., None, :]
    restored = (blocks[..., None] / scales).round().clamp(-INT4_ZERO, INT4_ZERO - 1) * scales
    errors = (restored - blocks[..., None]).square().sum(dim=-2)
    best = errors.argmin(dim=-1)[..., None, None].expand(*blocks.shape, 1)
    return restored.gather(-1, best).reshape(table.shape)


def _blocks(shape: Sequence[int]) -> tuple[int, int, int]:
    """Return the shape of rows in blocks."""
    rows, width = shape
    block = _BLOCK if width % _BLOCK == 0 else width
    return rows, width // block, block


def _round_blocks(blocks: FloatArray, largest: FloatArray) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float16]]:
    """Return integers, and the scales that map ``largest`` of each block to -8."""
    scales = (largest / -INT4_ZERO).astype(np.float16)
    scales = np.where(scales == 0, np.float16(1.0), scales)
    return np.rint(blocks / scales.astype(np.float32)).clip(-INT4_ZERO, INT4_ZERO - 1).astype(np.int8), scales


def _squared_error(
    blocks: FloatArray, integers: npt.NDArray[np.int8], scales: npt.NDArray[np.float16]
) -> FloatArray:
    """Return the squared error of each block: ``(V, blocks, 1)``."""
    error: FloatArray = np.square(integers * scales.astype(np.float32) - blocks).sum(axis=-1, keepdims=True)
    return error
