"""The fusion under approximate indexes, under filters, and on databases, with the embeddings of one encoder.

    python benchmarks/search_quality/variants.py --data DATA

``DATA`` holds retrieval/{scifact,cacm,cranfield,medline} and own/stackfaq, whose split dev is searched.
Approximate indexes are built although the sets are small. Under the filter, every second document can be found.
Milvus and Qdrant, if their clients are installed, run in their local modes, and pass only their best candidates to
the fusion; they are searched in sets of at most 100 queries. A figure is nDCG@10 x 100. Figures are kept in
variants.json beside this file, so an interrupted run continues, and variants.md is written from them.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from embedkit import Collection, Encoder
from embedkit.evaluation.retrieval import Ranking, load_retrieval, ndcg
from embedkit.serving.retrieval.store import index_kinds

HERE = Path(__file__).parent
SETS = {
    "SciFact": ("retrieval/scifact", "test"),
    "CACM": ("retrieval/cacm", "test"),
    "Cranfield": ("retrieval/cranfield", "test"),
    "Medline": ("retrieval/medline", "test"),
    "stackfaq, dev": ("own/stackfaq", "dev"),
}
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


def main() -> None:
    """Measure, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--encoder", default="tiny")
    arguments = parser.parse_args()
    index_kinds.SMALL = 0  # else a scan would replace the approximate indexes of small sets
    encoder = Encoder.load(arguments.encoder, threads=1)
    chosen = {name: one for name, one in VARIANTS.items() if importlib.util.find_spec(CLIENTS[one[2]]) is not None}
    path = HERE / "variants.json"
    figures: dict[str, dict[str, dict[str, float]]] = (
        json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    )
    for name, (place, split) in SETS.items():
        task = load_retrieval(arguments.data / place, name=name, split=split)
        keys = [key for key, text in task.documents.items() if text.strip()]
        documents = [{"id": key, "text": task.documents[key], "half": row % 2} for row, key in enumerate(keys)]
        texts = [query.text for query in task.queries]
        embeddings = encoder.encode_document([task.documents[key] for key in keys])
        gain = functools.partial(quality, [query.relevance for query in task.queries], set(keys[::2]))
        built: dict[tuple[str, str], Collection] = {}
        with tempfile.TemporaryDirectory() as folder:
            for label, (kind, condition, database) in chosen.items():
                if (database and len(texts) > MOST_QUERIES) or name in figures.get(label, {}):
                    continue
                if (kind, database) not in built:
                    built[kind, database] = Collection.build(
                        documents,
                        encoder=encoder,
                        embeddings=embeddings,
                        index=kind,
                        path=address(Path(folder), kind, database),
                        show_progress_bar=False,
                    )
                searched = {
                    mode: built[kind, database].search(texts, mode=mode, filter=condition) for mode in MODES
                }
                figures.setdefault(label, {})[name] = {
                    mode: gain([[hit.id for hit in hits] for hits in found], halved=condition is not None)
                    for mode, found in searched.items()
                }
                print(name, label, figures[label][name], flush=True)
                path.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
            for collection in built.values():
                collection.close()
    (HERE / "variants.md").write_text(table(encoder.name, figures), encoding="utf-8")


def address(folder: Path, kind: str, database: str) -> str:
    """Return where to build a collection."""
    places = {"": f"{folder}/{kind}", "milvus": f"milvus:{folder}/m.db#docs", "qdrant": f"qdrant:{folder}/q#docs"}
    return places[database]


def quality(
    relevances: list[Mapping[str, float]], half: set[str], found: list[list[str]], *, halved: bool
) -> float:
    """Return the mean nDCG@10 x 100 of those queries for which there are relevant documents."""
    gains = []
    for relevance, ids in zip(relevances, found, strict=True):
        grades = {key: grade for key, grade in relevance.items() if grade > 0 and (key in half or not halved)}
        if grades:
            ranking = Ranking(
                np.array([grades.get(id_, 0.0) for id_ in ids]), np.array(sorted(grades.values())[::-1])
            )
            gains.append(ndcg(ranking))
    return round(100 * float(np.mean(gains)), 2)


def table(encoder: str, figures: Mapping[str, Mapping[str, Mapping[str, float]]]) -> str:
    """Return the figures as Markdown."""
    lines = [
        f"# Fusion with `{encoder}` by index, filter and store",
        "",
        "Dense / keywords / hybrid, nDCG@10 x 100; the last column is the hybrid search's smallest gain over the",
        "better of the two. Approximate indexes were built although the sets are small; the filter leaves every",
        "second document. Empty cells were not measured.",
        "",
        f"| | {' | '.join(SETS)} | least gain |",
        f"|---|{'---|' * len(SETS)}---:|",
    ]
    for label, of_sets in figures.items():
        cells = [
            " / ".join(f"{of_sets[name][mode]:.1f}" for mode in MODES) if name in of_sets else "" for name in SETS
        ]
        least = min(one["hybrid"] - max(one["dense"], one["lexical"]) for one in of_sets.values())
        lines.append(f"| {label} | {' | '.join(cells)} | {least:+.1f} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
