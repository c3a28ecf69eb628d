"""Chunks of a stream, batches of similar length, and the runner of token batches.

Chunks bound the memory; token batches inside a chunk waste little padding.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from embedkit.errors import InputError, shown
from embedkit.progress import Progress
from embedkit.protocols import FloatArray, StreamingEncoder, TextEncoder
from embedkit.runtime.arguments import check_count
from embedkit.runtime.tokenization import Tokens
from embedkit.threads import submit_each

_Batch = TypeVar("_Batch")  # the items of a batch: a slice, or positions
_Item = TypeVar("_Item")

_CHUNK_ITEMS = 4096
_CHUNK_CHARACTERS = 4_000_000


class Backend(Protocol[_Batch]):
    """Turns batches of tokens into results: an ``OnnxBackend`` or a ``KernelBackend``.

    Attributes:
        lanes: number of threads that may call :meth:`fill` concurrently, each with its own lane.
    """

    lanes: int

    def batches(
        self, lengths: npt.NDArray[np.int64], *, most_tokens: int | None, most_items: int | None
    ) -> Sequence[_Batch]:
        """Return the items of each batch."""

    def fill(self, rows: FloatArray, items: _Batch, tokens: Tokens, lane: int | None = None) -> None:
        """Write the results of one batch to ``rows[items]``, ``(B, *shape) float32``."""


class BatchRunner:
    """Runs a backend on the tokens of any number of texts or pairs; thread-safe.

    Args:
        backend: what runs a batch.
        shape: of one item's result, ``(D,)`` or ``()``.
        max_tokens_per_batch: maximum number of items in a batch times its longest in tokens; chosen by device
            if None.

    Raises:
        InputError: ``max_tokens_per_batch`` is not a positive integer.
    """

    def __init__(
        self, backend: Backend[Any], *, shape: tuple[int, ...], max_tokens_per_batch: int | None = None
    ) -> None:
        self._backend, self._shape = backend, shape
        self._max_tokens = check_count(max_tokens_per_batch, "max_tokens_per_batch")

    def run(self, tokens: Tokens, batch_size: int | None = None, progress: Progress | None = None) -> FloatArray:
        """Return ``(N, *shape) float32`` in the order of the tokens; lanes run batches concurrently.

        Raises:
            InputError: these are not tokens.
        """
        if not isinstance(tokens, Tokens):
            raise InputError(f"tokens must be a result of tokenize, not {shown(tokens)}")
        count = len(tokens.ids)
        rows = np.empty((count, *self._shape), dtype=np.float32)
        if count == 1:
            self._backend.fill(rows, slice(0, 1), tokens)
            return rows
        batches = self._backend.batches(tokens.lengths, most_tokens=self._max_tokens, most_items=batch_size)
        lanes = min(self._backend.lanes, len(batches))
        if lanes < 2:
            for items in batches:
                self._backend.fill(rows, items, tokens)
                if progress:
                    progress.advance(len(rows[items]))
            return rows
        pending, counting = deque(batches), Lock()

        def work(lane: int) -> None:
            try:
                for items in _take(pending):
                    self._backend.fill(rows, items, tokens, lane)
                    if progress:
                        with counting:
                            progress.advance(len(rows[items]))
            finally:
                pending.clear()  # an exception in one lane stops all

        # One pool per call: a persistent one would be dead in a forked process, and threads start in microseconds.
        with ThreadPoolExecutor(lanes - 1) as pool:
            others = submit_each(pool, work, range(1, lanes))
            work(0)
            for other in others:
                other.result()
        return rows


def _take(pending: deque[_Item]) -> Iterator[_Item]:
    """Yield pending items in order, while other threads take items as well."""
    with contextlib.suppress(IndexError):  # another thread took the last item
        while True:
            yield pending.popleft()


def read_chunks(
    items: Iterable[Any], *, most_items: int | None = None, most_characters: int | None = None
) -> Iterator[list[Any]]:
    """Cut a stream of texts or pairs into lists, in order, each closed by the item that reaches a bound.

    By default, these are 4096 items and about 4 million characters.
    An item that is neither a text nor a pair counts no characters; the tokenizer refuses it by its position.
    """
    most_items, most_characters = most_items or _CHUNK_ITEMS, most_characters or _CHUNK_CHARACTERS
    chunk: list[Any] = []
    characters = 0
    for item in items:
        chunk.append(item)
        texts = item if isinstance(item, (tuple, list)) else (item,)
        characters += sum(len(text) for text in texts if isinstance(text, str))
        if len(chunk) >= most_items or characters >= most_characters:
            yield chunk
            chunk, characters = [], 0
    if chunk:
        yield chunk


def embed_chunks(encoder: TextEncoder, texts: Iterable[str]) -> Iterator[FloatArray]:
    """Embed texts chunk by chunk, ``(n, D) float32, unit rows``, for callers that show progress themselves."""
    if isinstance(encoder, StreamingEncoder):
        yield from encoder.encode_batches(texts, show_progress_bar=False)
    else:
        yield from (encoder.encode(chunk) for chunk in read_chunks(texts))


def batch_by_length(
    lengths: npt.NDArray[np.int64], *, most_tokens: int, most_texts: int | None = None
) -> Iterator[npt.NDArray[np.intp]]:
    """Group texts of similar length so that a batch, padding included, keeps within a budget.

    A text of more than ``most_tokens`` is a batch of its own.

    Yields:
        ``(B,)`` positions of the texts of a batch, longest first; every position comes once. The
        longest batch comes first, so that memory is allocated once.
    """
    order = np.argsort(-lengths, kind="stable")
    start = 0
    while start < len(order):
        longest = int(lengths[order[start]])
        size = max(1, most_tokens // max(1, longest))
        size = size if most_texts is None else min(size, most_texts)
        yield order[start : start + size]
        start += size
