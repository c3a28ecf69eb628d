"""Bulk encoding: Parquet in, Parquet with embeddings out, shard by shard, on one machine or on many.

Needs ``pip install "embedkit-onnx[bulk]"``, and the engine ``ray`` needs ``embedkit-onnx[ray]``.
"""

from __future__ import annotations

from embedkit.extras import require

require("pyarrow.parquet", extra="bulk")

from embedkit.serving.bulk.encoding import BulkEncoding, Cost  # noqa: E402 - after the sentence for who lacks pyarrow
from embedkit.serving.bulk.job import Job  # noqa: E402

__all__ = ["BulkEncoding", "Cost", "Job"]
