"""The process in which one model is timed: reads JSON lines and answers each with one.

    python -m embedkit.evaluation.speed.worker MODEL THREADS

Before the first request it reports three times on its start: packages imported, model loaded, first text encoded;
the last report describes the model. Then ``{"keep": NAME, "texts": [...]}`` stores texts, and ``{"time": NAME,
"batch": B, "calls": N, "warm_up": M}`` returns the seconds of each of N calls with B of these texts, after M
untimed calls, with the energy of the N calls if available, and memory use.

Modules that run models in another way call :func:`serve` with their own loader.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embedkit import __version__
from embedkit.errors import EmbedkitError
from embedkit.evaluation.speed.bare import read_encoder
from embedkit.evaluation.speed.energy import EnergyMeter
from embedkit.runtime.distributions import installed_distributions
from embedkit.runtime.native_network import NATIVE

__all__ = ["TimedModel", "main", "serve"]

_FIRST_TEXT = "What is the capital of Iceland?"
_STATUS = Path("/proc/self/status")


@dataclass(frozen=True)
class TimedModel:
    """A loaded model and its description.

    Attributes:
        embed: maps texts to embeddings.
        about: ``name``, ``precision``, ``runtime``, ``fingerprint``, ``dimension``, ``max_length`` and
            ``size_bytes``, the size of all files it reads.
    """

    embed: Callable[[list[str]], object]
    about: Mapping[str, Any]


def main() -> None:
    """Time models on embedkit's runtime."""
    serve(_load)


def _load(source: str, threads: int) -> TimedModel:
    encoder, size_bytes = read_encoder(source, threads)
    versions = " ".join(f"{name} {version}" for name, version in installed_distributions().items())
    runtime = f"embedkit {__version__}" if encoder.provider == NATIVE else versions
    about = {
        "name": encoder.name,
        "precision": encoder.manifest.precision,
        "runtime": runtime,
        "fingerprint": encoder.fingerprint,
        "dimension": encoder.dimension,
        "max_length": encoder.max_length,
        "size_bytes": size_bytes,
    }
    return TimedModel(lambda texts: encoder.encode(texts[0] if len(texts) == 1 else texts), about)


def serve(load: Callable[[str, int], TimedModel]) -> None:
    """Load the model named on the command line and answer requests until the input ends."""
    source, threads = sys.argv[1], int(sys.argv[2])
    answers, sys.stdout = sys.stdout, sys.stderr  # keeps output of packages out of the answers

    def report(**answer: Any) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    report(reached="imported")
    try:
        model = load(source, threads)
    except EmbedkitError as error:
        report(error=str(error))
        sys.exit(1)
    report(reached="loaded")
    model.embed([_FIRST_TEXT])
    report(reached="embedded", about=dict(model.about), **_memory())
    for answer in _answers(model):
        report(**answer)


def _answers(model: TimedModel) -> Iterator[dict[str, Any]]:
    texts: dict[str, list[str]] = {}
    meter = EnergyMeter()
    for line in sys.stdin:
        request = json.loads(line)
        if "keep" in request:
            texts[request["keep"]] = request["texts"]
            yield {}
        else:
            yield _time(model, texts[request["time"]], request, meter) | _memory()


def _time(model: TimedModel, texts: list[str], request: Mapping[str, Any], meter: EnergyMeter) -> dict[str, Any]:
    """Time calls one by one; each takes the texts after those of the previous call."""
    size, seconds = request["batch"], []
    places = range(0, size * (request["warm_up"] + request["calls"]), size)
    batches = [[texts[(place + i) % len(texts)] for i in range(size)] for place in places]
    for batch in batches[: request["warm_up"]]:
        model.embed(batch)
    meter.start()
    for batch in batches[request["warm_up"] :]:
        began = time.perf_counter()
        model.embed(batch)
        seconds.append(time.perf_counter() - began)
    return {"seconds": seconds, "joules": meter.joules()}


def _memory() -> dict[str, int | None]:
    """Return this process's memory use in bytes: current and peak."""
    try:
        lines = dict(line.split(":", 1) for line in _STATUS.read_text(encoding="ascii").splitlines())
        now, most = (1024 * int(lines[name].split()[0]) for name in ("VmRSS", "VmHWM"))
    except (OSError, KeyError):  # not Linux
        return {"memory_bytes": None, "most_memory_bytes": None}
    return {"memory_bytes": now, "most_memory_bytes": most}


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    main()
