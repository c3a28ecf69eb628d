"""Memory of the workers of `embedkit serve`, in two versions of embedkit.

    git worktree add ../before REV
    python benchmarks/serve/memory.py ../before . --models tiny mini.onnx --workers 4

Prints, for each version and model, the memory that a worker has for itself (USS), its share of the memory that
several processes have mapped (PSS), and all that it has mapped (RSS), in MB: means over the workers, after
requests to all of them. Linux only.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import urllib.request
from pathlib import Path

from started import family

REQUESTS = 64
FIELDS = {"USS": ("Private_Clean", "Private_Dirty"), "PSS": ("Pss",), "RSS": ("Rss",)}


def measure(tree: Path, model: str, workers: int) -> dict[str, float]:
    """Return the mean memory of the workers in MB."""
    arguments = ["--port", "0", "--workers", str(workers), "--threads", "1", "--set", "drain_delay_s=0"]
    process = subprocess.Popen(
        [sys.executable, "-m", "embedkit", "serve", model, *arguments],
        stderr=subprocess.PIPE,
        text=True,
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree.resolve()), "OMP_NUM_THREADS": "1"},
    )
    try:
        assert process.stderr is not None
        while '"listening"' not in (line := process.stderr.readline()):
            if not line:
                raise SystemExit("the server did not start")
        url = json.loads(line)["url"]
        for number in range(REQUESTS):
            body = json.dumps({"inputs": [f"The bees dance at noon, for the {number}th time."] * 16}).encode()
            request = urllib.request.Request(f"{url}/embed", body, {"content-type": "application/json"})  # noqa: S310 - ours
            urllib.request.urlopen(request, timeout=60).close()  # noqa: S310 - ours
        found = [memory_of(worker) for worker in family(process.pid)[1:]]
        return {name: round(statistics.mean(each[name] for each in found), 1) for name in FIELDS}
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)


def memory_of(pid: int) -> dict[str, float]:
    """Return the memory of a process in MB."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()[1:]
    kb = {line.partition(":")[0]: int(line.split()[1]) for line in lines}
    return {name: sum(kb[part] for part in parts) * 1024 / 1e6 for name, parts in FIELDS.items()}


def main() -> None:
    """Measure each version with each model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trees", nargs="+", type=Path, help="folders that contain embedkit/, the older first")
    parser.add_argument("--models", nargs="+", default=["tiny"], help="names or paths of bundles")
    parser.add_argument("--workers", type=int, default=4)
    arguments = parser.parse_args()
    print("| model | version | USS, MB | PSS, MB | RSS, MB |")
    print("| --- | --- | ---: | ---: | ---: |")
    for model in arguments.models:
        for tree in arguments.trees:
            found = measure(tree, model, arguments.workers)
            print(
                f"| {Path(model).stem} | {tree} | {' | '.join(str(each) for each in found.values())} |", flush=True
            )


if __name__ == "__main__":
    main()
