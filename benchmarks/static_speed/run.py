"""Time a static model in model2vec's own package and as bundles made of the same folder, in alternation.

Both run in this process with the same texts and number of threads. A figure is the median over rounds of the ratio
to model2vec, which other work on the machine disturbs less than the times themselves.

    pip install model2vec
    python benchmarks/static_speed/run.py FOLDER_OF_MODEL2VEC TEXTS.txt [--threads 1]
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import model2vec

from embedkit import Encoder
from embedkit.evaluation.machine import processor_name
from embedkit.export.pipeline import export_source

RESULTS = Path(__file__).with_name("results.md")
FORMS = {"float32": "fp32", "int8": "int8", "int4": "int8"}  # word table -> precision


def main() -> None:
    """Time all forms and write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("texts", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    os.environ["RAYON_NUM_THREADS"] = str(arguments.threads)  # of the tokenizers package, at its first use
    texts = arguments.texts.read_text(encoding="utf-8").splitlines()[:4096]
    peer = model2vec.StaticModel.from_pretrained(arguments.folder, force_download=False)
    runners: dict[str, Callable[[list[str]], Any]] = {
        "model2vec": lambda rows: peer.encode(rows, use_multiprocessing=False)
    }
    with tempfile.TemporaryDirectory() as place:
        for words, precision in FORMS.items():
            path = Path(place) / f"{words}.onnx"
            export_source(str(arguments.folder), path, precision=precision, word_table=words)
            encoder = Encoder.load(path, threads=arguments.threads)
            runners[f"{words} words, {path.stat().st_size / 1e6:.1f} MB"] = encoder.encode
        measured = [measure(runners, texts, count, arguments.rounds) for count in (len(texts), 1)]
        rows = [(name, *(each[name] for each in measured)) for name in runners]
    lines = [f"| {name} | {many:.2f} | {one:.2f} |" for name, many, one in rows]
    threads = "one thread" if arguments.threads == 1 else f"{arguments.threads} threads"
    title = f"""# Static models

The time of model2vec {model2vec.__version__} divided by that of each form, on {threads} of {processor_name()}, for
{arguments.texts.stem}: medians of {arguments.rounds} turns, by `python benchmarks/static_speed/run.py`.
"""
    head = [title, f"| {arguments.folder.name} | {len(texts)} texts | one text |", "|---|---:|---:|"]
    RESULTS.write_text("\n".join([*head, *lines]) + "\n", encoding="utf-8")
    print("\n".join(lines))


def measure(
    runners: dict[str, Callable[[list[str]], Any]], texts: list[str], count: int, rounds: int
) -> dict[str, float]:
    """Return the speed of each runner relative to the first, a median over calls with ``count`` texts."""
    times: dict[str, list[float]] = {name: [] for name in runners}
    repeats = max(1, 200 // count)
    for _ in range(rounds + 1):
        for name, run in runners.items():
            started = time.perf_counter()
            for number in range(repeats):
                run(texts[number : number + count])
            times[name].append(time.perf_counter() - started)
    first = next(iter(times.values()))[1:]  # after the first round, which warms up
    return {
        name: statistics.median(base / each for base, each in zip(first, found[1:], strict=True))
        for name, found in times.items()
    }


if __name__ == "__main__":
    main()
