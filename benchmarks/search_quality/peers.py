"""Hybrid search as embedkit, LanceDB, Qdrant and txtai do it by default, on the same embeddings.

    python benchmarks/search_quality/peers.py --data DATA --peer lancedb=VENV/bin/python --peer txtai=...

``DATA`` holds retrieval/scifact and own/stackfaq. Each peer runs in a Python of its own, with the documents, the
queries and the embeddings of `tiny`: LanceDB with a full text index and its default fusion; txtai with
``hybrid=True``; Qdrant's local mode with fastembed's BM25 vectors, without its stop words, which are a download,
and with its fusion of reciprocal ranks over 50 candidates each. Dense searches show that the embeddings are the
same. A figure is nDCG@10 x 100; intervals of differences are by the paired bootstrap over the queries. Writes
peers.md beside this file.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
SETS = {"SciFact": ("retrieval/scifact", "test"), "stackfaq": ("own/stackfaq", "test")}
K, CANDIDATES = 10, 50

Found = dict[str, list[list[int]]]  # mode -> rows of the best documents of each query


def main() -> None:
    """Measure this library and the peers, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=PYTHON")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        run_child(*arguments.child)
        return
    import sets  # noqa: PLC0415 - beside this file; peers do not have embedkit

    from embedkit import Encoder, __version__  # noqa: PLC0415
    from embedkit.evaluation.results import Resampler, Samples  # noqa: PLC0415

    encoder = Encoder.load("tiny", threads=1)
    figures: dict[str, list[str]] = {}
    for name, judged in sets.load(arguments.data, SETS):
        keys, texts = list(judged.documents), list(judged.documents.values())
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            (folder / "texts.json").write_text(json.dumps({"documents": texts, "queries": judged.queries}))
            np.save(folder / "documents.npy", encoder.encode_document(texts))
            np.save(folder / "queries.npy", encoder.encode_query(judged.queries))
            founds = {f"embedkit {__version__}": ours(folder, texts, judged.queries, encoder)}
            for peer, python in (one.split("=", 1) for one in arguments.peer):
                command = [python, __file__, "--child", peer, str(folder)]
                answer = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
                founds[f"{peer} {answer['version']}"] = answer["found"]
        reference = None
        for label, found in founds.items():
            gains = {mode: judged.gains([[keys[row] for row in order] for order in found[mode]]) for mode in found}
            cell = " / ".join(f"{np.mean(gains[mode]):.1f}" for mode in ("dense", "hybrid"))
            samples = Samples.of(Resampler.of_rows(np.array(gains["hybrid"])))
            reference = reference or samples
            if samples is not reference:
                less = samples.less(reference)
                cell += f", {less.value:+.1f} [{less.interval.low:+.1f}, {less.interval.high:+.1f}]"
            figures.setdefault(label, []).append(cell)
        print(name, figures, flush=True)
    lines = [
        "# Default hybrid search on the same embeddings",
        "",
        "nDCG@10 x 100 with `tiny`, dense / hybrid, and the difference of the latter from embedkit's, with its",
        "95 % interval over the queries.",
        "",
        f"| | {' | '.join(SETS)} |",
        f"|---|{'---|' * len(SETS)}",
        *(f"| {label} | {' | '.join(cells)} |" for label, cells in figures.items()),
    ]
    (HERE / "peers.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def ours(folder: Path, texts: list[str], queries: list[str], encoder: Any) -> Found:
    """Search with this library."""
    from embedkit import Collection  # noqa: PLC0415

    options = {"embeddings": folder / "documents.npy", "path": folder / "idx", "show_progress_bar": False}
    collection = Collection.build(texts, encoder=encoder, **options)
    return {
        mode: [[int(hit.id) for hit in hits] for hits in collection.search(queries, k=K, mode=mode)]
        for mode in ("dense", "hybrid")
    }


def run_child(peer: str, place: str) -> None:
    """Search with a peer, and print what it found."""
    folder = Path(place)
    texts = json.loads((folder / "texts.json").read_text())
    arrays = np.load(folder / "documents.npy"), np.load(folder / "queries.npy")
    search, package = PEERS[peer]
    found = search(folder, texts["documents"], texts["queries"], *arrays)
    json.dump({"version": version(package), "found": found}, sys.stdout)


def lancedb(folder: Path, texts: list[str], queries: list[str], rows: Any, asked: Any) -> Found:
    """LanceDB: a full text index, and `query_type="hybrid"` with its default fusion."""
    import lancedb as lance  # noqa: PLC0415

    data = [
        {"row": row, "text": text, "vector": vector}
        for row, (text, vector) in enumerate(zip(texts, rows, strict=True))
    ]
    table = lance.connect(folder / "lance").create_table("docs", data)
    table.create_fts_index("text")
    found: Found = {"dense": [], "hybrid": []}
    for query, vector in zip(queries, asked, strict=True):
        dense = table.search(vector).limit(K).to_list()
        hybrid = table.search(query_type="hybrid").vector(vector).text(query).limit(K).to_list()
        found["dense"].append([hit["row"] for hit in dense])
        found["hybrid"].append([hit["row"] for hit in hybrid])
    return found


def qdrant(folder: Path, texts: list[str], queries: list[str], rows: Any, asked: Any) -> Found:
    """Qdrant's local mode: fastembed's BM25 vectors, and the fusion of reciprocal ranks."""
    from fastembed import SparseTextEmbedding  # noqa: PLC0415
    from qdrant_client import QdrantClient, models  # noqa: PLC0415

    (folder / "english.txt").touch()
    sparse = SparseTextEmbedding("Qdrant/bm25", specific_model_path=str(folder))
    client = QdrantClient(path=str(folder / "qdrant"))
    client.create_collection(
        "docs",
        vectors_config={"dense": models.VectorParams(size=rows.shape[1], distance=models.Distance.COSINE)},
        sparse_vectors_config={"words": models.SparseVectorParams(modifier=models.Modifier.IDF)},
    )

    def words(vector: Any) -> Any:
        return models.SparseVector(indices=vector.indices.tolist(), values=vector.values.tolist())

    points = [
        models.PointStruct(id=row, vector={"dense": vector.tolist(), "words": words(of_words)})
        for row, (vector, of_words) in enumerate(zip(rows, sparse.embed(texts), strict=True))
    ]
    client.upload_points("docs", points)
    found: Found = {"dense": [], "hybrid": []}
    for query, vector in zip(queries, asked, strict=True):
        (of_words,) = sparse.query_embed(query)
        dense = client.query_points("docs", query=vector.tolist(), using="dense", limit=K)
        hybrid = client.query_points(
            "docs",
            prefetch=[
                models.Prefetch(query=vector.tolist(), using="dense", limit=CANDIDATES),
                models.Prefetch(query=words(of_words), using="words", limit=CANDIDATES),
            ],
            query=models.FusionQuery(fusion=models.Fusion.RRF),
            limit=K,
        )
        found["dense"].append([point.id for point in dense.points])
        found["hybrid"].append([point.id for point in hybrid.points])
    return found


def txtai(_: Path, texts: list[str], queries: list[str], rows: Any, asked: Any) -> Found:
    """txtai: `Embeddings(hybrid=True)`, and without for the dense search."""
    from txtai import Embeddings  # noqa: PLC0415

    known = dict(zip((*texts, *queries), (*rows, *asked), strict=False))
    found: Found = {}
    for mode in ("dense", "hybrid"):
        options = {"method": "external", "transform": lambda some: np.array([known[one] for one in some])}
        embeddings = Embeddings(hybrid=mode == "hybrid", **options)
        embeddings.index([(row, text, None) for row, text in enumerate(texts)])
        found[mode] = [[int(row) for row, _ in embeddings.search(query, K)] for query in queries]
    return found


PEERS: dict[str, tuple[Callable[..., Found], str]] = {
    "lancedb": (lancedb, "lancedb"),
    "qdrant": (qdrant, "qdrant-client"),
    "txtai": (txtai, "txtai"),
}


if __name__ == "__main__":
    main()
