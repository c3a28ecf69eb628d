"""The collection of a server: searched and changed in threads of its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from embedkit.runtime.threads import available_threads
from embedkit.serving.retrieval.collection import Collection
from embedkit.serving.retrieval.documents import Document
from embedkit.serving.retrieval.hits import Hit

__all__ = ["Library"]

Result = TypeVar("Result")


class Library:
    """A collection that many requests search; what other processes write is seen within ``refresh_s`` seconds.

    Attributes:
        collection: as given.
    """

    def __init__(self, collection: Collection, refresh_s: float) -> None:
        self.collection, self._refresh_s = collection, refresh_s
        self._readers = ThreadPoolExecutor(available_threads(), thread_name_prefix="search")
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="write")
        self._refreshed = time.monotonic()

    async def search(
        self, query: str, k: int, *, conditions: Mapping[str, Any] | None = None
    ) -> tuple[list[Hit], dict[str, float]]:
        """The best hits, and the milliseconds of each stage.

        Raises:
            InputError: the query, ``k`` or the filter makes no sense.
            CollectionError: a file is damaged.
        """

        def work() -> tuple[list[Hit], dict[str, float]]:
            self._refresh()
            began = time.perf_counter()
            embeddings = self.collection.encode_queries([query])
            encoded = time.perf_counter()
            (hits,) = self.collection.search_embeddings(embeddings, k, filter=conditions)
            return hits, {"encode": 1e3 * (encoded - began), "dense": 1e3 * (time.perf_counter() - encoded)}

        return await _beside(self._readers, work)

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
        self._readers.shutdown(wait=False)
        self._writer.shutdown(wait=False)

    def _refresh(self) -> None:
        now = time.monotonic()
        if now - self._refreshed >= self._refresh_s:
            self._refreshed = now
            self.collection.refresh()


async def _beside(threads: ThreadPoolExecutor, work: Callable[[], Result]) -> Result:
    return await asyncio.get_running_loop().run_in_executor(threads, work)
