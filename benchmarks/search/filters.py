"""Collections under filters: recall and time beside other stores, memory, and how long writers wait.

    python benchmarks/search/filters.py --sizes 10000 100000 1000000 --peers /path/to/venv/bin/python
    python benchmarks/search/filters.py --sizes 10000000 --kinds ivf-pq --efforts 1 4 --name large

Documents have a field `bucket`, a random number below 100, so `bucket < 1`, `< 10` and `< 50` leave 1 %, 10 % and
50 % of them. Rows are random and clustered (`vectors.py`), written to a `.npy` file and given to
`Collection.build` as existing embeddings. A collection is built in one fresh process and measured in another, so
that neither holds anything else. Queries are searched one at a time with one thread; times are medians. Recall is
counted against an exact search. LanceDB and Qdrant's local mode take part if `--peers` names Pythons that have
them. Writes beside a compaction are measured up to 10^6 documents.

Every step leaves its result in `--folder`, so an interrupted run continues. Writes results-NAME.json and
results-NAME.md beside this file.
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
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits

sys.path.insert(0, str(Path(__file__).parent))
from vectors import FloatArray, Given, Topics

from embedkit.serving.retrieval import Collection

HERE = Path(__file__).parent
K = 10
DIMENSION = 128
QUERIES = 200
SHARES = (1, 10, 50)
WRITES_S = 0.25  # pause between two writes
SAMPLE_S = 0.05  # pause between two looks at the memory of a process
LARGEST_WRITTEN = 1_000_000


def given(folder: Path) -> Given:
    """The encoder of the rows in a folder."""
    return Given(np.load(folder / "rows.npy", mmap_mode="r"))


def main() -> None:
    """Build, measure and write the results after each collection."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--kinds", nargs="+", default=["auto"], help="of index")
    parser.add_argument("--efforts", type=float, nargs="+", default=[1.0])
    parser.add_argument("--peers", type=Path, nargs="+", help="Pythons with lancedb or qdrant-client")
    parser.add_argument("--folder", type=Path, help="keeps the collections; a temporary one by default")
    parser.add_argument("--name", default="filters", help="of the results")
    parser.add_argument("--build", nargs=2, metavar=("FOLDER", "KIND"), help=argparse.SUPPRESS)
    parser.add_argument("--measure", nargs=2, metavar=("FOLDER", "KIND"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    faiss.omp_set_num_threads(1)
    if arguments.build:
        print(json.dumps(built(Path(arguments.build[0]), arguments.build[1])))
        return
    if arguments.measure:
        with threadpool_limits(1):
            print(json.dumps(measured(Path(arguments.measure[0]), arguments.measure[1], arguments.efforts)))
        return
    foretell(arguments.sizes, arguments.kinds)
    results: dict[str, Any] = {"processors": os.cpu_count(), "load before": os.getloadavg()[0], "collections": []}
    with tempfile.TemporaryDirectory() as temporary:
        for size in arguments.sizes:
            folder = (arguments.folder or Path(temporary)) / str(size)
            prepare(folder, size)
            for kind in arguments.kinds:
                results["collections"].append(figures(folder, kind, arguments))
                write(results, HERE / f"results-{arguments.name}")


def foretell(sizes: Sequence[int], kinds: Sequence[str]) -> None:
    """Print the estimated cost."""
    minutes = sum(1 + size / 1e6 * (1 + 4 * len(kinds)) for size in sizes)
    disk = sum(size * 4 * DIMENSION * (1 + 1.6 * len(kinds)) for size in sizes) / 1e9
    memory = 1 + 0.4 * max(sizes) / 1e6
    print(f"about {minutes:.0f} minutes, {disk:.1f} GB of disk, {memory:.1f} GB of memory", file=sys.stderr)


def figures(folder: Path, kind: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Ours and the peers' over the rows in a folder."""
    recorded = folder / f"built-{kind}.json"
    if not recorded.exists():
        shutil.rmtree(folder / f"idx-{kind}", ignore_errors=True)
        found, peak = child([sys.executable, __file__, "--build", str(folder), kind])
        recorded.write_text(json.dumps({**found, "build memory_MB": peak}))
    efforts = map(str, arguments.efforts)
    measure = [sys.executable, __file__, "--measure", str(folder), kind, "--efforts", *efforts]
    found = {"rows": int(folder.name), **json.loads(recorded.read_text()), **child(measure)[0]}
    notes: list[str] = []
    if arguments.peers:
        target = min(each["recall"] for each in found["searches"])
        for python in arguments.peers:
            peers, _ = child([str(python), str(HERE / "peers.py"), str(folder), str(target)])
            found["searches"] += peers["searches"]
            notes += peers["notes"]
    return {**found, "notes": notes}


def child(command: Sequence[str]) -> tuple[dict[str, Any], float]:
    """The JSON that a process prints last, and the most memory of its own that it had, in MB."""
    most = 0.0
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        while process.poll() is None:
            most = max(most, memory(process.pid).get("RssAnon", 0.0))
            time.sleep(SAMPLE_S)
        output = process.stdout.read() if process.stdout else ""
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    return json.loads(output.strip().rpartition("\n")[2]), most


def prepare(folder: Path, size: int) -> None:
    """Write rows, queries, buckets and the true neighbours, unless they are there."""
    if (folder / "truth.npy").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    topics = Topics(size, dimension=DIMENSION)
    rows = np.lib.format.open_memmap(folder / "rows.npy", mode="w+", dtype=np.float32, shape=(size, DIMENSION))
    topics.draw(rows)
    rows.flush()
    queries = np.empty((QUERIES, DIMENSION), dtype=np.float32)
    topics.draw(queries)
    buckets = np.random.default_rng(5).integers(100, size=size)
    np.save(folder / "queries.npy", queries)
    np.save(folder / "buckets.npy", buckets)
    truth = np.stack([nearest(rows, queries, buckets < share) for share in (100, *SHARES)])
    np.save(folder / "truth.npy", truth)


def built(folder: Path, kind: str) -> dict[str, Any]:
    """Build the collection of a kind, in this process."""
    faiss.omp_set_num_threads(len(os.sched_getaffinity(0)))
    buckets, encoder = np.load(folder / "buckets.npy", mmap_mode="r"), given(folder)
    documents = ({"id": f"d{n}", "text": str(n), "bucket": int(each), "at": n} for n, each in enumerate(buckets))
    started = time.perf_counter()
    target = folder / f"idx-{kind}"
    Collection.build(
        documents, encoder=encoder, path=target, index=kind, embeddings=folder / "rows.npy", replace=True
    )
    return {"build_s": time.perf_counter() - started}


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


def measured(folder: Path, kind: str, efforts: Sequence[float]) -> dict[str, Any]:
    """Searches, memory and writes of a collection, in this process."""
    path = folder / f"idx-{kind}"
    queries, truth = np.load(folder / "queries.npy"), np.load(folder / "truth.npy")
    before = memory()
    started = time.perf_counter()
    collection = Collection.open(path)
    opened = time.perf_counter()
    collection.search_embeddings(queries[:1], K, filter={"bucket": {"lt": 50}})
    filtered = time.perf_counter()
    searches = [found for effort in efforts for found in searched(collection, queries, truth, effort)]
    after = memory()
    files = {file.name: file.stat().st_size / 1e6 for file in path.rglob("*") if file.is_file()}
    return {
        "kinds": ", ".join(collection.manifest.kinds),
        "open_s": opened - started,
        "first filter_s": filtered - opened,
        "searches": searches,
        "own memory_MB": after["RssAnon"] - before["RssAnon"],
        "mapped pages in memory_MB": after["RssFile"] - before["RssFile"],
        "index_MB": sum(size for name, size in files.items() if name.endswith(".faiss") or name == "signs.npy"),
        "embeddings_MB": 4e-6 * len(collection) * collection.manifest.dimension,
        "disk_MB": sum(files.values()),
        **(writes(folder, path) if len(collection) <= LARGEST_WRITTEN else {}),
    }


def searched(
    collection: Collection, queries: FloatArray, truth: npt.NDArray[np.int64], effort: float
) -> Iterator[dict[str, Any]]:
    """Recall and milliseconds for a query, without a filter and with each."""
    for expected, share in zip(truth, (100, *SHARES), strict=True):
        chosen = None if share == 100 else {"bucket": {"lt": share}}
        seconds, hits = [], []
        for query in queries:
            started = time.perf_counter()
            (found,) = collection.search_embeddings(query[np.newaxis], K, filter=chosen, effort=effort)
            seconds.append(time.perf_counter() - started)
            hits.append({int(hit.id[1:]) for hit in found})
        recall = np.mean([len(one & {*other}) / K for one, other in zip(hits, expected, strict=True)])
        yield {
            "name": "embedkit" if effort == 1 else f"embedkit, effort {effort:g}",
            "share": share,
            "recall": float(recall),
            "ms": 1e3 * statistics.median(seconds),
        }


def writes(folder: Path, path: Path) -> dict[str, float]:
    """How long an upsert of one document takes, alone and while all is compacted, in a copy of the collection."""
    copy = folder / "written"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(path, copy, copy_function=os.link)  # files of a collection never change
    collection = Collection.open(copy, encoder=given(folder))

    def write(number: int) -> float:
        started = time.perf_counter()
        collection.upsert([{"id": f"new{number}", "text": "0", "bucket": 0, "at": 0}], merge=False)
        return time.perf_counter() - started

    def merge() -> None:
        while collection.merge():
            pass

    alone = [write(number) for number in range(10)]
    compaction = threading.Thread(target=collection.compact)
    compaction.start()
    beside = []
    with ThreadPoolExecutor(1) as merger:  # as the server does after each upsert
        while compaction.is_alive():
            beside.append(write(10 + len(beside)))
            merger.submit(merge)
            time.sleep(WRITES_S)
    return {
        "write alone_ms": 1e3 * statistics.median(alone),
        "write during compaction_ms": 1e3 * statistics.median(beside),
        "writes during compaction": len(beside),
        "longest write alone_ms": 1e3 * max(alone),
        "longest write during compaction_ms": 1e3 * max(beside),
    }


def memory(process: int | str = "self") -> dict[str, float]:
    """Resident memory of a process in MB, its own and of mapped files."""
    lines = Path(f"/proc/{process}/status").read_text(encoding="utf-8").splitlines()
    fields = (line.partition(":") for line in lines)
    return {name: int(value.split()[0]) / 1e3 for name, _, value in fields if name in ("RssAnon", "RssFile")}


def write(results: dict[str, Any], path: Path) -> None:
    """Save what is there so far."""
    path.with_suffix(".json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    lines = [f"- {name}: {value}" for name, value in results.items() if name != "collections"]
    for size in results["collections"]:
        names = list(dict.fromkeys(each["name"] for each in size["searches"]))
        cells = {
            (each["name"], each["share"]): f"{each['ms']:.2f} ({each['recall']:.3f})" for each in size["searches"]
        }
        lines += [
            "",
            f"## {size['rows']:,} x {DIMENSION}, {size['kinds']}",
            "",
            "Milliseconds for one query, and recall:",
            "",
        ]
        lines += ["| | no filter | 1 % | 10 % | 50 % |", "|---|---:|---:|---:|---:|"]
        lines += [f"| {name} | {' | '.join(cells.get((name, s), '') for s in (100, *SHARES))} |" for name in names]
        told = {name: value for name, value in size.items() if name not in ("searches", "rows", "notes")}
        lines += [
            "",
            *(
                f"- {name}: {value:,.3g}" if isinstance(value, float) else f"- {name}: {value}"
                for name, value in told.items()
            ),
            *(f"- {note}" for note in size["notes"]),
        ]
    path.with_suffix(".md").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
