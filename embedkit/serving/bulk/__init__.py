"""Bulk encoding of Parquet to Parquet with embeddings, in shards, on one machine or several.

Requires ``pip install "embedkit-onnx[bulk]"``; the engine ``ray`` requires ``embedkit-onnx[ray]``.
"""

from __future__ import annotations

from embedkit.extras import require

require("pyarrow.parquet", extra="bulk")

from embedkit.serving.bulk.encoding import BulkEncoding, Cost  # noqa: E402 - after the error for a missing pyarrow
from embedkit.serving.bulk.shard_encoder import Job  # noqa: E402

__all__ = ["BulkEncoding", "Cost", "Job"]
