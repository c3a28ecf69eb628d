"""Two versions of `embedkit serve` side by side: the effect of a change on the cost of a request.

    git worktree add ../before REV
    python benchmarks/serve/versions.py ../before . --model tiny --texts texts.txt

Each version is a server on one processor; the load generator (load.py) has another. They take turns. Prints, for
several numbers of texts per request and closed-loop clients, medians of requests per second, of processor time
per request in µs, which other programs disturb less, and of its ratio to the older version's in the same turn.
Linux only.

Versions may have different models of one name; with a file as the model, both run the same network.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from contextlib import ExitStack
from pathlib import Path

from servers import free_port
from started import Started, write_texts

LOADS = ((1, 1), (1, 64), (16, 1), (16, 64))
"""Texts per request, clients."""


def start(tree: Path, model: str) -> Started:
    """Start a server that runs the embedkit of a folder."""
    port = free_port()
    command = ["-m", "embedkit", "serve", model, "--port", str(port), "--threads", "1"]
    return Started(str(tree), port, command, environment={"PYTHONPATH": str(tree.resolve())}, folder=tree)


def main() -> None:
    """Measure both in turns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trees", nargs=2, type=Path, help="folders that contain embedkit/, the older first")
    parser.add_argument("--model", default="tiny", help="a bundled name, or a file")
    parser.add_argument("--texts", required=True, type=Path, help="one text per line, at least 8192")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    arguments = parser.parse_args()
    found: dict[tuple[int, int, str], list[tuple[float, float]]] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        texts = write_texts(arguments.texts, folder)
        job = {"model": Path(arguments.model).stem, "texts": str(texts), "seconds": arguments.seconds}
        file = Path(arguments.model)
        model = str(file.resolve()) if file.is_file() else arguments.model
        versions = [stack.enter_context(start(tree, model)) for tree in arguments.trees]
        for version in versions:
            version.wait()
        for turn in range(arguments.turns + 1):  # the first warms up
            for size, clients in LOADS:
                for version in versions[:: -1 if turn % 2 else 1]:
                    figures = version.measure({**job, "per_request": size, "clients": clients})
                    found.setdefault((size, clients, version.name), []).extend([figures] * bool(turn))
    print("| texts per request | clients | version | requests per s | processor time of a request, µs | ratio |")
    print("| ---: | ---: | --- | ---: | ---: | ---: |")
    for (size, clients, name), turns in found.items():
        rate, spent = (statistics.median(each) for each in zip(*turns, strict=True))
        before = found[size, clients, versions[0].name]
        ratio = statistics.median(now / then for (_, now), (_, then) in zip(turns, before, strict=True))
        print(f"| {size} | {clients} | {name} | {rate:.0f} | {spent:.0f} | {ratio:.3f} |")


if __name__ == "__main__":
    main()
