"""Collections and indexes on a Milvus server or in a Milvus Lite file, for data beyond a single machine.

Needs ``pip install "embedkit-onnx[milvus]"``. A collection is opened as ``Collection.open("milvus:URI#NAME")``.
"""

from __future__ import annotations

from embedkit.extras import require

require("pymilvus", extra="milvus")

from embedkit.serving.milvus.index import MilvusIndex  # noqa: E402 - after the sentence for who lacks it

__all__ = ["MilvusIndex"]
