"""Batches as a pure function of corpus, seed and step: a resumed run sees the batches of an uninterrupted one.

Augmentations make two views, different inputs with the same meaning, of one sentence. They act on the word pieces
of the truncated text and never change the first and last token.
"""

from __future__ import annotations

import dataclasses
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Sequence
from queue import SimpleQueue
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from embedkit.config import setting
from embedkit.errors import ConfigError
from embedkit.protocols import FloatArray
from embedkit.runtime.tokenization import PairTokenizer, TokenBatch, Tokenizer, Tokens
from embedkit.training.corpus import Corpus
from embedkit.training.method import Batch, BatchSpec, View
from embedkit.training.teachers import TeacherVectors

_PREFETCH = 4
_CHUNK_TOKENS = 128  # minimum tokens of a chunk, except the last
_MOST_CHUNK_TOKENS = 8192
_MOST_PADDING = 1.1  # maximum ratio of padded to unpadded tokens in a chunk
_GPU_CHUNKS = 4
_GPU_LENGTHS = 16  # of which a chunk's length is a multiple


Augmentation = Callable[[list[int], float, int, np.random.Generator], list[int]]
AugmentationName = Literal["none", "shuffle", "inversion", "deletion", "repetition", "span"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ViewsConfig:
    """How the views of a batch are made from the corpus columns."""

    first: AugmentationName = setting("none", "augmentation of view 1")
    second: AugmentationName = setting(
        "none", "augmentation of view 2; with none, views of one column differ by dropout only"
    )
    positives: tuple[AugmentationName, ...] = setting(
        (), "one augmentation per positive, for methods that use positives; empty: the method's own list"
    )
    rate: float = setting(0.2, "share of the inner word pieces that an augmentation changes", above=0, maximum=1)


def augment(
    ids: list[int], name: str, *, rate: float, max_length: int, generator: np.random.Generator
) -> list[int]:
    """Return an augmented copy of a text's token ids; first and last token and at least one between them are kept.

    Deletion, repetition and span change a share ``rate`` of the inner pieces, rounded (half to even); a text so
    short that it rounds to 0 is unchanged. A view has at most ``max_length`` tokens.
    """
    inner = ids[1:-1]
    if not inner:
        return ids
    changed = AUGMENTATIONS[name](inner, rate, max_length - 2, generator)
    return [ids[0], *changed, ids[-1]]


def _none(inner: list[int], _rate: float, _capacity: int, _generator: np.random.Generator) -> list[int]:
    return inner


def _shuffle(inner: list[int], _rate: float, _capacity: int, generator: np.random.Generator) -> list[int]:
    """Put all pieces in random order (PCL, shuffled sentence)."""
    return [inner[place] for place in generator.permutation(len(inner)).tolist()]


def _inversion(inner: list[int], _rate: float, _capacity: int, _generator: np.random.Generator) -> list[int]:
    """Reverse the order of all pieces (PCL, inversed sentence)."""
    return inner[::-1]


def _deletion(inner: list[int], rate: float, _capacity: int, generator: np.random.Generator) -> list[int]:
    """Drop round(rate * L) pieces at random places (PCL, word deletion)."""
    gone = generator.permutation(len(inner))[: _fewer_than_all(inner, rate)]
    dropped = set(gone.tolist())
    return [piece for place, piece in enumerate(inner) if place not in dropped]


def _repetition(inner: list[int], rate: float, capacity: int, generator: np.random.Generator) -> list[int]:
    """Insert copies of random pieces at random places, as many as fit (PCL, word repetition)."""
    result = list(inner)
    for _ in range(min(round(rate * len(inner)), capacity - len(inner))):
        piece = result[int(generator.integers(len(result)))]
        result.insert(int(generator.integers(len(result) + 1)), piece)
    return result


def _span(inner: list[int], rate: float, _capacity: int, generator: np.random.Generator) -> list[int]:
    """Drop one run of round(rate * L) consecutive pieces."""
    length = _fewer_than_all(inner, rate)
    start = int(generator.integers(len(inner) - length + 1))
    return inner[:start] + inner[start + length :]


def _fewer_than_all(inner: list[int], rate: float) -> int:
    return min(round(rate * len(inner)), len(inner) - 1)


AUGMENTATIONS: dict[str, Augmentation] = {
    "none": _none,
    "shuffle": _shuffle,
    "inversion": _inversion,
    "deletion": _deletion,
    "repetition": _repetition,
    "span": _span,
}


class Batches(ABC):
    """Batches of a run, each determined by its step alone.

    A recipe has checked beforehand that there are enough rows.

    Args:
        count: number of rows in an epoch.
        batch_size: B.
        seed: seed of the order; each epoch is a new permutation and drops the last incomplete batch.

    Attributes:
        steps_per_epoch: number of batches in an epoch.
        on_gpu: whether views are split as suits a GPU; see :func:`chunk_view`.
    """

    def __init__(self, count: int, *, batch_size: int, seed: int) -> None:
        self.steps_per_epoch = count // batch_size
        self.on_gpu = False
        self._count, self._batch_size, self._seed = count, batch_size, seed
        self._epoch = -1
        self._order = np.empty(0, dtype=np.int64)

    @abstractmethod
    def batch(self, step: int) -> Batch:
        """Return the batch of a step, counted from 0."""

    def stream(self, start: int, stop: int) -> Generator[Batch]:
        """Yield the batches of steps ``start`` to ``stop``, prefetched by a background thread.

        Closing the generator stops the thread.
        """
        # Ctrl-C can leave a lock of `Queue`, `Event` and `Semaphore` locked, which are written in Python.
        ahead: SimpleQueue[Batch | BaseException] = SimpleQueue()
        places: SimpleQueue[None] = SimpleQueue()  # one item for each batch that may be prefetched
        for _ in range(_PREFETCH):
            places.put(None)
        ended = False

        def produce() -> None:
            try:
                for step in range(start, stop):
                    places.get()
                    if ended:
                        return
                    ahead.put(self.batch(step))
            except BaseException as error:  # noqa: BLE001 - handed to the consumer, which raises it
                ahead.put(error)

        thread = threading.Thread(target=produce, name="embedkit-batches", daemon=True)
        thread.start()
        try:
            for _ in range(start, stop):
                item = ahead.get()
                if isinstance(item, BaseException):
                    raise item
                places.put(None)
                yield item
        finally:
            ended = True
            places.put(None)
            thread.join()

    def rows(self, step: int) -> npt.NDArray[np.int64]:
        """Return the rows in a step's batch, ``(B,) int64``."""
        epoch, place = divmod(step, self.steps_per_epoch)
        if epoch != self._epoch:
            self._order = np.random.default_rng([self._seed, 0, epoch]).permutation(self._count)
            self._epoch = epoch
        return self._order[place * self._batch_size : (place + 1) * self._batch_size]


class BatchSource(Batches):
    """Batches of texts.

    Each view is split into chunks of similar length, which saves most of the padding and does not change the
    result. ``rows`` are the rows of the corpus to train on, by default all; ``scores`` are labels of all its rows,
    ``(N,) float32``. Teachers are read only if the method needs them. :func:`check_batches` has checked the rest.
    """

    def __init__(
        self,
        corpus: Corpus,
        tokenizer: Tokenizer,
        *,
        spec: BatchSpec,
        batch_size: int,
        seed: int,
        views: ViewsConfig,
        teachers: Sequence[TeacherVectors] = (),
        rows: npt.NDArray[np.int64] | None = None,
        scores: FloatArray | None = None,
    ) -> None:
        self._rows = np.arange(len(corpus)) if rows is None else rows
        super().__init__(len(self._rows), batch_size=batch_size, seed=seed)
        self._corpus, self._tokenizer = corpus, tokenizer
        self._augmentations, self._rate = _augmentations(spec, views), views.rate
        columns = [min(view, corpus.views - 1) for view in range(spec.views)]
        # The corpus column of each view; positives are made from the first column.
        self._columns = columns + [0] * (len(self._augmentations) - len(columns))
        self._teachers = tuple(teachers) if spec.teacher else ()
        self._scores = scores

    def batch(self, step: int) -> Batch:
        """Return the batch of a step, counted from 0."""
        rows = self._rows[self.rows(step)]
        generator = np.random.default_rng([self._seed, 1, step])
        columns, pad_id, length = self._columns, self._tokenizer.pad_id, self._tokenizer.max_length
        # A column that serves both views is tokenized once, and both views share one tensor of teacher vectors,
        # from which methods then compute their targets once.
        ids = {column: self._tokenizer.tokenize(self._corpus.texts(rows, column)).ids for column in set(columns)}
        views = []
        for column, name in zip(columns, self._augmentations, strict=True):
            shown: Sequence[list[int]] = ids[column]
            if name != "none":
                shown = [
                    augment(row, name, rate=self._rate, max_length=length, generator=generator) for row in shown
                ]
            views.append(chunk_view(Tokens(shown, []), pad_id, gpu_limit=length if self.on_gpu else None))
        scores = None if self._scores is None else torch.from_numpy(self._scores[rows])
        return Batch(tuple(views), tuple(_vectors(teacher, rows, columns) for teacher in self._teachers), scores)


def check_batches(spec: BatchSpec, count: int, *, columns: int, batch_size: int, views: ViewsConfig) -> None:
    """Check that batches can be made for a method, before any teacher encodes the corpus.

    ``count`` is the number of rows in an epoch, ``columns`` the number of texts in a row.

    Raises:
        ConfigError: corpus, batch size or views do not fit the method.
    """
    check_count(count, batch_size)
    if batch_size < spec.rows:
        raise ConfigError(
            f"this method needs batches of at least {spec.rows} rows, not optim.batch_size = {batch_size}"
        )
    if spec.views < columns:
        raise ConfigError(
            f"this method trains on one text per row, but the corpus has {columns}: name the column to train on "
            "with text_column, or list the file twice in [[corpus]], once for each column",
            parameters=["text_column"],
        )
    if spec.views < 2 and views.second != "none":
        raise ConfigError("this method has one view; remove views.second")
    if spec.views > 2:
        raise ConfigError(f"this method needs {spec.views} views; at most two are supported")
    _augmentations(spec, views)


def check_count(count: int, batch_size: int) -> None:
    """Check that there are enough rows for a batch.

    Raises:
        ConfigError: there are not.
    """
    if count < batch_size:
        raise ConfigError(
            f"the corpus has {count:,} rows, fewer than optim.batch_size = {batch_size}; "
            "add text or lower the batch size"
        )


def chunk_view(tokens: Tokens, pad_id: int, *, gpu_limit: int | None = None) -> View:
    """Split the rows of a batch into chunks of similar length.

    On a GPU, a new shape costs more than padding: with ``gpu_limit``, the maximum length of a row, there are few
    chunks of equally many rows, and few different lengths.
    """
    lengths = np.array([len(row) for row in tokens.ids])
    by_length = np.argsort(lengths, kind="stable")
    chunks, types = [], []
    size = -(-len(lengths) // _GPU_CHUNKS)
    cuts = _cuts(lengths[by_length]) if gpu_limit is None else list(range(size, len(lengths), size))
    for rows in np.split(by_length, cuts):
        batch = tokens.batch(rows, pad_id)
        if gpu_limit is not None:
            batch = _lengthen(batch, pad_id, gpu_limit)
        chunks.append((torch.from_numpy(batch.input_ids), torch.from_numpy(batch.attention_mask)))
        if batch.token_type_ids is not None:
            types.append(torch.from_numpy(batch.token_type_ids))
    return View(tuple(chunks), torch.from_numpy(np.argsort(by_length, kind="stable")), tuple(types))


def _cuts(lengths: npt.NDArray[np.int64]) -> list[int]:
    """Return where to split ascending lengths so that padding and memory stay low, and chunks few."""
    cuts, start, tokens = [], 0, 0
    for row, length in enumerate(lengths.tolist()):
        padded = length * (row - start + 1)
        is_padding = tokens >= _CHUNK_TOKENS and padded > _MOST_PADDING * (tokens + length)
        if row > start and (is_padding or padded > _MOST_CHUNK_TOKENS):
            cuts.append(row)
            start, tokens = row, 0
        tokens += length
    return cuts


def _lengthen(batch: TokenBatch, pad_id: int, limit: int) -> TokenBatch:
    """Pad a batch to a multiple of a length, or to the limit."""
    length = batch.input_ids.shape[1]
    wanted = max(length, min(-(-length // _GPU_LENGTHS) * _GPU_LENGTHS, limit))
    more = ((0, 0), (0, wanted - length))
    types = batch.token_type_ids
    return TokenBatch(
        np.pad(batch.input_ids, more, constant_values=pad_id),
        np.pad(batch.attention_mask, more),
        None if types is None else np.pad(types, more),
    )


def _augmentations(spec: BatchSpec, views: ViewsConfig) -> tuple[str, ...]:
    """Return the name of each view's augmentation."""
    if views.positives and not spec.positives:
        raise ConfigError("this method uses no positives; remove views.positives")
    return (*(views.first, views.second)[: spec.views], *(views.positives or spec.positives))


def _vectors(teacher: TeacherVectors, rows: npt.NDArray[np.int64], columns: Sequence[int]) -> tuple[Tensor, ...]:
    """Return a teacher's vectors for each view, one shared tensor where views share a column."""
    read = {column: torch.from_numpy(teacher.read(rows, column)) for column in set(columns)}
    return tuple(read[column] for column in columns)


class PairBatchSource(Batches):
    """Batches of pairs of texts.

    ``scores`` are the labels of all rows, ``(N,) float32``. With ``both_orders`` an epoch has every pair twice, as
    ``(first, second)`` and ``(second, first)``.
    """

    def __init__(
        self,
        corpus: Corpus,
        tokenizer: PairTokenizer,
        *,
        scores: FloatArray,
        batch_size: int,
        seed: int,
        both_orders: bool = True,
    ) -> None:
        super().__init__(len(corpus) * (2 if both_orders else 1), batch_size=batch_size, seed=seed)
        self._corpus, self._tokenizer, self._scores = corpus, tokenizer, scores

    def batch(self, step: int) -> Batch:
        """Return the batch of a step, counted from 0."""
        turned, rows = np.divmod(self.rows(step), len(self._corpus))
        first, second = self._corpus.texts(rows, 0), self._corpus.texts(rows, 1)
        pairs = [
            (after, before) if turn else (before, after)
            for before, after, turn in zip(first, second, turned.tolist(), strict=True)
        ]
        return pair_batch(self._tokenizer, pairs, self._scores[rows], on_gpu=self.on_gpu)


class GroupBatches(Batches):
    """Batches of groups, consecutive pairs of one query; ``batch_size`` and ``group`` count pairs."""

    def __init__(self, queries: int, tokenizer: PairTokenizer, *, batch_size: int, group: int, seed: int) -> None:
        super().__init__(queries, batch_size=batch_size // group, seed=seed)
        self._tokenizer, self._group, self._choice = tokenizer, group, seed

    @abstractmethod
    def draw(
        self, queries: npt.NDArray[np.int64], generator: np.random.Generator
    ) -> tuple[Iterable[tuple[str, str]], FloatArray]:
        """Draw the pairs of each query's group, and their scores."""

    def batch(self, step: int) -> Batch:
        """Return the batch of a step, counted from 0."""
        pairs, scores = self.draw(self.rows(step), np.random.default_rng([self._choice, 1, step]))
        return pair_batch(self._tokenizer, list(pairs), scores, on_gpu=self.on_gpu)


def check_groups(queries: int, *, batch_size: int, group: int) -> None:
    """Check that groups fill a batch.

    Raises:
        ConfigError: they do not.
    """
    if batch_size % group:
        raise ConfigError(f"settings.group = {group} must divide optim.batch_size = {batch_size}")
    if queries * group < batch_size:
        raise ConfigError(
            f"{queries:,} queries with settings.group = {group} pairs each are fewer pairs than "
            f"optim.batch_size = {batch_size}; add queries or lower the batch size"
        )


def pair_batch(
    tokenizer: PairTokenizer, pairs: Sequence[tuple[str, str]], scores: FloatArray, *, on_gpu: bool
) -> Batch:
    """Return a batch of pairs with their scores, ``(B,) float32``."""
    limit = tokenizer.max_length if on_gpu else None
    view = chunk_view(tokenizer.tokenize(pairs), tokenizer.pad_id, gpu_limit=limit)
    return Batch((view,), scores=torch.from_numpy(np.ascontiguousarray(scores)))
