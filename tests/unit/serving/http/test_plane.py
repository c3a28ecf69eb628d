"""The map's axes: the two directions along which embeddings vary most."""

from __future__ import annotations

import numpy as np
import pytest

from embedkit.serving.http.collection_service import to_plane


def test_axes_are_the_principal_ones():
    rows = np.random.default_rng(1).standard_normal((50, 6)).astype(np.float32) * [9, 1, 5, 1, 1, 1]
    points, explained = to_plane(rows.astype(np.float32))
    centred = rows - rows.mean(axis=0)
    _, lengths, axes = np.linalg.svd(centred, full_matrices=False)
    for number in (0, 1):
        assert abs(np.corrcoef(points[:, number], centred @ axes[number])[0, 1]) == pytest.approx(1, abs=1e-5)
    assert explained == pytest.approx((lengths[:2] ** 2).sum() / (lengths**2).sum(), rel=1e-5)
    assert points.max(axis=0).tolist() == [1, 1]


@pytest.mark.parametrize("count", [0, 1, 3])
def test_embeddings_without_variance_share_a_point(count):
    points, explained = to_plane(np.ones((count, 4), dtype=np.float32))
    np.testing.assert_array_equal(points, np.zeros((count, 2)))
    assert explained == 0
