"""Recall and speed of every kind of index, compared with plain FAISS and other libraries, and collection overhead.

    python benchmarks/search/run.py --sizes 100000 1000000 --turns 3
    python benchmarks/search/run.py --sizes 100000 --texts FILE.txt --model tiny --name texts

Contenders of a group search the same queries in turns, so that other load on the machine affects all alike;
*embedkit takes* is the median over the turns of embedkit's time relative to the other's. A turn takes about half a
*second or 30
queries: the slower a group, the fewer queries it gets. Recall is relative to an exact search. hnswlib and usearch
are included if installed. Writes results-NAME.json and results-NAME.md next to this file.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from threadpoolctl import threadpool_limits

sys.path.insert(0, str(Path(__file__).parent))
from contenders import Contender, FloatArray, K, announce, contenders, resident_megabytes
from vectors import Given, clustered, embedded

from embedkit.serving.retrieval import Collection

HERE = Path(__file__).parent
QUERIES = 1_000
SINGLE = 200
LEAST = 30
TURN_S = 0.5


def main() -> None:
    """Measure every size and write the results after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--texts", type=Path, help="a file of texts to embed instead of random rows")
    parser.add_argument("--model", default="tiny", help="what embeds them")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--name", default="clustered", help="of the results")
    parser.add_argument("--output", type=Path, default=HERE, help="folder of the results")
    arguments = parser.parse_args()
    foretell(arguments.sizes)
    results: dict[str, Any] = {"machine": machine(arguments.threads), "sizes": []}
    for size in arguments.sizes:
        if arguments.texts:
            rows, queries = embedded(arguments.texts, arguments.model, size, QUERIES)
        else:
            rows, queries = clustered(size, QUERIES)
        results["sizes"].append(measure(rows, queries, arguments))
        write(results, arguments.output / f"results-{arguments.name}")


def foretell(sizes: Sequence[int]) -> None:
    """Print the estimated cost."""
    minutes = sum(1 + 11 * size / 1e6 for size in sizes)
    memory = 1 + 4 * max(sizes) / 1e6
    print(f"takes about {minutes:.0f} minutes on two processors and {memory:.1f} GB of memory", file=sys.stderr)


def machine(threads: int) -> dict[str, Any]:
    """Describe the machine."""
    return {
        "threads": threads,
        "processors": os.cpu_count(),
        "load before": os.getloadavg()[0],
        "python": platform.python_version(),
        "faiss": faiss.__version__,
        "numpy": np.__version__,
    }


def measure(rows: FloatArray, queries: FloatArray, arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure all contenders over some rows, and a collection of them."""
    faiss.omp_set_num_threads(os.cpu_count() or 1)
    nearest = faiss.knn(queries, rows, K, metric=faiss.METRIC_INNER_PRODUCT)[1]
    found: list[dict[str, Any]] = []
    ours: dict[str, Contender] = {}
    for group in contenders(rows, arguments.threads):
        present = {one.name for one in group}
        rivals = {one.rival for one in group if one.rival} - present
        found += compare(group, [ours[name] for name in rivals], queries, nearest, arguments.turns)
        ours |= {one.name: one for one in group if one.name.startswith("embedkit")}
    return {
        "rows": len(rows),
        "dimension": rows.shape[1],
        "contenders": found,
        "collection": collection_costs(rows, queries, arguments),
    }


def compare(
    group: Sequence[Contender], more: Sequence[Contender], queries: FloatArray, nearest: Any, turns: int
) -> list[dict[str, Any]]:
    """Let a group search in turns; ``more`` take part, but already have results."""
    runners = {one.name: one for one in (*more, *group)}
    queries = queries[: affordable([one.search for one in runners.values()], queries)]
    alone = queries[
        : affordable([functools.partial(one_by_one, one) for one in runners.values()], queries, SINGLE)
    ]
    batch_s = in_turns({name: (lambda one=one: one.search(queries)) for name, one in runners.items()}, turns)
    single_s = in_turns({name: (lambda one=one: one_by_one(one, alone)) for name, one in runners.items()}, turns)
    found = []
    for one in group:
        rows = one.search(queries)
        result = {
            "name": one.name,
            "recall": float(
                np.mean([len({*f} & {*n}) / K for f, n in zip(rows, nearest[: len(rows)], strict=True)])
            ),
            "queries/s": len(queries) / statistics.median(batch_s[one.name]),
            "queries/s one by one": len(alone) / statistics.median(single_s[one.name]),
            "build_s": one.build_s,
            "megabytes": one.megabytes,
        }
        if one.rival in runners:
            result["embedkit takes"] = ratio(batch_s[one.rival], batch_s[one.name])
            result["embedkit takes one by one"] = ratio(single_s[one.rival], single_s[one.name])
        found.append(result)
        print(json.dumps(result), flush=True)
    return found


def affordable(searches: Sequence[Callable[[FloatArray], Any]], queries: FloatArray, most: int = QUERIES) -> int:
    """Return the number of queries that the slowest completes in about a turn's time, at least 30."""
    few = {str(place): functools.partial(search, queries[:5]) for place, search in enumerate(searches)}
    slowest_s = max(map(statistics.median, in_turns(few, 3).values()))
    return min(most, max(LEAST, int(5 * TURN_S / slowest_s)))


def in_turns(runners: dict[str, Callable[[], Any]], turns: int) -> dict[str, list[float]]:
    """Return the seconds of each turn, after a warm-up turn."""
    seconds: dict[str, list[float]] = {name: [] for name in runners}
    for turn in range(turns + 1):
        for name, run in runners.items():
            started = time.perf_counter()
            run()
            if turn:
                seconds[name].append(time.perf_counter() - started)
    return seconds


def one_by_one(contender: Contender, queries: FloatArray) -> None:
    """Search for queries one by one."""
    for place in range(len(queries)):
        contender.search(queries[place : place + 1])


def ratio(seconds: Sequence[float], others: Sequence[float]) -> float:
    """Return the median over the turns of the ratio of times."""
    return statistics.median(one / other for one, other in zip(seconds, others, strict=True))


def collection_costs(rows: FloatArray, queries: FloatArray, arguments: argparse.Namespace) -> dict[str, Any]:
    """Time building, opening, upserting, filtering and searching a collection of the default kind for its size."""
    announce(f"a collection of {len(rows):,}")
    documents = ({"id": f"d{place}", "text": str(place), "year": 1990 + place % 40} for place in range(len(rows)))
    with tempfile.TemporaryDirectory() as folder:
        before = time.perf_counter()
        Collection.build(documents, encoder=Given(rows), path=folder + "/idx")
        built = time.perf_counter()
        collection = Collection.open(folder + "/idx", encoder=Given(rows))
        opened = time.perf_counter()
        collection.upsert([{"id": "new", "text": "0", "year": 2020}])
        upserted = time.perf_counter()
        collection.search_embeddings(queries[:1], K, filter={"year": {"gte": 2020}})
        filtered = time.perf_counter()
        searches = {
            "all": lambda: collection.search_embeddings(queries, K),
            "filtered": lambda: collection.search_embeddings(queries[:LEAST], K, filter={"year": {"gte": 2020}}),
        }
        with threadpool_limits(arguments.threads):
            search_s = in_turns(searches, arguments.turns)
        kinds = collection.manifest.kinds
    return {
        "kinds": ", ".join(kinds),
        "build_s": built - before,
        "open_s": opened - built,
        "upsert of one_s": upserted - opened,
        "first filter_s": filtered - upserted,
        "queries/s with documents": len(queries) / statistics.median(search_s["all"]),
        "queries/s filtered to a quarter": LEAST / statistics.median(search_s["filtered"]),
        "resident_megabytes": resident_megabytes(),
    }


def write(results: dict[str, Any], path: Path) -> None:
    """Save the results so far."""
    path.with_suffix(".json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    lines = [f"- {name}: {value}" for name, value in results["machine"].items()]
    for size in results["sizes"]:
        lines += ["", f"## {size['rows']:,} x {size['dimension']}", "", *table(size["contenders"]), ""]
        lines += [f"- collection, {name}: {figure(value)}" for name, value in size["collection"].items()]
    path.with_suffix(".md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def table(found: Sequence[dict[str, Any]]) -> list[str]:
    """Return one line for each contender."""
    speeds = [f"{name}{alone}" for alone in ("", " one by one") for name in ("queries/s", "embedkit takes")]
    names = ["recall", *speeds, "build_s", "megabytes"]
    lines = [f"| | {' | '.join(names)} |", "|---|" + "---:|" * len(names)]
    return lines + [f"| {one['name']} | {' | '.join(figure(one.get(name)) for name in names)} |" for one in found]


def figure(value: Any) -> str:
    """Format a number for people."""
    if not isinstance(value, float):
        return "" if value is None else str(value)
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


if __name__ == "__main__":
    main()
