"""Collections under filters: recall and time beside other stores, memory, and how long writers wait.

    python benchmarks/search/filters.py --sizes 100000 1000000 --peers /path/to/venv/bin/python

Documents have a field `bucket`, a random number below 100, so `bucket < 1`, `< 10` and `< 50` leave 1 %, 10 % and
50 % of them. Rows are random and clustered (`vectors.py`). A collection is built once in `--folder`, and measured
in a fresh process that holds nothing else. Queries are searched one at a time with one thread; times are medians.
Recall is counted against an exact search. LanceDB takes part if `--peers` names a Python that has it.

Writes results-filters.json and results-filters.md beside this file.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits

sys.path.insert(0, str(Path(__file__).parent))
from vectors import clustered

from embedkit.serving.retrieval import Collection

HERE = Path(__file__).parent
K = 10
QUERIES = 200
SHARES = (1, 10, 50)
WRITES_S = 0.25  # pause between two writes

FloatArray = npt.NDArray[np.float32]


class Given:
    """An encoder whose embeddings are there already; texts are their numbers."""

    name, fingerprint, max_length = "given", "0" * 64, 512

    def __init__(self, rows: FloatArray) -> None:
        self.rows, self.dimension = rows, rows.shape[1]

    def encode(self, texts: Sequence[str], /) -> FloatArray:
        """Embed texts: ``(N, D) float32, unit rows``."""
        return np.asarray(self.rows[[int(text) for text in texts]])


def main() -> None:
    """Build, measure and write the results after each size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--kind", default="auto", help="of index")
    parser.add_argument("--peers", type=Path, help="a Python with lancedb")
    parser.add_argument("--folder", type=Path, help="keeps the collections; a temporary one by default")
    parser.add_argument("--name", default="filters", help="of the results")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    faiss.omp_set_num_threads(1)
    if arguments.measure:
        with threadpool_limits(1):
            print(json.dumps(measured(arguments.measure)))
        return
    results: dict[str, Any] = {"processors": os.cpu_count(), "load before": os.getloadavg()[0], "sizes": []}
    with tempfile.TemporaryDirectory() as temporary:
        for size in arguments.sizes:
            folder = (arguments.folder or Path(temporary)) / f"{arguments.kind}-{size}"
            results["sizes"].append(size_results(folder, size, arguments))
            write(results, HERE / f"results-{arguments.name}")


def size_results(folder: Path, size: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Ours and the peers' of one size."""
    build_s = prepare(folder, size, arguments.kind)
    found = {"rows": size, "build_s": build_s, **child([sys.executable, __file__, "--measure", str(folder)])}
    if arguments.peers:
        target = min(each["recall"] for each in found["searches"])
        peer = [str(arguments.peers), str(HERE / "peers.py"), str(folder), str(target)]
        found["searches"] += child(peer)["searches"]
    return found


def child(command: Sequence[str]) -> dict[str, Any]:
    """The JSON that a process prints last."""
    done = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    answer: dict[str, Any] = json.loads(done.stdout.strip().rpartition("\n")[2])
    return answer


def prepare(folder: Path, size: int, kind: str) -> float | None:
    """Write rows, queries, buckets, the true neighbours and the collection, unless they are there."""
    if (folder / "truth.npy").exists():
        return None
    folder.mkdir(parents=True, exist_ok=True)
    rows, queries = clustered(size, QUERIES)
    buckets = np.random.default_rng(5).integers(100, size=size)
    np.save(folder / "rows.npy", rows)
    np.save(folder / "queries.npy", queries)
    np.save(folder / "buckets.npy", buckets)
    del rows
    mapped = np.load(folder / "rows.npy", mmap_mode="r")
    faiss.omp_set_num_threads(len(os.sched_getaffinity(0)))
    started = time.perf_counter()
    documents = ({"id": f"d{n}", "text": str(n), "bucket": int(buckets[n]), "at": n} for n in range(size))
    Collection.build(documents, encoder=Given(mapped), path=folder / "idx", index=kind)
    build_s = time.perf_counter() - started
    np.save(
        folder / "truth.npy", np.stack([nearest(mapped, queries, buckets < share) for share in (100, *SHARES)])
    )
    return build_s


def nearest(rows: FloatArray, queries: FloatArray, allowed: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """The nearest of the rows allowed, block by block."""
    scores, best = np.empty((len(queries), 0), np.float32), np.empty((len(queries), 0), np.int64)
    for start in range(0, len(rows), 1_000_000):
        numbers = start + np.flatnonzero(allowed[start : start + 1_000_000])
        found, places = faiss.knn(queries, np.asarray(rows[numbers]), K, metric=faiss.METRIC_INNER_PRODUCT)
        scores, best = np.hstack((scores, found)), np.hstack((best, numbers[places]))
        order = np.argsort(-scores, axis=1)[:, :K]
        scores, best = np.take_along_axis(scores, order, 1), np.take_along_axis(best, order, 1)
    return best


def measured(folder: Path) -> dict[str, Any]:
    """Searches, memory and writes of a collection, in this process."""
    queries, truth = np.load(folder / "queries.npy"), np.load(folder / "truth.npy")
    before = memory()
    started = time.perf_counter()
    collection = Collection.open(folder / "idx")
    opened = time.perf_counter()
    collection.search_embeddings(queries[:1], K, filter={"bucket": {"lt": 50}})
    filtered = time.perf_counter()
    searches = list(searched(collection, queries, truth))
    after = memory()
    files = {
        path.name: path.stat().st_size / 1e6 for path in (folder / "idx").rglob("*.*") if path.parent.name != "idx"
    }
    return {
        "kinds": ", ".join(collection.manifest.kinds),
        "open_s": opened - started,
        "first filter_s": filtered - opened,
        "searches": searches,
        "own memory_MB": after["RssAnon"] - before["RssAnon"],
        "mapped pages in memory_MB": after["RssFile"] - before["RssFile"],
        "index_MB": sum(size for name, size in files.items() if name.endswith(".faiss") or name == "signs.npy"),
        "columns_MB": sum(size for name, size in files.items() if name.startswith("columns")),
        "embeddings_MB": files["vectors.npy"],
        **(writes(folder) if len(truth) and len(collection) <= 1_000_000 else {}),
    }


def searched(
    collection: Collection, queries: FloatArray, truth: npt.NDArray[np.int64]
) -> Iterator[dict[str, Any]]:
    """Recall and milliseconds for a query, without a filter and with each."""
    for expected, share in zip(truth, (100, *SHARES), strict=True):
        chosen = None if share == 100 else {"bucket": {"lt": share}}
        seconds, hits = [], []
        for query in queries:
            started = time.perf_counter()
            (found,) = collection.search_embeddings(query[np.newaxis], K, filter=chosen)
            seconds.append(time.perf_counter() - started)
            hits.append({int(hit.id[1:]) for hit in found})
        recall = np.mean([len(one & {*other}) / K for one, other in zip(hits, expected, strict=True)])
        yield {
            "name": "embedkit",
            "share": share,
            "recall": float(recall),
            "ms": 1e3 * statistics.median(seconds),
        }


def writes(folder: Path) -> dict[str, float]:
    """How long an upsert of one document takes, alone and while all is compacted, in a copy of the collection."""
    rows = np.load(folder / "rows.npy", mmap_mode="r")
    shutil.rmtree(folder / "written", ignore_errors=True)
    shutil.copytree(
        folder / "idx", folder / "written", copy_function=os.link
    )  # files of a collection never change
    collection = Collection.open(folder / "written", encoder=Given(rows))

    def write(number: int) -> float:
        started = time.perf_counter()
        collection.upsert([{"id": f"new{number}", "text": "0", "bucket": 0, "at": 0}], merge=False)
        return time.perf_counter() - started

    alone = [write(number) for number in range(10)]
    compaction = threading.Thread(target=collection.compact)
    compaction.start()
    beside = []
    while compaction.is_alive():
        beside.append(write(10 + len(beside)))
        time.sleep(WRITES_S)
    compaction.join()
    return {
        "write alone_ms": 1e3 * statistics.median(alone),
        "write during compaction_ms": 1e3 * statistics.median(beside),
        "longest write alone_ms": 1e3 * max(alone),
        "longest write during compaction_ms": 1e3 * max(beside),
    }


def memory() -> dict[str, float]:
    """Resident memory of this process in MB, its own and of mapped files."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    fields = (line.partition(":") for line in lines)
    return {name: int(value.split()[0]) / 1e3 for name, _, value in fields if name in ("RssAnon", "RssFile")}


def write(results: dict[str, Any], path: Path) -> None:
    """Save what is there so far."""
    path.with_suffix(".json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    lines = [f"- {name}: {value}" for name, value in results.items() if name != "sizes"]
    for size in results["sizes"]:
        names = list(dict.fromkeys(each["name"] for each in size["searches"]))
        cells = {
            (each["name"], each["share"]): f"{each['ms']:.2f} ({each['recall']:.3f})" for each in size["searches"]
        }
        lines += ["", f"## {size['rows']:,} x 128", "", "Milliseconds for one query, and recall:", ""]
        lines += ["| | no filter | 1 % | 10 % | 50 % |", "|---|---:|---:|---:|---:|"]
        lines += [f"| {name} | {' | '.join(cells.get((name, s), '') for s in (100, *SHARES))} |" for name in names]
        told = {name: value for name, value in size.items() if name not in ("searches", "rows")}
        lines += [
            "",
            *(
                f"- {name}: {value:,.3g}" if isinstance(value, float) else f"- {name}: {value}"
                for name, value in told.items()
            ),
        ]
    path.with_suffix(".md").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
