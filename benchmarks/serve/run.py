"""`embedkit serve` under load, compared with infinity with the same weights.

    python benchmarks/serve/run.py --run RUN --texts FILE FILE --python infinity=VENV/bin/python

--run is a folder written by `embedkit train`; its model is exported as fp32 and int8, and as a
sentence-transformers folder for the others. --texts are files of texts; an equal number from each is sent in
random order. Servers are installed in separate environments: --python SERVER=PYTHON; one that does not start is
skipped and listed. All use the same processors and number of threads; the load generator (load.py) uses the
others, and its limit is measured against canned answers (canned.py).

The throughput of 64 closed-loop clients determines a ladder of offered rates for each server. Requests then arrive
at random (Poisson), whether or not earlier ones were answered, at each rate of the ladder; its last rate is
overload. Servers take turns; figures are medians over turns. The figure to compare is the highest rate of the
ladder at which nothing is rejected and p95 stays below a bound. Then, for embedkit alone, one worker is compared
with two (workers.py), and streams of large requests with `Encoder.encode` (streams.py). Takes less than six
minutes. Use an idle machine. Writes results.json and results.md next to this file.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from figures import Plan, Runs, highest, summarise, write
from servers import CONTENDERS, HERE, MODEL, USUAL, Server, ServerError, bound_to, free_port, versions
from streams import measure_streams
from workers import measure_workers

from embedkit.evaluation.speed.measure import choose_processors
from embedkit.evaluation.speed.plan import describe_machine
from embedkit.export.folder import export_folder
from embedkit.export.pipeline import export_source
from embedkit.records import read_records

TEXTS = 8192
SAME = {"fp32": 0.999, "int8": 0.95}  # minimum cosine of a server's embeddings with those of the first


def main() -> None:
    """Start everything, take turns, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", required=True)
    parser.add_argument("--texts", required=True, nargs="+", type=Path)
    parser.add_argument("--python", action="append", default=[], metavar="SERVER=PYTHON")
    parser.add_argument("--servers", nargs="+", choices=CONTENDERS, default=USUAL, metavar="SERVER")
    parser.add_argument("--threads", type=int, default=1, help="processors and threads of a server")
    parser.add_argument("--per-request", type=int, nargs="+", default=[1, 16], help="texts of a request")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0, help="of a measurement")
    parser.add_argument("--bound-ms", type=float, default=50.0, help="upper bound for p95")
    parser.add_argument("-o", "--output", default="results", help="name of the two files")
    arguments = parser.parse_args()
    plan = Plan(
        arguments.threads, tuple(arguments.per_request), arguments.turns, arguments.seconds, arguments.bound_ms
    )
    with tempfile.TemporaryDirectory() as folder:
        prepare(arguments.run, arguments.texts, Path(folder))
        bench = Bench(Path(folder), plan)
        compare(bench, arguments)


def prepare(run: str, texts: list[Path], folder: Path) -> None:
    """Write the same weights in the format of every server, and the texts."""
    for precision in ("fp32", "int8"):
        export_source(run, folder / f"{precision}.onnx", precision=precision, name=MODEL)
    export_folder(run, folder / "folder", precision="fp32")
    generator = random.Random(1)
    chosen = []
    for path in texts:
        rows = [str(record["text"]) for _, record in read_records(path)]
        chosen += generator.sample(rows, TEXTS // len(texts))
    generator.shuffle(chosen)
    (folder / "texts.json").write_text(json.dumps(chosen), encoding="utf-8")


class Bench:
    """The machine: assignment of processors, and load generation.

    Args:
        folder: folder of models and texts.
        plan: extent of the measurements.

    Attributes:
        folder, plan: as given.
        theirs: processors of servers.
        ours: processors of the load generator.
    """

    def __init__(self, folder: Path, plan: Plan) -> None:
        self.folder, self.plan = folder, plan
        usable = os.sched_getaffinity(0)
        self.theirs = sorted(choose_processors(usable, plan.threads))
        self.ours = sorted(usable - set(self.theirs))
        if not self.ours:
            raise SystemExit("the load generator needs a processor of its own; choose fewer --threads")

    def texts(self) -> list[str]:
        """Return the texts to send."""
        texts: list[str] = json.loads((self.folder / "texts.json").read_text(encoding="utf-8"))
        return texts

    def load(self, port: int, path: str, per_request: int, **how: float | str) -> dict[str, Any]:
        """Run load.py once: with ``rate`` and ``seed``, or ``clients``, and ``seconds`` unless as planned."""
        about = {"port": port, "path": path, "model": MODEL, "texts": str(self.folder / "texts.json")}
        job = {**about, "per_request": per_request, "seconds": self.plan.seconds, **how}
        command = [*bound_to(self.ours), sys.executable, str(HERE / "load.py")]
        done = subprocess.run(command, input=json.dumps(job), check=True, stdout=subprocess.PIPE, text=True)
        found: dict[str, Any] = json.loads(done.stdout)
        return found


def compare(bench: Bench, arguments: argparse.Namespace) -> None:
    """Compare all servers in turns."""
    pythons = dict(choice.split("=", 1) for choice in arguments.python)
    about: dict[str, Any] = {**describe_machine(), **bench.plan.describe(), "processors of a server": bench.theirs}
    about["words of a text"] = words(bench.texts())
    with ExitStack() as stack:
        servers, missing = [], {}
        for name in arguments.servers:
            python = pythons.get(name.split(" ", maxsplit=1)[0], sys.executable)
            try:
                servers.append(stack.enter_context(Server(name, python, bench.folder, bench.theirs)))
                about[name] = versions(name, python)
            except ServerError as error:
                missing[name] = str(error)
        check_same(servers, bench.texts()[:8])
        ceilings = {str(size): find_ceiling(bench, size) for size in bench.plan.per_request}
        runs = take_turns(bench, servers)
    about |= {"left out": missing, "answers a second that the load generator can take": ceilings}
    tables = {
        "highest": highest(runs, bench.plan),
        "streams": measure_streams(bench.load, bench.folder, bench.theirs),
        "workers": measure_workers(bench.load, bench.folder),
        "rows": summarise(runs),
    }
    write(about, tables, HERE / arguments.output)


def words(texts: list[str]) -> str:
    """Describe the lengths of texts, in words."""
    lengths = [len(text.split()) for text in texts]
    return f"{statistics.fmean(lengths):.1f} in the mean, {statistics.median(lengths):g} in the median"


def check_same(servers: list[Server], texts: list[str]) -> None:
    """Check that all servers return the same embeddings."""
    first = servers[0].embed(texts)
    for server in servers:
        cosine = float((server.embed(texts) * first).sum(axis=1).min())
        if cosine < SAME[server.name.split(" ")[1]]:
            raise SystemExit(
                f"{server.name} gives other embeddings than {servers[0].name} does: cosine {cosine:.4f}"
            )


def find_ceiling(bench: Bench, size: int) -> float:
    """Return the answers per second that the load generator handles with canned answers."""
    port = free_port()
    dimension = json.loads((bench.folder / "folder" / "2_Dense" / "config.json").read_text())["out_features"]
    command = [sys.executable, str(HERE / "canned.py"), str(port), str(size), str(dimension)]
    process = subprocess.Popen([*bound_to(bench.theirs), *command])
    try:
        time.sleep(1)
        return float(bench.load(port, "/", size, clients=64)["answered_per_s"])
    finally:
        process.kill()
        process.wait()


def take_turns(bench: Bench, servers: list[Server]) -> Runs:
    """Return the measurements of each turn, at rates determined by a server's first answers."""
    runs: Runs = {}
    for size in bench.plan.per_request:
        for server in servers:
            # The best of two: the first warms up, and other load only makes a server look slower.
            tries = [bench.load(server.port, server.path, size, clients=64) for _ in range(2)]
            ladder = bench.plan.ladder(max(found["answered_per_s"] for found in tries))
            runs[server.name, size] = {rate: [] for rate in (0.0, *ladder)}
    for turn in range(bench.plan.turns):
        for size in bench.plan.per_request:
            for server in servers[:: -1 if turn % 2 else 1]:
                for rate, found in runs[server.name, size].items():
                    how = {"rate": rate, "seed": turn} if rate else {"clients": 64}
                    found.append(bench.load(server.port, server.path, size, **how))
        print(f"turn {turn + 1} of {bench.plan.turns}", file=sys.stderr)
    return runs


if __name__ == "__main__":
    main()
