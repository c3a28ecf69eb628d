"""Token ids of several texts, stored consecutively, the places of tokens in a text, and windows of a long text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, pairwise
from typing import NamedTuple, overload

import numpy as np
import numpy.typing as npt
import tokenizers

from embedkit.errors import InputError, ModelError, shown
from embedkit.runtime.tokenizer_rules import tokenizer_errors


class TokenIds(Sequence[list[int]]):
    """Lists of ids in one array: a sequence of N lists, which are created on access.

    Args:
        flat: ``(T,) int32``, all ids.
        bounds: ``(N + 1,) int64``; text i has ``flat[bounds[i] : bounds[i + 1]]``.
    """

    __slots__ = ("bounds", "flat")
    __hash__ = None  # type: ignore[assignment]  # equal to lists, which have none

    def __init__(self, flat: npt.NDArray[np.int32], bounds: npt.NDArray[np.int64]) -> None:
        self.flat, self.bounds = flat, bounds

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]]) -> TokenIds:
        """Convert ``rows``, unless they are already of this class.

        Raises:
            ModelError: an id is 2^31 or more.
        """
        if isinstance(rows, cls):
            return rows
        bounds = np.zeros(len(rows) + 1, dtype=np.int64)
        np.cumsum([len(row) for row in rows], out=bounds[1:])
        try:
            flat = np.fromiter(chain.from_iterable(rows), dtype=np.int32, count=int(bounds[-1]))
        except OverflowError:
            raise ModelError("the tokenizer gave a token id outside of 32 bits") from None
        return cls(flat, bounds)

    @classmethod
    def of_bytes(cls, flat: bytes, bounds: bytes) -> TokenIds:
        """Return the ids in the output of a tokenizer's kernel."""
        return cls(np.frombuffer(flat, dtype=np.int32), np.frombuffer(bounds, dtype=np.int64))

    @classmethod
    def cut_out(
        cls, flat: npt.NDArray[np.int32], starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
    ) -> TokenIds:
        """Return N slices of an array, by their starts and lengths."""
        bounds = np.zeros(len(starts) + 1, dtype=np.int64)
        np.cumsum(lengths, out=bounds[1:])
        places = np.arange(bounds[-1]) + np.repeat(starts - bounds[:-1], lengths)
        return cls(flat[places], bounds)

    @classmethod
    def join(cls, parts: Sequence[TokenIds]) -> TokenIds:
        """Concatenate one or more parts."""
        if len(parts) == 1:
            return parts[0]
        first = np.cumsum([len(part.bounds) for part in parts[:-1]])  # of each part but the first, in `steps`
        steps = np.diff(np.concatenate([part.bounds for part in parts]), prepend=0)
        bounds = np.zeros(len(steps) - len(parts) + 1, dtype=np.int64)
        np.cumsum(np.delete(steps, [0, *first]), out=bounds[1:])
        return cls(np.concatenate([part.flat for part in parts]), bounds)

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """``(N,)``, number of ids of each text."""
        return self.bounds[1:] - self.bounds[:-1]

    def take(self, rows: Sequence[int] | npt.NDArray[np.intp]) -> TokenIds:
        """Return some of the texts, in the order of ``rows``."""
        if len(rows) == len(self) == 1:  # fast path for a single text
            return self
        return self.cut_out(self.flat, self.bounds[:-1][rows], self.lengths[rows])

    def fill(self, positions: Sequence[int], rows: Sequence[Sequence[int]]) -> TokenIds:
        """Return a copy with these rows in place of the empty ones at ``positions``, which ascend."""
        others, lengths = TokenIds.of(rows), self.lengths
        flat = np.insert(self.flat, np.repeat(self.bounds[positions], others.lengths), others.flat)
        lengths[positions] = others.lengths
        bounds = np.zeros_like(self.bounds)
        np.cumsum(lengths, out=bounds[1:])
        return TokenIds(flat, bounds)

    def __len__(self) -> int:
        return len(self.bounds) - 1

    @overload
    def __getitem__(self, index: int) -> list[int]: ...
    @overload
    def __getitem__(self, index: slice) -> TokenIds: ...
    def __getitem__(self, index: int | slice) -> list[int] | TokenIds:
        if isinstance(index, slice):
            rows = range(len(self))[index]
            if len(rows) == len(self) and rows.step == 1:
                return self
            if rows.step != 1 or not rows:
                return self.take(rows)
            bounds = self.bounds[rows.start : rows.stop + 1]
            return TokenIds(self.flat[bounds[0] : bounds[-1]], bounds - bounds[0])
        row = range(len(self))[index]
        numbers: list[int] = self.flat[self.bounds[row] : self.bounds[row + 1]].tolist()
        return numbers

    def __iter__(self) -> Iterator[list[int]]:
        numbers: list[int] = self.flat.tolist()
        return (numbers[start:end] for start, end in pairwise(self.bounds.tolist()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(other) == len(self) and list(self) == list(other)

    def __repr__(self) -> str:
        return repr(list(self))


class TokenSpan(NamedTuple):
    """One token of a text.

    Attributes:
        id: id in the model's vocabulary.
        text: its characters in the text; the spelling of the vocabulary if special.
        special: whether the tokenizer added it.
        start: first character in the text; None if special.
        stop: end of the characters, exclusive; None if special.
    """

    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None


class TokenSpans:
    """The tokenizer of a ``tokenizer.json``, without truncation and padding."""

    def __init__(self, json: str) -> None:
        with tokenizer_errors("not a tokenizer.json"):
            self._tokenizer = tokenizers.Tokenizer.from_str(json)
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()

    def find(self, texts: Sequence[str], *, special_tokens: bool = True) -> list[list[TokenSpan]]:
        """Return the tokens of each text, with or without those that the tokenizer adds."""
        with tokenizer_errors():
            encodings = self._tokenizer.encode_batch(list(texts), add_special_tokens=special_tokens)
        return [_spans(text, encoding) for text, encoding in zip(texts, encodings, strict=True)]


def _spans(text: str, encoding: tokenizers.Encoding) -> list[TokenSpan]:
    rows = zip(encoding.ids, encoding.tokens, encoding.special_tokens_mask, encoding.offsets, strict=True)
    return [
        TokenSpan(id_, token, special=True, start=None, stop=None)
        if special
        else TokenSpan(id_, text[start:stop], special=False, start=start, stop=stop)
        for id_, token, special, (start, stop) in rows
    ]


Span = tuple[int, int]
"""First character, and end of the characters, exclusive."""

_WIDE_ENDS = frozenset("\u3002\uff01\uff1f")  # Chinese and Japanese, no white space follows
_SENTENCE_ENDS = _WIDE_ENDS | frozenset(".!?\u2026")
_CLOSING = "\"'\u201d\u2019\xbb)]\u300d\u300f\uff09"
_AFTER_AN_END = _WIDE_ENDS | frozenset(_CLOSING)


def find_windows(
    text: str,
    tokens: Sequence[Span],
    size: int,
    overlap: int = 0,
    *,
    fits: Callable[[str], bool] = lambda window: True,  # noqa: ARG005
) -> list[Span]:
    """Divide a text into windows of at most ``size`` tokens.

    A window ends, in its second half, after a paragraph, else a line, a sentence or a word; each begins at most
    ``overlap`` tokens before the end of the previous one, and after a pause, too. ``tokens`` are the characters of
    each token, ascending. ``fits`` checks whether a window, tokenized alone, has at most ``size`` tokens: its
    first word may have more than in the text. A window that does not fit ends earlier.

    Returns:
        the characters of each window, without white space around them; none for a text without tokens.

    Raises:
        InputError: ``size`` or ``overlap`` is out of range.
    """
    if size < 1:
        raise InputError(f"expected windows of at least 1 token, got {size}")
    if not 0 <= overlap < size:
        raise InputError(
            f"expected an overlap from 0 to {size - 1} tokens, below the windows' size, got {shown(overlap)}"
        )
    windows, start = [], 0
    while start < len(tokens):
        stop = _end(text, tokens, start, size, start + size)
        while stop > start + 1 and not fits(text[tokens[start][0] : tokens[stop - 1][1]]):
            stop = _end(text, tokens, start, size, stop - 1)
        windows.append((tokens[start][0], tokens[stop - 1][1]))
        if stop == len(tokens):
            break
        earliest = max(start + 1, stop - overlap)
        start = max(range(earliest, stop + 1), key=lambda begin: (_pause(text, tokens, begin), -begin))
    return windows


def _end(text: str, tokens: Sequence[Span], start: int, size: int, most: int) -> int:
    """Return the best end in a window's second half, up to ``most``; the end of the tokens if that is within."""
    if most >= len(tokens):
        return len(tokens)
    least = min(start + (size + 1) // 2, most)
    return max(range(least, most + 1), key=lambda end: (_pause(text, tokens, end), end))


def _pause(text: str, tokens: Sequence[Span], place: int) -> int:
    """Rank the boundary before a token: 4, 3, 2, 1 for the end of a paragraph, line, sentence, word; else 0."""
    end, start = tokens[place - 1][1], tokens[place][0] if place < len(tokens) else len(text)
    between = text[end:start]
    lines = between.count("\n")
    if lines:
        return 4 if lines > 1 else 3
    last = text[max(0, end - 3) : end].rstrip(_CLOSING)[-1:]
    if between:
        return 2 if last in _SENTENCE_ENDS else 1
    return 2 if last in _WIDE_ENDS and text[start : start + 1] not in _AFTER_AN_END else 0
