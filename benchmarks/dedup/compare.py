"""One way to find similar texts, timed in its own process; started by run.py with the Python that has the package.

    python compare.py KIND EMBEDDINGS.npy THRESHOLD PAIRS.npy

Prints ``{"version", "seconds", "cpu_s", "pairs"}``, or ``"kept"`` for ways that remove near-duplicates, and writes
the pairs to PAIRS.npy, ``(P, 2) int64``. The embeddings are given, so only the comparison is timed. Each way
imports its own packages, because no environment has them all.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from importlib import metadata
from typing import Any

import numpy as np


def main() -> None:
    """Time one way."""
    kind, place, threshold, output = sys.argv[1], sys.argv[2], float(sys.argv[3]), sys.argv[4]
    package, find = WAYS[kind]
    rows = np.load(place)
    find(rows[:2048], threshold)  # imports, and threads started
    before, began = cpu_s(), time.perf_counter()
    found = find(rows, threshold)
    seconds, cpu = time.perf_counter() - began, cpu_s() - before
    result: dict[str, Any] = {
        "version": metadata.version(package),
        "seconds": round(seconds, 2),
        "cpu_s": round(cpu, 2),
    }
    if isinstance(found, int):
        result["kept"] = found
    else:
        result["pairs"] = len(found)
        np.save(output, found)
    print(json.dumps(result))


def cpu_s() -> float:
    """Return the processor time of this process, in all threads."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def embedkit_pairs(rows: np.ndarray, threshold: float, index: str = "exact") -> np.ndarray:
    """``similar_pairs``."""
    from embedkit import similar_pairs

    return similar_pairs(rows, threshold=threshold, index=index).rows


def embedkit_kept(rows: np.ndarray, threshold: float) -> int:
    """``deduplicate``."""
    from embedkit import deduplicate

    return len(deduplicate(rows, threshold=threshold, index="exact").kept)


def paraphrase_mining(rows: np.ndarray, threshold: float) -> np.ndarray:
    """sentence-transformers, with its default of the 100 best of each text; it has no threshold."""
    import torch
    from sentence_transformers.util import paraphrase_mining_embeddings

    pairs = paraphrase_mining_embeddings(torch.from_numpy(rows), max_pairs=1_000_000)
    return np.array([pair[1:] for pair in pairs if pair[0] >= threshold], dtype=np.int64).reshape(-1, 2)


def faiss_range(rows: np.ndarray, threshold: float) -> np.ndarray:
    """FAISS's exact range search, used directly, block by block."""
    import faiss

    index, parts = faiss.IndexFlatIP(rows.shape[1]), []
    index.add(rows)
    for start in range(0, len(rows), 4096):
        limits, _, others = index.range_search(rows[start : start + 4096], threshold)
        mine = np.repeat(np.arange(start, start + len(limits) - 1), np.diff(limits).astype(np.int64))
        parts.append(np.stack([mine, others], axis=1)[others > mine])
    return np.concatenate(parts)


def semhash(rows: np.ndarray, threshold: float) -> int:
    """semhash, with its default index."""
    from semhash import SemHash

    records = [str(row) for row in range(len(rows))]  # its hash of equal texts is not timed
    made = SemHash.from_embeddings(embeddings=rows, records=records, model=None)
    return len(made.self_deduplicate(threshold=threshold).selected)


WAYS: dict[str, tuple[str, Any]] = {
    "embedkit": ("embedkit-onnx", embedkit_pairs),
    "embedkit-hnsw": ("embedkit-onnx", lambda *given: embedkit_pairs(*given, index="hnsw")),
    "embedkit-ivf-pq": ("embedkit-onnx", lambda *given: embedkit_pairs(*given, index="ivf-pq")),
    "embedkit-dedup": ("embedkit-onnx", embedkit_kept),
    "faiss": ("faiss-cpu", faiss_range),
    "sentence-transformers": ("sentence-transformers", paraphrase_mining),
    "semhash": ("semhash", semhash),
}

if __name__ == "__main__":
    main()
