"""The collection of a server: searched and changed in threads of its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from embedkit.errors import InputError
from embedkit.runtime.threads import available_threads
from embedkit.serving.http.plane import to_plane
from embedkit.serving.retrieval.collection import Collection
from embedkit.serving.retrieval.documents import Document
from embedkit.serving.retrieval.hits import Hits
from embedkit.serving.retrieval.manifest import Manifest
from embedkit.serving.retrieval.rerank import Reranker

__all__ = ["Library"]

Result = TypeVar("Result")

_MAP_POINTS = 4000
_MAP_CHARACTERS = 200


class Library:
    """A collection that many requests search; what other processes write is seen within ``refresh_s`` seconds.

    Attributes:
        collection: as given.
    """

    def __init__(self, collection: Collection, reranker: Reranker | None, refresh_s: float) -> None:
        self.collection, self._reranker, self._refresh_s = collection, reranker, refresh_s
        self._readers = ThreadPoolExecutor(available_threads(), thread_name_prefix="search")
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="write")
        self._cartographer = ThreadPoolExecutor(1, thread_name_prefix="map")
        self._refreshed = time.monotonic()
        self._drawn: tuple[Manifest, dict[str, Any]] | None = None

    async def search(
        self,
        query: str,
        k: int,
        *,
        conditions: Mapping[str, Any] | None = None,
        hybrid: bool | str | None = None,
        rerank: bool = False,
        candidates: int | None = None,
        effort: float = 1.0,
    ) -> Hits:
        """The best hits, with the scores and the milliseconds of each stage.

        Args:
            query: a text.
            k: hits wanted.
            conditions: what has to hold for the metadata.
            hybrid: how a search by words is fused with that by meaning, True for by ranks; None or False for none.
            rerank: whether the re-ranker has the last word.
            candidates: documents that a stage hands on to the next.
            effort: how hard an approximate index looks.

        Raises:
            InputError: an argument makes no sense, the collection has no words, or there is no re-ranker.
            CollectionError: a file is damaged.
        """
        if rerank and self._reranker is None:
            raise InputError("rerank: this server has no re-ranker; an operator can give it one with --reranker")

        def work() -> Hits:
            self._refresh()
            reranker = self._reranker if rerank else None
            return self.collection.search(
                query,
                k,
                filter=conditions,
                hybrid=hybrid,
                rerank=reranker,
                candidates=candidates,
                effort=effort,
            )

        return await _beside(self._readers, work)

    def card(self) -> dict[str, Any]:
        """What the collection holds."""
        manifest = self.collection.manifest
        return {
            "model": manifest.model,
            "reranker": None if self._reranker is None else self._reranker.name,
            "documents": len(self.collection),
            "lexical": manifest.lexical,
        }

    async def map(self) -> dict[str, Any]:
        """The documents in two dimensions; computed once for each state of the collection.

        Raises:
            CollectionError: a file is damaged.
        """
        return await _beside(self._cartographer, self._map)

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
        """The document with this id, or None."""

        def work() -> Document | None:
            self._refresh()
            return self.collection.get(id_)

        return await _beside(self._readers, work)

    async def upsert(self, records: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
        """Add and replace documents: how many of each.

        Raises:
            DataError: a document is malformed or empty, or an id is given twice.
            CollectionError: another process is writing there.
        """
        done = await _beside(self._writer, lambda: self.collection.upsert(records, show_progress_bar=False))
        return done.added, done.replaced

    async def delete(self, ids: Sequence[str]) -> int:
        """Delete documents: how many were there.

        Raises:
            CollectionError: another process is writing there.
        """
        return await _beside(self._writer, lambda: self.collection.delete(ids))

    def close(self) -> None:
        """Let the threads end."""
        for threads in (self._readers, self._writer, self._cartographer):
            threads.shutdown(wait=False)

    def _refresh(self) -> None:
        now = time.monotonic()
        if now - self._refreshed >= self._refresh_s:
            self._refreshed = now
            self.collection.refresh()


async def _beside(threads: ThreadPoolExecutor, work: Callable[[], Result]) -> Result:
    return await asyncio.get_running_loop().run_in_executor(threads, work)
