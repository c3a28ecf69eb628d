"""Development sets of the English family, with retrieval among them, and encoders in int8 to score on them.

    python benchmarks/students/development.py --data DIR tiny models/mini.onnx

prints the figures of bundles, times 100, and their mean.
"""

from __future__ import annotations

import argparse
import lzma
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from trial import DEV

from embedkit import Encoder
from embedkit.evaluation.catalogue import load_task
from embedkit.evaluation.retrieval import JudgedQuery, RetrievalSet
from embedkit.evaluation.tasks import Task, evaluate
from embedkit.export.gates import NativeCandidate
from embedkit.export.graph import build_graph
from embedkit.export.quantize import Int8Arithmetic, MixedArithmetic, choose_word_table, largest_weight
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.protocols import FloatArray, TextEncoder
from embedkit.runtime.native_network import NativeNetwork

READ, DOCUMENTS, ASKED = 5000, 3000, 600  # READ: arXiv abstracts of recipes/english.toml


def load_sets(data: Path) -> dict[str, Task]:
    """Load the development sets."""
    loaded = {name: load_task(str(data / path)) for name, path in DEV.items()}
    return loaded | {"arXiv": abstracts(data / "train")}


def abstracts(folder: Path) -> Task:
    """Make two sets of one corpus of abstracts: their titles, and sentences that were taken out of them."""

    def read(name: str) -> list[str]:
        return lzma.open(folder / f"{name}.txt.xz", "rt", encoding="utf-8").read().splitlines()

    titles, generator = {*read("arxiv-titles")}, np.random.default_rng(0)
    drawn = read("arxiv-abstracts")[READ:]
    documents: dict[str, str] = {}
    asked: dict[str, list[JudgedQuery]] = {"titles": [], "sentences": []}
    for row in generator.permutation(len(drawn))[:DOCUMENTS]:
        parts, name = re.split(r"(?<=[.?!]) ", drawn[row]), f"d{row}"
        places = [place for place in range(1, len(parts)) if 8 <= len(parts[place].split()) <= 30]
        if (title := parts[0].removesuffix(".")) in titles and len(asked["titles"]) < ASKED:
            asked["titles"].append(JudgedQuery(title, {name: 1.0}))
            del parts[0]
        elif len(parts) > 4 and places and len(asked["sentences"]) < ASKED:
            asked["sentences"].append(JudgedQuery(parts.pop(int(generator.choice(places))), {name: 1.0}))
        documents[name] = " ".join(parts)
    return Task("arXiv", [RetrievalSet(name, documents, queries) for name, queries in asked.items()])


class InInt8:
    """An encoder as exported, but for its words, which stay as they are; on embedkit's kernel."""

    def __init__(self, encoder: SentenceEncoder) -> None:
        self.name, self.fingerprint = encoder.name, encoder.fingerprint()
        self.dimension, self.max_length = encoder.dimension, encoder.max_length
        products = Int8Arithmetic(largest_weight("cpu-avx2"))
        graph = build_graph(encoder, MixedArithmetic(products, choose_word_table("float32")))
        network = NativeNetwork.find(graph.SerializeToString())
        assert network is not None
        self._candidate = NativeCandidate(network, encoder.tokenizer)

    def encode(self, texts: Sequence[str], /) -> FloatArray:
        """Encode texts: ``(N, D) float32``, unit rows."""
        return self._candidate.run(texts)


def score(model: TextEncoder, sets: Mapping[str, Task]) -> dict[str, float]:
    """Return the figure of each development set x 100."""
    found = dict[str, float]()
    for name, task in sets.items():
        for result in evaluate(model, task, progress=False).results:
            found.setdefault(result.name if name == "arXiv" else name, 100 * (result.value or 0.0))
    return found


def main() -> None:
    """Print the figures of each model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR")
    parser.add_argument("models", nargs="+", metavar="MODEL")
    options = parser.parse_args()
    sets = load_sets(options.data)
    for model in options.models:
        figures = score(Encoder.load(model), sets)
        figures["mean"] = float(np.mean([*figures.values()]))
        print(model, ", ".join(f"{name} {value:.2f}" for name, value in figures.items()))


if __name__ == "__main__":
    main()
