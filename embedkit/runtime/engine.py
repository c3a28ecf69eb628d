"""The engine shared by encoders and cross-encoders: runs token batches and reports truncation.

Chunks bound the memory; token batches inside a chunk waste little padding.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Callable, Container, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock
from typing import Any, Literal, Protocol, TypedDict, TypeVar, get_args

import numpy as np
import numpy.typing as npt

from embedkit.errors import InputError, TextOverflowError, shown
from embedkit.progress import Progress
from embedkit.protocols import FloatArray, StreamingEncoder, TextEncoder
from embedkit.runtime.arguments import check_choice, check_count, check_progress
from embedkit.runtime.numerics import digest_of
from embedkit.runtime.packing import Precision
from embedkit.runtime.tokenization import Tokens
from embedkit.threads import submit_each

logger = logging.getLogger("embedkit")

OnOverflow = Literal["truncate", "error"]
OnLong = Literal["truncate", "error", "windows"]
_ON_LONG = get_args(OnLong)
_Batch = TypeVar("_Batch")  # the items of a batch: a slice, or positions
_Item = TypeVar("_Item")

_CHUNK_ITEMS = 4096
_CHUNK_CHARACTERS = 4_000_000
_POSITIONS_NAMED = 5


class Verification(TypedDict):
    """Result of running the golden texts of a bundle on this machine.

    ``texts`` golden texts (pairs for a cross-encoder) were run; ``same_tokens`` is whether their tokens agree.
    The largest absolute ``difference`` of a value may be ``tolerance``. ``same_bits`` is whether values have the
    bits that the bundle records for the arithmetic in use, or None if it records none. ``passed`` is whether all
    of this is as required.
    """

    passed: bool
    texts: int
    same_tokens: bool
    same_bits: bool | None
    difference: float
    tolerance: float


@dataclass(frozen=True, slots=True)
class Plan:
    """The validated options of one call that concern the engine.

    ``unit`` names the items in messages where the caller did not give what the engine runs.
    """

    batch_size: int | None = None
    refuse_overflow: bool = False
    windows: bool = False
    show_progress: bool | None = None
    unit: str | None = None

    @classmethod
    def choose(
        cls,
        *,
        batch_size: int | None,
        on_overflow: OnLong,
        show_progress_bar: bool | None,
        unit: str | None = None,
    ) -> Plan:
        """Validate the options of a caller.

        Raises:
            InputError: an option is invalid.
        """
        check_choice(on_overflow, _ON_LONG, "on_overflow")
        count, shows = check_count(batch_size, "batch_size"), check_progress(show_progress_bar)
        return cls(count, on_overflow == "error", on_overflow == "windows", shows, unit)


class Network(Protocol[_Batch]):
    """Turns batches of tokens into results: a ``PaddedNetwork`` or a ``NativeNetwork``.

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


class Engine:
    """Runs a network on any number of texts or pairs; thread-safe.

    Args:
        network: the network to run.
        shape: of one item's result, ``(D,)`` or ``()``.
        max_length: maximum tokens of an item, for messages.
        unit: name of the items, ``"texts"`` or ``"pairs"``.
        label: label of the progress bar.
        max_tokens_per_batch: maximum number of items in a batch times its longest in tokens; chosen by device
            if None.

    Raises:
        InputError: ``max_tokens_per_batch`` is not a positive integer.
    """

    def __init__(
        self,
        network: Network[Any],
        *,
        shape: tuple[int, ...],
        max_length: int,
        unit: str,
        label: str,
        max_tokens_per_batch: int | None = None,
    ) -> None:
        self._network, self._shape = network, shape
        self._max_length, self._unit, self._label = max_length, unit, label
        self._max_tokens = check_count(max_tokens_per_batch, "max_tokens_per_batch")

    def stream(
        self,
        items: Iterable[Any],
        run_part: Callable[[list[Any], int, Progress], tuple[FloatArray, int]],
        plan: Plan,
        total: int | None = None,
    ) -> Generator[FloatArray]:
        """Run chunk by chunk; truncation is logged in one line, however the stream ends.

        ``run_part`` runs a list of items, given the position of its first, such as :meth:`part`.

        Yields:
            ``(n, *shape) float32`` for each chunk.

        Raises:
            InputError: an item cannot be tokenized; names its position.
            TextOverflowError: an item is too long and the plan forbids truncation.
        """
        done = truncated = 0
        unit = plan.unit or self._unit
        progress = Progress(self._label, total, unit=unit, enabled=plan.show_progress)
        try:
            with progress:
                for part in read_parts(items):
                    rows, cut = run_part(part, done, progress)
                    truncated += cut
                    done += len(part)
                    yield rows
        finally:
            tell_truncated(truncated, done, unit=unit, max_length=self._max_length)

    def part(
        self,
        items: list[Any],
        first: int,
        tokenize: Callable[..., Tokens],
        plan: Plan,
        progress: Progress | None = None,
    ) -> tuple[FloatArray, int]:
        """Run one chunk of :meth:`stream`: ``(n, *shape) float32``, and the number of truncated items.

        ``tokenize`` takes the items, and the position of the ``first``.

        Raises:
            InputError, TextOverflowError: as :meth:`stream`.
        """
        tokens = tokenize(items, first=first)
        if tokens.overflowing and plan.refuse_overflow:
            described = self._describe_overflow(tokens.overflowing, first, plan.unit or self._unit)
            raise TextOverflowError(described, parameters=["on_overflow"])
        return self.run(tokens, plan.batch_size, progress), tokens.truncated

    def run(self, tokens: Tokens, batch_size: int | None = None, progress: Progress | None = None) -> FloatArray:
        """Run the network over the tokens of a chunk: ``(N, *shape) float32`` in their order.

        Raises:
            InputError: these are no tokens.
        """
        if not isinstance(tokens, Tokens):
            raise InputError(f"tokens must be a result of tokenize, not {shown(tokens)}")
        if len(tokens.ids) == 1:
            return self._run_all(tokens, [slice(0, 1)])
        batches = self._network.batches(tokens.lengths, most_tokens=self._max_tokens, most_items=batch_size)
        return self._run_all(tokens, batches, progress)

    def verify(
        self,
        tokens: Tokens,
        golden: Tokens,
        values: npt.NDArray[np.float32],
        tolerance: float,
        digest: str | None = None,
    ) -> Verification:
        """Compare tokens with golden tokens, and the results for these with golden values and their bits.

        ``digest`` is that of the bits of the network's arithmetic, if any is recorded.
        """
        same = tokens.ids == golden.ids and tokens.type_ids == golden.type_ids
        rows = self.run(golden)
        difference = float(np.abs(rows - values).max())
        same_bits = None if digest is None else digest == digest_of(rows)
        return Verification(
            passed=same and difference <= tolerance and same_bits is not False,
            texts=len(golden.ids),
            same_tokens=same,
            same_bits=same_bits,
            difference=difference,
            tolerance=tolerance,
        )

    def _run_all(self, tokens: Tokens, batches: Sequence[Any], progress: Progress | None = None) -> FloatArray:
        """Return the rows of all batches in the order of the tokens; lanes run batches concurrently."""
        rows = np.empty((len(tokens.ids), *self._shape), dtype=np.float32)
        pending = deque(batches)
        telling = Lock()

        def work(lane: int | None) -> None:
            try:
                for items in _take(pending):
                    self._network.fill(rows, items, tokens, lane)
                    if progress:
                        with telling:
                            progress.advance(len(rows[items]))
            finally:
                pending.clear()  # an exception in one lane stops all

        lanes = min(self._network.lanes, len(batches))
        if lanes < 2:
            work(None)
            return rows
        # One pool per call: a persistent one would be dead in a forked process, and threads start in microseconds.
        with ThreadPoolExecutor(lanes - 1) as pool:
            others = submit_each(pool, work, range(1, lanes))
            work(0)
            for other in others:
                other.result()
        return rows

    def _describe_overflow(self, overflowing: Sequence[int], first: int, unit: str) -> str:
        named = ", ".join(f"{unit}[{first + position}]" for position in overflowing[:_POSITIONS_NAMED])
        more = f" and {len(overflowing) - _POSITIONS_NAMED} more" if len(overflowing) > _POSITIONS_NAMED else ""
        return (
            f"longer than {self._max_length} tokens: {named}{more}; shorten them, or let them be cut with "
            'on_overflow="truncate"'
        )


def _take(pending: deque[_Item]) -> Iterator[_Item]:
    """Yield pending items in order, while other threads take items as well."""
    with contextlib.suppress(IndexError):  # another thread took the last item
        while True:
            yield pending.popleft()


def read_parts(items: Iterable[Any]) -> Iterator[list[Any]]:
    """Yield chunks of 4096 items or about 4 million characters."""
    return read_chunks(items, most_items=_CHUNK_ITEMS, most_characters=_CHUNK_CHARACTERS)


def embed_parts(encoder: TextEncoder, texts: Iterable[str]) -> Iterator[FloatArray]:
    """Embed texts part by part, ``(n, D) float32, unit rows``, for callers that show the progress of all parts."""
    if isinstance(encoder, StreamingEncoder):
        yield from encoder.encode_batches(texts, show_progress_bar=False)
    else:
        yield from (encoder.encode(part) for part in read_parts(texts))


def tell_truncated(truncated: int, done: int, *, unit: str, max_length: int) -> None:
    """Log one line if items were truncated."""
    if truncated:
        logger.warning("%d of %d %s were cut to %d tokens", truncated, done, unit, max_length)


Role = Literal["query", "document"]

_PROMPTS: dict[Role, Sequence[str]] = {"query": ("query",), "document": ("document", "passage", "corpus")}


class EncodeOptions(TypedDict, total=False):
    """Keyword arguments of :meth:`~embedkit.runtime.encoder.Encoder.encode`."""

    batch_size: int | None
    normalize_embeddings: bool
    prompt_name: str | None
    prompt: str | None
    truncate_dim: int | None
    precision: Precision
    show_progress_bar: bool | None
    on_overflow: OnLong


def with_prompt(options: EncodeOptions, role: Role, prompts: Container[str]) -> EncodeOptions:
    """Select the prompt for queries or documents, unless the caller chose one; where there is none, it is empty.

    A default prompt is often that of queries, which documents must not get.
    """
    if options.get("prompt") is not None or options.get("prompt_name") is not None:
        return options
    prompt_name = next((name for name in _PROMPTS[role] if name in prompts), None)
    return {**options, "prompt_name": prompt_name, "prompt": "" if prompt_name is None else None}


def read_chunks(items: Iterable[Any], *, most_items: int, most_characters: int) -> Iterator[list[Any]]:
    """Cut a stream of texts or pairs into lists, in order, each closed by the item that reaches a bound.

    An item that is no text and no pair counts no characters; the tokenizer refuses it by its position.
    """
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


def token_batches(
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
