"""The searches of `filters.py` in LanceDB and in Qdrant's local mode, in environments of their own.

    python benchmarks/search/peers.py FOLDER RECALL

Those that are installed take part. LanceDB gets the smallest number of probed clusters with which it reaches the
recall wanted, for each filter. Qdrant's local mode, which its makers advise for up to 20,000 points, gets two
minutes to take the rows. usearch does not take part: it has no filters in Python.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

try:
    import lancedb
    import pyarrow as pa
except ImportError:
    lancedb = None
try:
    from qdrant_client import QdrantClient, models
except ImportError:
    QdrantClient = None

K = 10
QUERIES = 50
SHARES = (100, 1, 10, 50)
UPLOAD_S = 120
PROBES = (4, 8, 16, 32, 64, 128, 256, 512)


def main() -> None:
    """Print the searches as JSON."""
    folder, target = Path(sys.argv[1]), float(sys.argv[2])
    rows = np.load(folder / "rows.npy", mmap_mode="r")
    buckets, queries = np.load(folder / "buckets.npy"), np.load(folder / "queries.npy")[:QUERIES]
    truth = np.load(folder / "truth.npy")[:, :QUERIES]
    searches, notes = [], []
    if lancedb is not None:
        searches += lance(folder, rows, buckets, queries, truth, target)
    if QdrantClient is not None:
        found, note = qdrant(rows, buckets, queries, truth)
        searches += found
        notes.append(note)
    print(json.dumps({"searches": searches, "notes": notes}))


def lance(
    folder: Path, rows: Any, buckets: Any, queries: Any, truth: Any, target: float
) -> Iterator[dict[str, Any]]:
    """LanceDB with IVF-PQ of half a byte for two dimensions, refined, as our `ivf-pq`."""
    database = lancedb.connect(folder / "lance")
    if "rows" not in database.table_names():
        size = 65_536

        def batches() -> Iterator[Any]:
            for start in range(0, len(rows), size):
                part = np.ascontiguousarray(rows[start : start + size])
                vectors = pa.FixedSizeListArray.from_arrays(pa.array(part.ravel()), part.shape[1])
                numbers = np.arange(start, start + len(part))
                yield pa.RecordBatch.from_arrays(
                    [pa.array(numbers), pa.array(buckets[start : start + size]), vectors],
                    ["id", "bucket", "vector"],
                )

        schema = next(batches()).schema
        table = database.create_table("rows", batches(), schema=schema)
        table.create_index(
            metric="cosine", num_partitions=round(len(rows) ** 0.5), num_sub_vectors=rows.shape[1] // 4
        )
        table.create_scalar_index("bucket")
    table = database.open_table("rows")
    for share, expected in zip(SHARES, truth, strict=True):
        for probes in PROBES:

            def search(query: Any, share: int = share, probes: int = probes) -> set[int]:
                asked = table.search(query).nprobes(probes).refine_factor(10).limit(K)
                if share < 100:
                    asked = asked.where(f"bucket < {share}", prefilter=True)
                return {each["id"] for each in asked.select(["id", "_distance"]).to_list()}

            result = timed("LanceDB", share, search, queries, expected)
            if result["recall"] >= target or probes == PROBES[-1]:
                yield result
                break


def qdrant(rows: Any, buckets: Any, queries: Any, truth: Any) -> tuple[list[dict[str, Any]], str]:
    """Qdrant's local mode, in memory, which scans all points exactly; no searches if it cannot take all rows."""
    client = QdrantClient(":memory:")
    client.create_collection("rows", models.VectorParams(size=rows.shape[1], distance=models.Distance.DOT))
    started, done = time.perf_counter(), 0
    while done < len(rows) and time.perf_counter() - started < UPLOAD_S:
        part = range(done, min(done + 1000, len(rows)))
        points = [
            models.PointStruct(id=n, vector=rows[n].tolist(), payload={"bucket": int(buckets[n])}) for n in part
        ]
        client.upsert("rows", points)
        done = part.stop
    upload_s = time.perf_counter() - started
    note = f"Qdrant's local mode takes {done:,} of {len(rows):,} rows in {upload_s:.0f} s"
    if done < len(rows):
        return [], note
    searches = []
    for share, expected in zip(SHARES, truth, strict=True):
        condition = models.FieldCondition(key="bucket", range=models.Range(lt=share))
        chosen = None if share == 100 else models.Filter(must=[condition])

        def search(query: Any, chosen: Any = chosen) -> set[int]:
            return {
                hit.id for hit in client.query_points("rows", query.tolist(), limit=K, query_filter=chosen).points
            }

        searches.append(timed("Qdrant, local mode", share, search, queries, expected))
    return searches, note


def timed(name: str, share: int, search: Callable[[Any], set[int]], queries: Any, expected: Any) -> dict[str, Any]:
    """Recall and median milliseconds of queries one by one, after a few that do not count."""
    for query in queries[:3]:
        search(query)
    seconds, hits = [], []
    for query in queries:
        started = time.perf_counter()
        hits.append(search(query))
        seconds.append(time.perf_counter() - started)
    recall = float(np.mean([len(one & {*map(int, other)}) / K for one, other in zip(hits, expected, strict=True)]))
    return {"name": name, "share": share, "recall": recall, "ms": 1e3 * statistics.median(seconds)}


if __name__ == "__main__":
    main()
