"""The fusion under approximate indexes, under filters, and on databases, for each encoder.

    python benchmarks/search_quality/variants.py --data DATA tiny models/small.onnx models/static.onnx ...

``DATA`` holds retrieval/{scifact,cacm,cranfield,medline} and own/stackfaq, whose split dev is searched.
Approximate indexes are built although the sets are small. Under the filter, every second document can be found.
Milvus and Qdrant, if their clients are installed, run in their local modes, and pass keyword scores of only their
best candidates to the fusion; they are searched in sets of at most 100 queries. A figure is nDCG@10 x 100. Figures
are kept in variants.json beside this file, so an interrupted run continues, and variants.md is written from them.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from embedkit import Collection, Encoder
from embedkit.serving.retrieval.search import Hit
from embedkit.serving.retrieval.store import index_kinds

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import sets  # noqa: E402 - beside this file

MODES = ("dense", "lexical", "hybrid")
HALF: dict[str, Any] = {"half": 0}
# label -> kind of index, filter, and the database
VARIANTS: dict[str, tuple[str, dict[str, Any] | None, str]] = {
    "exact": ("exact", None, ""),
    "sq8": ("sq8", None, ""),
    "hnsw": ("hnsw", None, ""),
    "ivf-pq": ("ivf-pq", None, ""),
    "exact, filter": ("exact", HALF, ""),
    "hnsw, filter": ("hnsw", HALF, ""),
    "Milvus Lite": ("auto", None, "milvus"),
    "Milvus Lite, filter": ("auto", HALF, "milvus"),
    "Qdrant, local": ("auto", None, "qdrant"),
    "Qdrant, local, filter": ("auto", HALF, "qdrant"),
}
MOST_QUERIES = 100  # of a set that is searched on databases, whose local modes are slow
CLIENTS = {"": "numpy", "milvus": "milvus_lite", "qdrant": "qdrant_client"}


Figures = dict[str, dict[str, dict[str, dict[str, float]]]]  # by encoder, variant, set and mode


def main() -> None:
    """Measure, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("encoders", nargs="+")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--keep", type=Path, default=sets.KEPT, help="folder of embeddings that are kept")
    arguments = parser.parse_args()
    index_kinds.SMALL = 0  # else a scan would replace the approximate indexes of small sets
    path = HERE / "variants.json"
    figures: Figures = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    for encoder in [Encoder.load(source, threads=1) for source in arguments.encoders]:
        name = sets.NAMES.get(encoder.name, encoder.name)
        for of_set, judged in sets.load(arguments.data, sets.CHOSEN):
            for label, found in measure(judged, encoder, arguments.keep, skip=done(figures, name, of_set)):
                figures.setdefault(name, {}).setdefault(label, {})[of_set] = found
                print(name, of_set, label, found, flush=True)
                path.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    (HERE / "variants.md").write_text(table(figures), encoding="utf-8")


def done(figures: Figures, encoder: str, of_set: str) -> set[str]:
    """Return the variants that were measured already."""
    return {label for label, found in figures.get(encoder, {}).items() if of_set in found}


def measure(
    judged: sets.Judged, encoder: Encoder, keep: Path, *, skip: set[str]
) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield the figures of each variant by mode."""
    keys, texts = list(judged.documents), list(judged.documents.values())
    documents = [{"id": key, "text": judged.documents[key], "half": row % 2} for row, key in enumerate(keys)]
    half = set(keys[::2])
    halved = [{key: grade for key, grade in grades.items() if key in half} for grades in judged.relevance]
    built: dict[tuple[str, str], Collection] = {}
    with tempfile.TemporaryDirectory() as folder:
        for label, (kind, condition, database) in VARIANTS.items():
            is_long = bool(database) and len(judged.queries) > MOST_QUERIES
            if label in skip or is_long or importlib.util.find_spec(CLIENTS[database]) is None:
                continue
            if (kind, database) not in built:
                built[kind, database] = Collection.build(
                    documents,
                    encoder=encoder,
                    embeddings=sets.embeddings_of(texts, encoder, keep),
                    index=kind,
                    path=address(Path(folder), kind, database),
                    show_progress_bar=False,
                )
            collection, relevance = built[kind, database], halved if condition else judged.relevance
            yield (
                label,
                {
                    mode: quality(relevance, collection.search(judged.queries, mode=mode, filter=condition))
                    for mode in MODES
                },
            )
        for collection in built.values():
            collection.close()


def address(folder: Path, kind: str, database: str) -> str:
    """Return where to build a collection."""
    places = {"": f"{folder}/{kind}", "milvus": f"milvus:{folder}/m.db#docs", "qdrant": f"qdrant:{folder}/q#docs"}
    return places[database]


def quality(relevance: Sequence[Mapping[str, float]], found: Sequence[Sequence[Hit]]) -> float:
    """Return the mean nDCG@10 x 100 of those queries for which there are relevant documents."""
    answered = [place for place, grades in enumerate(relevance) if any(grade > 0 for grade in grades.values())]
    judged = sets.Judged({}, [], [relevance[place] for place in answered])
    return round(float(np.mean(judged.gains([[hit.id for hit in found[place]] for place in answered]))), 2)


def table(figures: Figures) -> str:
    """Return the figures as Markdown."""
    lines = [
        "# Fusion by index, filter and store",
        "",
        "Dense / keywords / hybrid, nDCG@10 x 100; the last column is the hybrid search's smallest gain over the",
        "better of the two. Approximate indexes were built although the sets are small; the filter leaves every",
        "second document. Empty cells were not measured.",
    ]
    for encoder, variants in figures.items():
        header = f"| `{encoder}` | {' | '.join(sets.CHOSEN)} | least gain |"
        lines += ["", header, f"|---|{'---|' * len(sets.CHOSEN)}---:|"]
        for label, of_sets in variants.items():
            cells = [
                " / ".join(f"{of_sets[name][mode]:.1f}" for mode in MODES) if name in of_sets else ""
                for name in sets.CHOSEN
            ]
            least = min(one["hybrid"] - max(one["dense"], one["lexical"]) for one in of_sets.values())
            lines.append(f"| {label} | {' | '.join(cells)} | {least:+.1f} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
