"""Ways to search the same rows: every kind of embedkit index, the same in plain FAISS, and other libraries."""

from __future__ import annotations

import functools
import importlib
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits

from embedkit.serving.retrieval.store.index_kinds import index_class

FloatArray = npt.NDArray[np.float32]
KINDS = ("exact", "sq8", "hnsw", "ivf-pq")
K = 10
EFFORTS = (0.25, 4.0)  # besides 1
BREADTH = 96  # of a graph search with effort 1

Search = Callable[[FloatArray], npt.NDArray[np.int64]]


@dataclass
class Contender:
    """One way to search.

    Attributes:
        name: name in the results.
        search: maps queries ``(Q, D) float32`` to rows ``(Q, 10) int64``.
        build_s: seconds to build it; None if it reuses another one's index.
        megabytes: its size, excluding the rows; None if unknown.
        rival: name of the contender that it is compared with turn by turn.
    """

    name: str
    search: Search
    build_s: float | None = None
    megabytes: float | None = None
    rival: str | None = None


def contenders(rows: FloatArray, threads: int) -> Iterator[list[Contender]]:
    """Yield groups of contenders: an embedkit index and the same in plain FAISS, then other libraries.

    Everything is built with all processors, and searches with ``threads``.
    """
    with tempfile.TemporaryDirectory() as folder:
        for build in (*(functools.partial(_kind, kind, Path(folder)) for kind in KINDS), _others):
            group = list(build(rows, threads))
            with threadpool_limits(threads):  # threads of FAISS and of numpy's products
                yield group


def _kind(kind: str, folder: Path, rows: FloatArray, _: int) -> Iterator[Contender]:
    file = folder / kind
    yield from _ours(kind, file, rows)
    yield from _bare(kind, file, rows)


def _others(rows: FloatArray, threads: int) -> Iterator[Contender]:
    yield from _hnswlib(rows, threads)
    yield from _usearch(rows, threads)


def _ours(kind: str, file: Path, rows: FloatArray) -> Iterator[Contender]:
    announce(kind)
    started = time.perf_counter()
    index = index_class(kind).build(rows)
    build_s = time.perf_counter() - started
    index.save(file)
    size = file.stat().st_size / 1e6 if file.exists() else 0.0

    def search(queries: FloatArray, effort: float = 1.0) -> npt.NDArray[np.int64]:
        return index.search(queries, K, effort=effort)[1]

    yield Contender(f"embedkit {kind}", search, build_s, size)
    if kind != "exact":
        for effort in EFFORTS:
            yield Contender(f"embedkit {kind}, effort {effort:g}", functools.partial(search, effort=effort))


def _bare(kind: str, file: Path, rows: FloatArray) -> Iterator[Contender]:
    """Return the equivalents without embedkit: FAISS's index read from our file, or a few lines of numpy."""
    if kind == "exact":
        yield Contender("numpy", lambda queries: _by_products(queries, rows), rival="embedkit exact")
    if kind in ("sq8", "hnsw", "ivf-pq"):
        base = faiss.read_index(str(file))
        refined, candidates, parameters = faiss.IndexRefine(base, _flat(rows)), *_proposals(kind, base)
        settings = faiss.IndexRefineSearchParameters(k_factor=candidates / K, base_index_params=parameters)
        yield Contender(
            f"faiss IndexRefine over {type(base).__name__}",
            lambda queries: refined.search(queries, K, params=settings)[1],
            rival=f"embedkit {kind}",
        )


def _by_products(queries: FloatArray, rows: FloatArray) -> npt.NDArray[np.int64]:
    blocks = (
        queries[start : start + 32] for start in range(0, len(queries), 32)
    )  # otherwise memory bandwidth dominates
    return np.concatenate([_best(block @ rows.T) for block in blocks])


def _best(scores: FloatArray) -> npt.NDArray[np.int64]:
    """Return the positions of the ten best along the last axis, best first."""
    found = np.argpartition(scores, -K)[..., -K:]
    order = np.argsort(-np.take_along_axis(scores, found, axis=-1))
    return np.asarray(np.take_along_axis(found, order, axis=-1), dtype=np.int64)


def _proposals(kind: str, base: Any) -> tuple[int, Any]:
    """Return candidates and search parameters as `approximate_indexes` sets them for k = 10."""
    if kind == "hnsw":
        return 30, faiss.SearchParametersHNSW(efSearch=BREADTH)
    if kind == "ivf-pq":
        return 100, faiss.SearchParametersIVF(nprobe=min(base.nlist, max(16, base.nlist // 8)))
    return 30, None


def _flat(rows: FloatArray) -> Any:
    index = faiss.IndexFlatIP(rows.shape[1])
    index.add(rows)
    return index


def _hnswlib(rows: FloatArray, threads: int) -> Iterator[Contender]:
    library = _installed("hnswlib")
    if library is None:
        return
    index = library.Index(space="ip", dim=rows.shape[1])
    index.init_index(max_elements=len(rows), M=16, ef_construction=80)  # its M is half of FAISS's
    announce("hnswlib")
    started = time.perf_counter()
    index.add_items(rows)
    build_s = time.perf_counter() - started
    index.set_num_threads(threads)

    def search(queries: FloatArray, breadth: int = BREADTH) -> npt.NDArray[np.int64]:
        index.set_ef(breadth)
        return np.asarray(index.knn_query(queries, k=K)[0], dtype=np.int64)

    yield Contender("hnswlib", search, build_s, rival="embedkit hnsw")
    yield from _broader("hnswlib", search)


def _usearch(rows: FloatArray, threads: int) -> Iterator[Contender]:
    if _installed("usearch") is None:
        return
    library = importlib.import_module("usearch.index")
    index = library.Index(
        ndim=rows.shape[1], metric="ip", dtype="i8", connectivity=16, expansion_add=80, expansion_search=BREADTH
    )
    announce("usearch")
    started = time.perf_counter()
    index.add(np.arange(len(rows)), rows)
    build_s = time.perf_counter() - started

    def search(queries: FloatArray, breadth: int = BREADTH) -> npt.NDArray[np.int64]:
        index.expansion_search = breadth
        return np.atleast_2d(index.search(queries, K, threads=threads).keys).astype(np.int64)

    name = "usearch i8, not rescored"
    yield Contender(name, search, build_s, index.serialized_length / 1e6, "embedkit hnsw")
    yield from _broader(name, search)


def _broader(name: str, search: Callable[..., npt.NDArray[np.int64]]) -> Iterator[Contender]:
    """Return a breadth equal to embedkit's for the other efforts."""
    for effort in EFFORTS:
        breadth = round(effort * BREADTH)
        yield Contender(f"{name}, ef {breadth}", functools.partial(search, breadth=breadth))


def _installed(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        print(f"{name} is not installed; skipping it", flush=True)
        return None


def announce(what: str) -> None:
    """Announce a long operation on stderr."""
    print(f"{time.strftime('%X')} building {what}", file=sys.stderr, flush=True)


def resident_megabytes() -> float:
    """Return the memory of this process."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
