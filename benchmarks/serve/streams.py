"""Streams of large requests to a server, beside `Encoder.encode` of the same texts.

    python streams.py MODEL TEXTS

prints how many texts a second `Encoder.encode` embeds on one thread; run.py calls it so, and the rest as a module.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from servers import HERE, Server, bound_to

from embedkit import Encoder

CLIENTS, PER_REQUEST, SECONDS, TURNS = 4, 512, 3.0, 3


def measure_streams(
    load: Callable[..., dict[str, Any]], folder: Path, processors: Sequence[int]
) -> list[dict[str, Any]]:
    """A row for each precision: texts a second over HTTP and in the process itself, medians of turns.

    Args:
        load: makes load, as run.py's ``Bench.load``.
        folder: of models and texts.
        processors: for the server and for `Encoder.encode`, in turn.
    """
    rows = []
    for precision in ("fp32", "int8"):
        served, called = [], []
        command = [
            sys.executable,
            str(HERE / "streams.py"),
            str(folder / f"{precision}.onnx"),
            str(folder / "texts.json"),
        ]
        with Server(f"embedkit {precision}", sys.executable, folder, processors) as server:
            for _ in range(TURNS):
                how = {"clients": CLIENTS, "seconds": SECONDS, "encoding": "base64"}
                served.append(PER_REQUEST * load(server.port, server.path, PER_REQUEST, **how)["answered_per_s"])
                done = subprocess.run([*bound_to(processors), *command], check=True, stdout=subprocess.PIPE)
                called.append(float(done.stdout))
        there, here = statistics.median(served), statistics.median(called)
        row = {"model": precision, "texts_per_s_served": round(there), "texts_per_s_of_encode": round(here)}
        rows.append({**row, "share": round(there / here, 2)})
    return rows


def main() -> None:
    """Print texts a second."""
    encoder = Encoder.load(sys.argv[1], threads=1)
    texts = json.loads(Path(sys.argv[2]).read_text(encoding="utf-8"))[: 8 * PER_REQUEST]
    encoder.encode(texts[:PER_REQUEST])
    began = time.perf_counter()
    encoder.encode(texts)
    print(len(texts) / (time.perf_counter() - began))


if __name__ == "__main__":
    main()
