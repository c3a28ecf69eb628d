"""Projection of embeddings to two dimensions, for a map."""

from __future__ import annotations

import numpy as np

from embedkit.protocols import FloatArray


def to_plane(embeddings: FloatArray) -> tuple[FloatArray, float]:
    """Project embeddings to their two principal axes, each from -1 to 1.

    Args:
        embeddings: ``(N, D) float32``.

    Returns:
        ``(N, 2) float32``, and the share of the variance along the two axes. The sign of an axis is chosen so that
        the most distant point is positive, so that equal embeddings give an equal map.
    """
    points = np.zeros((len(embeddings), 2), dtype=np.float32)
    if not len(embeddings):
        return points, 0.0
    centred = embeddings.astype(np.float64) - embeddings.mean(axis=0, dtype=np.float64)
    variances, axes = np.linalg.eigh(centred.T @ centred)
    found = centred @ axes[:, ::-1][:, :2]
    points[:, : found.shape[1]] = found
    farthest = points[np.abs(points).argmax(axis=0), np.arange(2)]
    points /= np.where(farthest == 0, 1, farthest)
    total = float(variances.sum())
    return points, float(variances[::-1][:2].sum()) / total if total > 0 else 0.0
