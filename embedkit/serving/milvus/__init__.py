"""Collections and indexes on a Milvus server, or in a file of Milvus Lite: what has outgrown one machine.

Needs ``pip install "embedkit-onnx[milvus]"``.
"""

from __future__ import annotations

from embedkit.extras import require

require("pymilvus", extra="milvus")

from embedkit.serving.milvus.collection import MilvusCollection  # noqa: E402 - after the sentence for who lacks it
from embedkit.serving.milvus.index import MilvusIndex  # noqa: E402

__all__ = ["MilvusCollection", "MilvusIndex"]
