"""A Ray cluster of two nodes on this machine loses one in the middle of a bulk encoding.

    python benchmarks/faults/lost_node.py

The output must equal that of a single process, byte for byte. Exits with 1 if it does not.
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import ray
from pyarrow import parquet
from ray.cluster_utils import Cluster

from embedkit.serving.bulk import BulkEncoding

ROWS, ROWS_PER_SHARD, LOST_AFTER = 8_000, 50, 20
WORDS = ["a", "dog", "in", "the", "garden", "music", "sea", "rain", "child", "horse"]


def main() -> None:
    """Encode in one process and on a cluster that loses a node, and compare."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        words = np.random.default_rng(0).choice(WORDS, size=(ROWS, 12))
        parquet.write_table(pa.table({"text": [" ".join(row) for row in words]}), folder / "in.parquet")
        prepare(folder, "alone").run()
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
        node = cluster.add_node(num_cpus=1)
        ray.init(address=cluster.address, logging_level="ERROR", log_to_driver=False)
        threading.Thread(target=lose, args=(cluster, node, folder / "cluster"), daemon=True).start()
        prepare(folder, "cluster").run(engine="ray")
        alive = [bool(each["Alive"]) for each in ray.nodes()]
        ray.shutdown()
        cluster.shutdown()
        same = digests(folder / "cluster") == digests(folder / "alone")
    print(f"{alive.count(False)} of {len(alive)} nodes lost; the bytes are {'equal' if same else 'different'}")
    sys.exit(0 if same and not all(alive) else 1)


def prepare(folder: Path, output: str) -> BulkEncoding:
    """Prepare the same encoding into another folder."""
    return BulkEncoding.prepare(
        folder / "in.parquet", folder / output, model="tiny", rows_per_shard=ROWS_PER_SHARD
    )


def lose(cluster: Cluster, node: object, output: Path) -> None:
    """Kill a node once some shards exist."""
    while len(list(output.glob("shard-*"))) < LOST_AFTER:
        time.sleep(0.02)
    cluster.remove_node(node, allow_graceful=False)
    print(f"killed a node when {len(list(output.glob('shard-*')))} of {ROWS // ROWS_PER_SHARD} shards existed")


def digests(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of every file."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


if __name__ == "__main__":
    main()
