"""The collection of a server, searched and changed in its own threads, and projected to a plane for a map."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, TypeVar

import numpy as np

from embedkit.errors import CollectionBusyError, EmbedkitError, InputError
from embedkit.protocols import FloatArray
from embedkit.serving.http.admission import Admission, Rate
from embedkit.serving.http.batcher import background_threads
from embedkit.serving.http.embedding import CrossRanker, Embedder, Limits
from embedkit.serving.http.tracing import span
from embedkit.serving.retrieval.collection import Collection
from embedkit.serving.retrieval.documents import Document
from embedkit.serving.retrieval.filters import Filter, parse_filter
from embedkit.serving.retrieval.models import CollectionInfo
from embedkit.serving.retrieval.search import Encode, Hits, Score, SearchOptions, Steps
from embedkit.serving.retrieval.store.columns import flattened
from embedkit.serving.retrieval.store.folder import retry_while_busy
from embedkit.threads import available_threads

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

# Initial estimates of rates per second: documents scanned or filtered, characters upserted, documents changed.
_SCANS_PER_S: Final = {"filter": 5e6, "dense": 5e6, "lexical": 5e6, "find": 1e6}
_GUESSES_PER_S: Final = {**_SCANS_PER_S, "upsert": 1e5, "update": 1e4, "delete": 1e4}
_CHARACTERS = 400
_DOCUMENTS_FOR_FIELDS = 256
_MAP_POINTS = 4000
_MAP_CHARACTERS = 200
_PATIENCE_S = 10.0  # for a write while another process is writing to the collection


class CollectionService:
    """A collection shared by many requests; writes of other processes become visible within ``refresh_s`` seconds.

    Only work that needs no model runs in its threads. Queries and candidates go through the batchers of
    the server's models, interleaved with all other texts: ``embedder`` embeds queries, ``ranker`` re-ranks.

    Every method may raise a CollectionError, if a file is damaged, and those that search or write an
    OverloadedError, if too much work is waiting.
    """

    def __init__(
        self,
        collection: Collection,
        embedder: Embedder,
        ranker: CrossRanker | None,
        limits: Limits,
        admission: Admission,
        refresh_s: float,
    ) -> None:
        self.collection, self._embedder, self._ranker = collection, embedder, ranker
        self._limits, self._admission, self._refresh_s = limits, admission, refresh_s
        self._readers = background_threads(available_threads(), "search")
        self._writer = background_threads(1, "write")
        self._map_pool = background_threads(1, "map")
        self._merger = background_threads(1, "merge")
        self._merging: Future[None] | None = None
        self._closed = False
        self._refreshed = time.monotonic()
        self._obstacle = ""  # to a refresh
        self._drawn: tuple[CollectionInfo, dict[str, Any]] | None = None
        self._rates = {stage: Rate(guess) for stage, guess in _GUESSES_PER_S.items()}
        self._characters = _CHARACTERS  # of a candidate, on average

    async def search(self, query: str, options: SearchOptions) -> Hits:
        """Return the best hits, with the scores and the milliseconds of each stage.

        ``options.rerank`` is True for the server's re-ranker.
        """
        if options.reranks and self._ranker is None:
            raise InputError("rerank: this server has no re-ranker; an operator can add one with --reranker")
        self._limits.check([query])
        self._limits.check_filter(options.filter)
        is_lexical = options.mode != "dense" and self.collection.manifest.lexical
        is_dense = options.mode != "lexical"
        passes = {
            "filter": len(options.filter or ()),
            "dense": options.effort * is_dense,
            "lexical": int(is_lexical),
        }
        units = {stage: len(self.collection) * count for stage, count in passes.items() if count}
        price = self._embedder.price([query]) * is_dense
        price += sum(self._rates[stage].seconds(count) for stage, count in units.items())
        if options.reranks and self._ranker is not None:
            price += self._ranker.price(query, [self._characters] * options.reranked)

        def begin() -> Steps:
            self._refresh()
            ranker = self._ranker.model if options.reranks and self._ranker is not None else None
            return self.collection.search_steps(query, dataclasses.replace(options, rerank=ranker))

        with self._admission.reserve(price):
            hits = await self._run(await _offload(self._readers, begin))
        for stage, count in units.items():
            if stage in hits.latency_ms:  # a filter may have no conditions
                self._rates[stage].learn(count, hits.latency_ms[stage] / 1000)
        return hits

    async def _run(self, steps: Steps) -> Hits:
        """Run a search with the server's models."""
        result: Any = None
        while True:
            with span("search the index"):
                step = await _offload(self._readers, steps.send, result)
            if isinstance(step, Encode):
                result = (await self._embedder.run(step.queries, role="query")).rows
            elif isinstance(step, Score):
                result = [await self._score(*pair) for pair in zip(step.queries, step.texts, strict=True)]
            else:
                return step[0]

    async def _score(self, query: str, texts: Sequence[str]) -> FloatArray:
        assert self._ranker is not None
        if not texts:
            return np.empty(0, np.float32)
        self._characters = sum(map(len, texts)) // len(texts)
        return (await self._ranker.run([(query, text) for text in texts])).scores

    def card(self) -> dict[str, Any]:
        """Describe the collection."""
        manifest = self.collection.manifest
        return {
            "model": manifest.model,
            "reranker": None if self._ranker is None else self._ranker.manifest.name,
            "documents": len(self.collection),
            "lexical": manifest.lexical,
            "index": self.collection.store.stats().get("index", manifest.index),
        }

    async def map(self) -> dict[str, Any]:
        """Return the documents in two dimensions, computed once for each state of the collection."""
        return await _offload(self._map_pool, self._map)

    def _map(self) -> dict[str, Any]:
        self._refresh()
        manifest = self.collection.manifest
        if self._drawn is None or self._drawn[0] != manifest:
            documents, embeddings = self.collection.sample(_MAP_POINTS)
            points, explained = to_plane(embeddings)
            drawn = [
                {"id": document.id, "x": x, "y": y, "text": document.text[:_MAP_CHARACTERS]}
                for document, (x, y) in zip(documents, points.tolist(), strict=True)
            ]
            self._drawn = manifest, {"points": drawn, "explained": explained}
        return self._drawn[1]

    async def get(self, id_: str) -> Document | None:
        """Return the document with this id, or None."""

        def work() -> Document | None:
            self._refresh()
            return self.collection.get(id_)

        return await _offload(self._readers, work)

    async def find(
        self, conditions: Filter | None, *, limit: int, offset: int = 0
    ) -> tuple[list[Document], list[str]]:
        """Return documents that a filter selects, in their order, and warnings on fields that no document has."""

        def work() -> list[Document]:
            return self.collection.find(conditions, limit=offset + limit)[offset:]

        return await self._filtered(conditions, work)

    async def count(self, conditions: Filter | None) -> tuple[int, list[str]]:
        """Return the number of documents that a filter selects, and warnings."""
        return await self._filtered(conditions, lambda: self.collection.count(conditions))

    async def _filtered(self, conditions: Filter | None, work: Callable[[], Result]) -> tuple[Result, list[str]]:
        self._limits.check_filter(conditions)

        def refreshed() -> tuple[Result, list[str]]:
            self._refresh()
            return work(), self._warnings(conditions)

        documents = len(self.collection)
        with self._admission.reserve(self._rates["find"].seconds(documents)):
            began = time.monotonic()
            found = await _offload(self._readers, refreshed)
            self._rates["find"].learn(documents, time.monotonic() - began)
        return found

    def _warnings(self, conditions: Filter | None) -> list[str]:
        return list(self.collection.store.view().select(parse_filter(conditions)).warnings)

    async def fields(self) -> dict[str, Any]:
        """Return the fields of some documents, which filters may name, each with an example of its values."""
        return await _offload(self._map_pool, self._fields)

    def _fields(self) -> dict[str, Any]:
        self._refresh()
        documents, _ = self.collection.sample(_DOCUMENTS_FOR_FIELDS)
        fields: dict[str, Any] = {}
        for document in documents:
            for name, value in flattened(document.metadata or {}):
                if fields.get(name) in (None, [], {}) and not (isinstance(value, Mapping) and value):
                    fields[name] = value
        return fields

    async def upsert(self, records: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
        """Add and replace documents; return the number of each."""
        texts = [text for record in records if isinstance(text := record.get("text"), str)]
        self._limits.check(texts)
        work = functools.partial(self.collection.upsert, records, merge=False, show_progress_bar=False)
        done = await self._write("upsert", sum(map(len, texts)), work)
        self._merge_soon()
        return done.added, done.replaced

    async def update(self, metadata: Mapping[str, Mapping[str, Any]]) -> int:
        """Change metadata of documents by their ids; return the number of existing ones."""
        self._limits.check(list(metadata))
        changed = await self._write(
            "update", len(metadata), functools.partial(self.collection.update, metadata, merge=False)
        )
        self._merge_soon()
        return changed

    async def _write(self, kind: str, count: int, work: Callable[[], Result]) -> Result:
        with self._admission.reserve(self._rates[kind].seconds(count)):
            began = time.monotonic()
            done: Result = await _offload(self._writer, retry_while_busy, work, _PATIENCE_S)
            self._rates[kind].learn(count, time.monotonic() - began)
        return done

    def _merge_soon(self) -> None:
        if self._merging is None or self._merging.done():
            self._merging = self._merger.submit(self._merge)

    def _merge(self) -> None:
        """Merge segments left by upserts; a failed merge is retried after the next upsert."""
        try:
            while not self._closed and self.collection.merge():
                pass
        except CollectionBusyError:
            pass  # another worker may be merging already
        except EmbedkitError as error:
            if not self._closed:
                logger.warning("segments were not merged: %s", error)

    async def delete(self, ids: Sequence[str] | None, conditions: Filter | None = None) -> int:
        """Delete documents by their ids, or all that a filter selects; return the number of existing ones."""
        self._limits.check(ids or [])
        self._limits.check_filter(conditions)
        count = len(self.collection) if ids is None else len(ids)
        work = functools.partial(self.collection.delete, ids, filter=conditions)
        return await self._write("delete", count, work)

    def close(self) -> None:
        """Stop the threads, and a merge that is running."""
        self._closed = True
        if self._merging is not None and not self._merging.done():
            self.collection.close()
        for threads in (self._readers, self._writer, self._map_pool, self._merger):
            threads.shutdown(wait=False)

    def _refresh(self) -> None:
        """Follow the writes of other processes; the last state that could be opened is searched until a reload."""
        now = time.monotonic()
        if now - self._refreshed < self._refresh_s:
            return
        self._refreshed = now
        try:
            self.collection.refresh()
        except EmbedkitError as error:
            if str(error) != self._obstacle:
                self._obstacle = str(error)
                logger.error(  # noqa: TRY400 - for operators
                    "the collection has changed and cannot be opened; its earlier state remains in use: %s",
                    error,
                )
        else:
            self._obstacle = ""


async def _offload(threads: ThreadPoolExecutor, work: Callable[..., Result], *arguments: Any) -> Result:
    return await asyncio.get_running_loop().run_in_executor(threads, work, *arguments)


def to_plane(embeddings: FloatArray) -> tuple[FloatArray, float]:
    """Project embeddings ``(N, D)`` to their two principal axes, each from -1 to 1.

    Returns:
        ``(N, 2) float32``, and the share of the variance along the two axes. The sign of an axis is chosen so that
        the most distant point is positive, so that equal embeddings give an equal map.
    """
    points = np.zeros((len(embeddings), 2), dtype=np.float32)
    if not len(embeddings):
        return points, 0.0
    centred = embeddings.astype(np.float64) - embeddings.mean(axis=0, dtype=np.float64)
    variances, axes = np.linalg.eigh(centred.T @ centred)
    projected = centred @ axes[:, ::-1][:, :2]
    points[:, : projected.shape[1]] = projected
    farthest = points[np.abs(points).argmax(axis=0), np.arange(2)]
    points /= np.where(farthest == 0, 1, farthest)
    total = float(variances.sum())
    return points, float(variances[::-1][:2].sum()) / total if total > 0 else 0.0
