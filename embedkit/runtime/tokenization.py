"""Texts to token ids to token batches; shared by training and the runtime, so both tokenize alike."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import tokenizers

from embedkit.errors import InputError, ModelError, ModelNotFoundError
from embedkit.protocols import FloatArray
from embedkit.runtime.token_ids import TokenIds
from embedkit.runtime.tokenizer_kernels import (
    PairPieces,
    TokenizerKernel,
    UnigramPieces,
    WordPieces,
    truncate_longest_first,
)
from embedkit.runtime.tokenizer_rules import check_rules, tokenizer_errors

_PROBE = "a \ua66e"  # a letter of a single manuscript: no vocabulary has it, so it takes the unknown token
_PAD_TOKENS = ("[PAD]", "<pad>", "<|pad|>")
_UNKNOWN_TOKENS = ("[UNK]", "<unk>")
_CHARACTERS_OF_A_TOKEN = 16  # nearly all texts have fewer


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """Token ids of B texts or pairs, padded on the right to the longest.

    Attributes:
        input_ids: ``(B, L) int64``.
        attention_mask: ``(B, L) int64``, 1 for tokens and 0 for padding.
        token_type_ids: ``(B, L) int64``, 1 on the second text of a pair; None for texts, which are all 0.
    """

    input_ids: npt.NDArray[np.int64]
    attention_mask: npt.NDArray[np.int64]
    token_type_ids: npt.NDArray[np.int64] | None = None


class Tokens(NamedTuple):
    """Token ids of several texts or pairs, without padding.

    Attributes:
        ids: one list for each text or pair, with special tokens, at most ``max_length`` each; often
            :class:`TokenIds`, which create the lists on access.
        overflowing: positions of truncated texts or pairs, ascending.
        type_ids: for pairs the token types, in lists as long as those of ``ids``.
    """

    ids: Sequence[list[int]]
    overflowing: list[int]
    type_ids: Sequence[list[int]] | None = None

    @property
    def truncated(self) -> int:
        """How many texts or pairs lost tokens."""
        return len(self.overflowing)

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """``(N,)`` tokens of each text or pair."""
        if isinstance(self.ids, TokenIds):
            return self.ids.lengths
        return np.fromiter(map(len, self.ids), dtype=np.int64, count=len(self.ids))

    def share(self, token: int, *, without: Collection[int]) -> FloatArray:
        """``(N,) float32``, the share of one id among the tokens of each text or pair; 0 where there are none.

        ``without`` are ids that do not count as tokens, such as those of special tokens.
        """
        tokens = TokenIds.of(self.ids)
        owner = np.repeat(np.arange(len(tokens)), tokens.lengths)
        counts = np.bincount(owner[tokens.flat == token], minlength=len(tokens))
        others = np.bincount(owner[np.isin(tokens.flat, list(without))], minlength=len(tokens))
        shares: FloatArray = (counts / (tokens.lengths - others).clip(min=1)).astype(np.float32)
        return shares

    @property
    def total(self) -> int:
        """Tokens of all texts or pairs."""
        return len(self.ids.flat) if isinstance(self.ids, TokenIds) else sum(map(len, self.ids))

    def choose(self, rows: Sequence[int] | npt.NDArray[np.intp]) -> Tokens:
        """Some of the texts or pairs, in the order of ``rows``; none of them counts as overflowing."""
        return Tokens(_choose(self.ids, rows), [], self.type_ids and _choose(self.type_ids, rows))

    def batch(self, rows: Sequence[int] | npt.NDArray[np.intp], pad_id: int) -> TokenBatch:
        """Some of the texts or pairs, in the order of ``rows``, as one token batch."""
        batch = _pad(_choose(self.ids, rows), pad_id)
        if self.type_ids is None:
            return batch
        types = _pad(_choose(self.type_ids, rows), 0).input_ids
        return TokenBatch(batch.input_ids, batch.attention_mask, types)


class _FastTokenizer(ABC):
    """The base of tokenizers of texts and of pairs. Safe to share between threads.

    Args:
        json: content of a ``tokenizer.json``; padding in it is overridden, and truncation except for its side.
        max_length: the longest text or pair in tokens, special tokens included.

    Attributes:
        pad_id: id that fills a token batch; the attention mask is 0 there.
        vocabulary_size: number of ids, added tokens included.
        special_ids: ids of special tokens, e.g. of ``[CLS]`` and ``[SEP]``.
        unknown_id: id of the unknown token; None if there is none.

    Raises:
        ModelError: ``json`` is not a tokenizer.
        InputError: ``max_length`` is too small for one token of each text.
    """

    _texts: ClassVar[int]  # in an item

    def __init__(self, json: str, max_length: int) -> None:
        self._tokenizer = _parse(json)
        with tokenizer_errors():
            self._special_count = self._tokenizer.num_special_tokens_to_add(is_pair=self._texts == 2)
            least = self._special_count + self._texts
            if max_length < least:
                what = "this tokenizer" if self._texts == 1 else "pairs with this tokenizer"
                raise InputError(
                    f"max_length must be at least {least} for {what}, not {max_length}", parameters=["max_length"]
                )
            check_rules(self._tokenizer, self._special_count, max_length)
            self.json = json
            self.max_length = max_length
            self.pad_id = _find_pad_id(self._tokenizer)
            self.vocabulary_size: int = self._tokenizer.get_vocab_size(with_added_tokens=True)
            added = self._tokenizer.get_added_tokens_decoder().items()
            self.special_ids = frozenset(number for number, token in added if token.special)
            self.unknown_id = _find_unknown_id(self._tokenizer)
            # The folder's reader stores here that the beginning of a long text is dropped, not its end.
            truncation = self._tokenizer.truncation or {}
            self._direction = "left" if truncation.get("direction") == "left" else "right"
            self._tokenizer.no_padding()
            self._prepare()

    @classmethod
    def load(cls, path: str | Path, max_length: int) -> Self:
        """Read ``path``, a ``tokenizer.json`` or a folder that holds one.

        Raises:
            ModelNotFoundError: there is no such file.
            ModelError: the file is not a tokenizer.
        """
        file = Path(path)
        file = file / "tokenizer.json" if file.is_dir() else file
        try:
            return cls(file.read_text(encoding="utf-8"), max_length)
        except FileNotFoundError:
            raise ModelNotFoundError(f"no tokenizer at {file}; embedkit needs a tokenizer.json") from None
        except (OSError, UnicodeDecodeError, ModelError) as error:
            raise ModelError(f"cannot use the tokenizer {file}: {error}") from error

    def with_max_length(self, max_length: int) -> Self:
        """The same tokenizer, cutting at another length."""
        return type(self)(self.json, max_length)

    @abstractmethod
    def _prepare(self) -> None:
        """Set the truncation, encode a probe, and find the kernel."""


def _splits_at_spaces(tokenizer: tokenizers.Tokenizer) -> bool:
    """Whether no token reaches from one word into the next."""
    splitter = tokenizer.pre_tokenizer
    return splitter is not None and len(splitter.pre_tokenize_str("a b c")) >= len(("a", "b", "c"))


class Tokenizer(_FastTokenizer):
    """A fast tokenizer with one way of truncating and padding, whatever its JSON specifies.

    Texts are cut on the right, or on the left if the JSON says so, to ``max_length`` tokens, special tokens
    included, and padded to the longest text of a batch. An empty text is its special tokens.
    """

    _texts = 1

    def _prepare(self) -> None:
        self._tokenizer.enable_truncation(self.max_length, direction=self._direction)
        self._tokenizer.encode(_PROBE)
        is_right = self._direction == "right"
        self._pieces: TokenizerKernel | None = None
        if is_right:
            words = WordPieces.find(self._tokenizer, self.max_length)
            self._pieces = words or UnigramPieces.find(self._tokenizer, self.max_length)
        self._most_characters = _CHARACTERS_OF_A_TOKEN * self.max_length
        self._can_begin = is_right and _splits_at_spaces(self._tokenizer)

    def tokenize(self, texts: Sequence[str], *, prompt: str = "", first: int = 0, threads: int = 1) -> Tokens:
        """Turn texts into token ids, each after the prompt.

        ``first`` is the position of ``texts[0]`` in the caller's input, for messages; ``threads`` are those of the
        kernel for many texts.

        Raises:
            InputError: an item is not a ``str``, or not valid Unicode; names its position.
        """
        if isinstance(texts, (str, bytes)):
            raise InputError(f"expected a sequence of texts, got one {type(texts).__name__}; wrap it in a list")
        texts = texts if type(texts) is list else list(texts)
        if not set(map(type, texts)) <= {str}:  # a tuple would pass for a pair of texts
            check_items(texts, first)
        prompted = [prompt + text for text in texts] if prompt else texts
        try:
            encoded = self._pieces.encode(prompted, threads) if self._pieces else None
            if encoded is None:
                rows = self._encode_without_kernel(prompted)
                return Tokens([ids for ids, _ in rows], [row for row, (_, is_cut) in enumerate(rows) if is_cut])
            ids, overflowing, unsupported = encoded
            if unsupported:
                rows = self._encode_without_kernel([prompted[position] for position in unsupported])
                ids = ids.fill(unsupported, [row for row, _ in rows])
                cut = (position for position, row in zip(unsupported, rows, strict=True) if row[1])
                overflowing = sorted([*overflowing, *cut])
            return Tokens(ids, overflowing)
        except ModelError:
            raise
        except (TypeError, ValueError) as error:
            check_items(texts, first)
            raise InputError(f"the tokenizer rejected these texts: {error}") from error

    def _encode_without_kernel(self, texts: list[str]) -> list[tuple[list[int], bool]]:
        """Ids of each text, and whether some were cut off.

        The package reads a text to its end and needs a hundred times its memory. Of a long one, it is given a
        beginning, and the rest only if that has no more tokens than fit. A beginning that ends before a space has
        the tokens with which the text begins.
        """
        if not self._can_begin or max(map(len, texts), default=0) <= self._most_characters:
            return self._encode_whole(texts)
        begun = [self._beginning(text) for text in texts]
        rows = self._encode_whole(begun)
        short = [n for n, text in enumerate(texts) if begun[n] is not text and not rows[n][1]]
        for number, row in zip(short, self._encode_whole([texts[n] for n in short]), strict=True):
            rows[number] = row
        return rows

    def _beginning(self, text: str) -> str:
        if len(text) <= self._most_characters:
            return text
        end = text.rfind(" ", 0, self._most_characters)
        return text[: max(0, end)].rstrip() or text

    def _encode_whole(self, texts: list[str]) -> list[tuple[list[int], bool]]:
        with tokenizer_errors():
            encodings = self._tokenizer.encode_batch_fast(texts)
        ids = [encoding.ids for encoding in encodings]
        # Reading `overflowing` copies the whole rest of a text: look only where there can be one.
        return [
            (row, len(row) == self.max_length and bool(encoding.overflowing))
            for row, encoding in zip(ids, encodings, strict=True)
        ]

    def pad(self, ids: Sequence[Sequence[int]]) -> TokenBatch:
        """Make one token batch ``(B, L)`` of B lists of ids, in their order; L is the longest."""
        return _pad(ids, self.pad_id)


class PairTokenizer(_FastTokenizer):
    """A fast tokenizer for pairs of texts: ``[CLS] first [SEP] second [SEP]`` in BERT's case.

    A pair of more than ``max_length`` tokens loses them on the right of its longer text until both are
    equally long, then of both in turn, as with ``longest_first`` in transformers.
    """

    _texts = 2

    def _prepare(self) -> None:
        # tokenizers would keep the truncated tokens in pieces, each piece of one text combined with each of the
        # other: two texts of a thousand words took 45 seconds, longer ones all memory. So it truncates nothing.
        self._tokenizer.no_truncation()
        self._tokenizer.encode(_PROBE, _PROBE)
        is_right = self._direction == "right"
        self._pieces = PairPieces.find(self._tokenizer, self.max_length) if is_right else None

    def tokenize(self, pairs: Sequence[tuple[str, str]], *, first: int = 0) -> Tokens:
        """Turn pairs, each a tuple, list or array of two texts, into token ids and token types.

        ``first`` is the position of ``pairs[0]`` in the caller's input, for messages.

        Raises:
            InputError: an item is not two ``str``, or not valid Unicode; names its position.
        """
        pairs = [_check_pair(pair, position) for position, pair in enumerate(pairs, first)]
        try:
            return self._encode(pairs)
        except ModelError:
            raise
        except (TypeError, ValueError) as error:
            for position, pair in enumerate(pairs, first):
                check_items(pair, 0, name=f"pairs[{position}]")
            raise InputError(f"the tokenizer rejected these pairs: {error}") from error

    def tokenize_windows(
        self, pairs: Sequence[tuple[str, str]], *, first: int = 0
    ) -> tuple[Tokens, npt.NDArray[np.intp]]:
        """Tokenize pairs, and give a pair that is too long a row for each window of its second text.

        Consecutive windows share half of their tokens, and the last one ends with the text. A first text keeps at
        most half of the room. ``first`` is as for :meth:`tokenize`.

        Returns:
            tokens of ``M >= N`` rows, and the first row of each pair ``(N,)``, ascending.

        Raises:
            InputError: as :meth:`tokenize`.
        """
        tokens = self.tokenize(pairs, first=first)
        too_long, kinds = set(tokens.overflowing), tokens.type_ids or []
        rows = [
            self._windows(*pair) if row in too_long else [(list(tokens.ids[row]), list(kinds[row]))]
            for row, pair in enumerate(pairs)
        ]
        starts = np.cumsum([0, *map(len, rows)])[:-1]
        flat = [window for windows in rows for window in windows]
        return Tokens([ids for ids, _ in flat], [], [types for _, types in flat]), starts

    def _windows(self, first: str, second: str) -> list[tuple[list[int], list[int]]]:
        with tokenizer_errors():
            encoding = self._tokenizer.encode(first, second)
        ids, types = np.array(encoding.ids), np.array(encoding.type_ids)
        sides = np.array([2 if side is None else side for side in encoding.sequence_ids])
        of_first, of_second, special = (np.flatnonzero(sides == side) for side in range(3))
        room = self.max_length - self._special_count
        kept = min(len(of_first), room // 2)
        width = room - kept
        last = max(0, len(of_second) - width)
        always = np.concatenate([special, of_first[:kept]])
        rows = []
        for start in [*range(0, last, max(1, width // 2)), last]:
            chosen = np.sort(np.concatenate([always, of_second[start : start + width]]))
            rows.append((ids[chosen].tolist(), types[chosen].tolist()))
        return rows

    def _encode(self, pairs: list[tuple[str, str]]) -> Tokens:
        encoded = self._pieces.encode(pairs) if self._pieces else None
        if encoded is None:
            return self._encode_without_kernel(pairs)
        ids, types, cut, left = encoded
        if left:
            others = self._encode_without_kernel([pairs[position] for position in left])
            ids, types = ids.fill(left, others.ids), types.fill(left, others.type_ids or [])
            cut = sorted([*cut, *(left[position] for position in others.overflowing)])
        return Tokens(ids, cut, types)

    def _encode_without_kernel(self, pairs: list[tuple[str, str]]) -> Tokens:
        with tokenizer_errors():
            encodings = self._tokenizer.encode_batch_fast(pairs)
        rows = [self._cut(encoding) for encoding in encodings]
        overflowing = [row for row, encoding in enumerate(encodings) if len(encoding) > self.max_length]
        return Tokens([ids for ids, _ in rows], overflowing, [types for _, types in rows])

    def _cut(self, encoding: tokenizers.Encoding) -> tuple[list[int], list[int]]:
        """Return ids and types of a pair, truncated."""
        ids, types = encoding.ids, encoding.type_ids
        if len(ids) <= self.max_length:
            return ids, types
        sides = encoding.sequence_ids  # 0 or 1, None for special tokens
        counts = np.array([[sides.count(0), sides.count(1)]])
        left = truncate_longest_first(self.max_length - self._special_count, counts)[0]
        kept = []
        numbered = list(enumerate(sides))
        for position, side in numbered if self._direction == "right" else reversed(numbered):
            if side is None or left[side] > 0:
                kept.append(position)
            if side is not None:
                left[side] -= 1
        kept.sort()
        return [ids[position] for position in kept], [types[position] for position in kept]


def _choose(ids: Sequence[list[int]], rows: Sequence[int] | npt.NDArray[np.intp]) -> TokenIds | list[list[int]]:
    return ids.take(rows) if isinstance(ids, TokenIds) else [ids[row] for row in rows]


def _pad(ids: Sequence[Sequence[int]], pad_id: int) -> TokenBatch:
    if len(ids) == 1 and ids[0]:  # nothing to pad, and a user waits
        input_ids = np.array([ids[0]], dtype=np.int64)
        return TokenBatch(input_ids, np.ones_like(input_ids))
    tokens = TokenIds.of(ids)
    lengths = tokens.lengths
    width = lengths.max(initial=min(len(ids), 1))  # operators refuse a batch without columns
    is_token = np.arange(width) < lengths[:, None]
    input_ids = np.full(is_token.shape, pad_id, dtype=np.int64)
    input_ids[is_token] = tokens.flat
    return TokenBatch(input_ids, is_token.astype(np.int64))


def _parse(json: str) -> tokenizers.Tokenizer:
    with tokenizer_errors("not a tokenizer.json"):
        return tokenizers.Tokenizer.from_str(json)


def _find_pad_id(tokenizer: tokenizers.Tokenizer) -> int:
    if tokenizer.padding:
        return int(tokenizer.padding["pad_id"])
    named = (tokenizer.token_to_id(token) for token in _PAD_TOKENS)
    # Any id does where the mask is 0. Other libraries pad with special tokens only.
    special = (number for number, token in sorted(tokenizer.get_added_tokens_decoder().items()) if token.special)
    return next((number for number in (*named, *special) if number is not None), 0)


def _find_unknown_id(tokenizer: tokenizers.Tokenizer) -> int | None:
    named = getattr(tokenizer.model, "unk_token", None)  # of a Unigram model, it is not public
    numbers = (tokenizer.token_to_id(token) for token in ([named] if named else _UNKNOWN_TOKENS))
    return next((number for number in numbers if number is not None), None)


def _check_pair(pair: object, position: int) -> tuple[str, str]:
    if isinstance(pair, np.ndarray):
        pair = pair.tolist()
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        kind = f"{type(pair).__name__}" + (f" of {len(pair)}" if isinstance(pair, (tuple, list)) else "")
        raise InputError(f"pairs[{position}] is {kind}, expected two texts, as in [(first, second), ...]")
    first, second = pair
    if type(first) is not str or type(second) is not str:
        check_items(pair, 0, name=f"pairs[{position}]")
    return first, second


def check_items(texts: Sequence[Any], first: int = 0, *, name: str = "texts") -> Sequence[str]:
    """Return items, all of which are texts; ``first`` is the number of ``texts[0]`` in messages.

    Raises:
        InputError: an item is not a ``str``, or not valid Unicode; names it as ``name[number]``.
    """
    for position, text in enumerate(texts, first):
        if not isinstance(text, str):
            raise InputError(f"{name}[{position}] is {type(text).__name__}, expected str")
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise InputError(
                f"{name}[{position}] is not valid Unicode: it holds half a surrogate pair at character "
                f"{error.start}; decode the file with errors='replace'"
            ) from None
    return texts
