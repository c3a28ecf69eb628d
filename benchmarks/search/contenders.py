"""Ways to search the same rows: ours of each kind, the same in bare FAISS, and other libraries where installed."""

from __future__ import annotations

import functools
import importlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import numpy.typing as npt

from embedkit.serving.retrieval.index_kinds import index_class

FloatArray = npt.NDArray[np.float32]
KINDS = ("exact", "flat", "sq8", "binary", "hnsw", "ivf-pq")
K = 10


@dataclass
class Contender:
    """One way to search.

    Attributes:
        name: what it is called in the results.
        search: queries ``(Q, D) float32`` -> rows ``(Q, 10) int64``.
        build_s: seconds to build it; None where another one's was taken.
        megabytes: what it keeps besides the rows; None where that is not known.
        rival: name of the contender that it is compared with turn by turn.
    """

    name: str
    search: Callable[[FloatArray], npt.NDArray[np.int64]]
    build_s: float | None = None
    megabytes: float | None = None
    rival: str | None = None


def contenders(rows: FloatArray, threads: int) -> Iterator[list[Contender]]:
    """Groups of contenders that belong together: ours, and the same in bare FAISS; then other libraries.

    Everything is built by all processors, and searches with ``threads``.
    """
    with tempfile.TemporaryDirectory() as folder:
        for build in (*(functools.partial(_kind, kind, Path(folder)) for kind in KINDS), _others):
            faiss.omp_set_num_threads(os.cpu_count() or 1)
            group = list(build(rows, threads))
            faiss.omp_set_num_threads(threads)
            yield group


def _kind(kind: str, folder: Path, rows: FloatArray, _: int) -> Iterator[Contender]:
    file = folder / kind
    yield _ours(kind, file, rows)
    yield from _bare(kind, file, rows)


def _others(rows: FloatArray, threads: int) -> Iterator[Contender]:
    yield from _faiss_hnsw(rows)
    yield from _hnswlib(rows, threads)
    yield from _usearch(rows, threads)


def _ours(kind: str, file: Path, rows: FloatArray) -> Contender:
    started = time.perf_counter()
    index = index_class(kind).build(rows)
    build_s = time.perf_counter() - started
    index.save(file)
    size = file.stat().st_size / 1e6 if file.exists() else 0.0
    return Contender(f"embedkit {kind}", lambda queries: index.search(queries, K)[1], build_s, size)


def _bare(kind: str, file: Path, rows: FloatArray) -> Iterator[Contender]:
    """FAISS' own way to do the same: its index read from our file, and its refinement over a copy of the rows."""
    if kind in ("flat", "exact"):
        flat = _flat(rows)
        yield Contender("faiss IndexFlatIP", lambda queries: flat.search(queries, K)[1], rival=f"embedkit {kind}")
    if kind == "binary":
        signs = np.packbits(rows > 0, axis=1)
        yield Contender(
            "faiss knn_hamming, not rescored",
            lambda queries: faiss.knn_hamming(np.packbits(queries > 0, axis=1), signs, K)[1],
            rival="embedkit binary",
        )
    if kind in ("sq8", "hnsw", "ivf-pq"):
        base = faiss.read_index(str(file))
        refined, candidates, parameters = faiss.IndexRefine(base, _flat(rows)), *_proposals(kind, base)
        settings = faiss.IndexRefineSearchParameters(k_factor=candidates / K, base_index_params=parameters)
        yield Contender(
            f"faiss IndexRefine over {type(base).__name__}",
            lambda queries: refined.search(queries, K, params=settings)[1],
            rival=f"embedkit {kind}",
        )


def _proposals(kind: str, base: Any) -> tuple[int, Any]:
    """Candidates and search parameters as `approximate_indexes` sets them for k = 10."""
    if kind == "hnsw":
        return 30, faiss.SearchParametersHNSW(efSearch=96)
    if kind == "ivf-pq":
        return 100, faiss.SearchParametersIVF(nprobe=min(base.nlist, max(16, base.nlist // 8)))
    return 30, None


def _flat(rows: FloatArray) -> Any:
    index = faiss.IndexFlatIP(rows.shape[1])
    index.add(rows)
    return index


def _faiss_hnsw(rows: FloatArray) -> Iterator[Contender]:
    index = faiss.index_factory(rows.shape[1], "HNSW32,Flat", faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction, index.hnsw.efSearch = 80, 96
    started = time.perf_counter()
    index.add(rows)
    build_s = time.perf_counter() - started
    megabytes = len(faiss.serialize_index(index)) / 1e6
    yield Contender(
        "faiss HNSW32,Flat", lambda queries: index.search(queries, K)[1], build_s, megabytes, "embedkit hnsw"
    )


def _hnswlib(rows: FloatArray, threads: int) -> Iterator[Contender]:
    library = _installed("hnswlib")
    if library is None:
        return
    index = library.Index(space="ip", dim=rows.shape[1])
    index.init_index(max_elements=len(rows), M=16, ef_construction=80)  # its M is half of that of FAISS
    started = time.perf_counter()
    index.add_items(rows)
    build_s = time.perf_counter() - started
    index.set_num_threads(threads)
    index.set_ef(96)
    yield Contender(
        "hnswlib",
        lambda queries: index.knn_query(queries, k=K)[0].astype(np.int64),
        build_s,
        rival="embedkit hnsw",
    )


def _usearch(rows: FloatArray, threads: int) -> Iterator[Contender]:
    if _installed("usearch") is None:
        return
    library = importlib.import_module("usearch.index")
    index = library.Index(
        ndim=rows.shape[1], metric="ip", dtype="i8", connectivity=16, expansion_add=80, expansion_search=96
    )
    started = time.perf_counter()
    index.add(np.arange(len(rows)), rows)
    build_s = time.perf_counter() - started
    yield Contender(
        "usearch i8, not rescored",
        lambda queries: np.atleast_2d(index.search(queries, K, threads=threads).keys).astype(np.int64),
        build_s,
        index.serialized_length / 1e6,
        "embedkit hnsw",
    )


def _installed(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        print(f"{name} is not installed and left out", flush=True)
        return None


def resident_megabytes() -> float:
    """Memory of this process."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
