"""The fast path through BERT's and SentencePiece's Unigram tokenizers: C kernels, if they were built."""

from __future__ import annotations

import base64
import contextlib
import functools
import json
import math
import re
import struct
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain, groupby
from operator import itemgetter
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
import numpy.typing as npt
import tokenizers
from tokenizers.models import Unigram, WordPiece
from tokenizers.normalizers import BertNormalizer, Precompiled
from tokenizers.pre_tokenizers import BertPreTokenizer

from embedkit.errors import ModelError
from embedkit.kernels import unigram, wordpiece
from embedkit.runtime.token_ids import TokenIds
from embedkit.runtime.tokenizer_rules import rules_of, tokenizer_errors
from embedkit.threads import submit_each

_TRUNCATED, _FALLBACK = 1, 2
# Creating a kernel takes as long as this many short texts, so it is skipped for a few.
_TEXTS_THAT_PAY = 1000
_CHARACTERS = 64  # of a short text; the kernel reads no more of a long one than is needed
_TEXTS_OF_A_THREAD = 512  # fewer take less time than starting a thread
_MOST_ADDED = 1000  # added tokens, each of which is compared with a text; the tokenizers package has an automaton


class _Kernel(Protocol):
    def tokenize(self, texts: list[str]) -> tuple[bytes, bytes, bytes]: ...


class TokenizerKernel(ABC):
    """Ids of the texts that a kernel supports. Subclasses create the kernel.

    Args:
        arguments: those of the subclass, from which a copy creates its own kernel.
        texts_that_pay: how many texts take as long as creating the kernel.
    """

    def __init__(self, *arguments: Any, texts_that_pay: int = 0) -> None:
        self._arguments = arguments
        self._missing: float = max(texts_that_pay, _TEXTS_THAT_PAY)
        self._kernel: _Kernel | None = None

    @abstractmethod
    def _make(self) -> _Kernel:
        """Create the kernel, or raise OverflowError or ValueError for a tokenizer that it does not support."""

    def encode(self, texts: list[str], threads: int = 1) -> tuple[TokenIds, list[int], list[int]] | None:
        """Return ids with special tokens, positions of truncated texts, and positions of unsupported texts.

        The last have no ids. Returns None until enough texts have come for the kernel to pay off.
        """
        kernel = self._kernel or self._count(texts)
        if kernel is None:
            return None
        threads = min(threads, len(texts) // _TEXTS_OF_A_THREAD)
        if threads < 2:
            flat, bounds, outcomes = kernel.tokenize(texts)
            ids = TokenIds.of_bytes(flat, bounds)
        else:
            parts = _tokenize(kernel, texts, threads)
            ids = TokenIds.join([TokenIds.of_bytes(flat, bounds) for flat, bounds, _ in parts])
            outcomes = b"".join([outcomes for *_, outcomes in parts])
        return ids, _positions(outcomes, _TRUNCATED), _positions(outcomes, _FALLBACK)

    def __reduce__(self) -> tuple[type[TokenizerKernel], tuple[Any, ...]]:
        return type(self), self._arguments

    def _count(self, texts: list[str]) -> _Kernel | None:
        """Return the kernel, if it pays off by now; two threads may both create one, which are equal."""
        self._missing -= max(len(texts), sum(map(len, texts)) // _CHARACTERS)
        if self._missing <= 0:
            self._create()
            self._missing = math.inf if self._kernel is None else 0
        return self._kernel

    def _create(self) -> None:
        """Make the kernel; it stays as it was if the tokenizer is not supported or fails."""
        # No model has ids of more than 31 bits, but a file may.
        with contextlib.suppress(OverflowError, ModelError, ValueError), tokenizer_errors():
            self._kernel = self._make()


def _tokenize(kernel: _Kernel, texts: list[str], threads: int) -> list[tuple[bytes, bytes, bytes]]:
    """Run the kernel on the texts, in one part per thread."""
    size = -(-len(texts) // threads)
    first, *rest = (texts[at : at + size] for at in range(0, len(texts), size))
    with ThreadPoolExecutor(threads - 1) as pool:
        others = submit_each(pool, kernel.tokenize, rest)
        own = [kernel.tokenize(part) for part in (first, *rest[len(others) :])]
        return [own[0], *(other.result() for other in others), *own[1:]]


def _positions(outcomes: bytes, outcome: int) -> list[int]:
    return [position for position, other in enumerate(outcomes) if other == outcome] if outcome in outcomes else []


def finds_added(tokenizer: tokenizers.Tokenizer) -> bool:
    """Return whether a fast path finds the added tokens: those of texts before normalisation, if they are few."""
    added = tokenizer.get_added_tokens_decoder().values()
    return len(added) <= _MOST_ADDED and not any(token.normalized for token in added)


def find_special_tokens(tokenizer: tokenizers.Tokenizer) -> tuple[list[int], list[int]] | None:
    """Return the ids that a tokenizer adds before and after a text, found with two texts; else None."""
    found = []
    for text in ("a", "b c"):
        inner, outer = tokenizer.encode(text, add_special_tokens=False).ids, tokenizer.encode(text).ids
        starts = [start for start in range(len(outer)) if outer[start : start + len(inner)] == inner]
        if len(starts) != 1:
            return None
        found.append((outer[: starts[0]], outer[starts[0] + len(inner) :]))
    return found[0] if found[0] == found[1] else None


# Latin blocks and IPA, Greek and Cyrillic, General Punctuation and Currency Symbols, without combining
# marks, line terminators and direction marks.
_NOT_PLAIN = re.compile(
    "[^\t\n\r\x20-\x7e\xa0-\u02af\u0370-\u0482\u048a-\u052f\u2010-\u2027\u2030-\u205e\u20a0-\u20bf]"
)


def first_characters() -> str:
    """Return the characters that every kernel has from the beginning."""
    return _NOT_PLAIN.sub("", "".join(map(chr, range(0x2100))))


_LONGEST_WORD = 256  # the longest word that the kernel supports
_UNREAD_TEXTS = 200  # so many texts take longer than learning some blocks of characters
_READ_CHARACTERS = 2000  # of each of them
_PLANE = 0x10000
_BETWEEN = "0"


class WordPieces(TokenizerKernel):
    """Ids of texts for tokenizers with BERT's normaliser, pre-tokenizer and model. Create it with :meth:`find`.

    The kernel has no Unicode tables: the result of the normaliser for each character, and whether the
    pre-tokenizer treats it as a letter, a mark or a space, are queried from the tokenizer. It begins with those of
    European scripts, and learns others in blocks of 256 once enough texts have them. Texts with
    characters beyond the Basic Multilingual Plane, and with added tokens, are left to the tokenizer.
    It reads a text in one pass and stops at the truncation.
    """

    def __init__(self, tokenizer: tokenizers.Tokenizer, before: list[int], after: list[int], room: int) -> None:
        super().__init__(tokenizer, before, after, room)
        self._tokenizer = tokenizer
        self._before, self._after, self._room = before, after, room
        self._strips = tokenizer.normalizer.normalize_str("\xe9") == "e"
        self._characters = set(first_characters())
        self._unread, self._blocks = 0, set[int]()

    @classmethod
    def find(cls, tokenizer: tokenizers.Tokenizer, max_length: int) -> WordPieces | None:
        """Return the fast path of a tokenizer, or None if there is no kernel or it is not BERT's."""
        special = find_special_tokens(tokenizer) if _is_supported(tokenizer) else None
        return None if special is None else cls(tokenizer, *special, max_length - sum(map(len, special)))

    def encode(self, texts: list[str], threads: int = 1) -> tuple[TokenIds, list[int], list[int]] | None:
        """Return ids as :meth:`TokenizerKernel.encode`; the kernel may first learn characters of the texts."""
        encoded = super().encode(texts, threads)
        if encoded is None or not encoded[2] or not self._learn([texts[position] for position in encoded[2]]):
            return encoded
        return super().encode(texts, threads)

    def _learn(self, texts: list[str]) -> bool:
        """Create the kernel with the characters of texts that it left, if there are enough; return whether."""
        self._unread += len(texts)
        if self._unread < _UNREAD_TEXTS:
            return False
        self._unread = 0
        codes = set(map(ord, set().union(*(text[:_READ_CHARACTERS] for text in texts[:_UNREAD_TEXTS]))))
        blocks = {code >> 8 for code in codes if code < _PLANE} - self._blocks
        if not blocks:
            return False
        self._blocks |= blocks
        self._characters |= {character for block in blocks for character in _block(block)}
        self._create()
        return True

    def _make(self) -> wordpiece.WordPieces:
        model = self._tokenizer.model
        letters, marks, spaces = self._classify(sorted(self._characters))
        return wordpiece.WordPieces(
            self._tokenizer.get_vocab(with_added_tokens=False),
            unknown=model.token_to_id(model.unk_token),
            prefix=model.continuing_subword_prefix,
            longest_word=model.max_input_chars_per_word,
            letters=letters,
            marks=marks,
            spaces=spaces,
            added=tuple(token.content for token in self._tokenizer.get_added_tokens_decoder().values()),
            before=np.array(self._before, dtype=np.int32).tobytes(),
            after=np.array(self._after, dtype=np.int32).tobytes(),
            room=self._room,
        )

    def _classify(self, characters: list[str]) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
        """Return the spelling of letters, marks and spaces; other characters are in none of the three.

        All are normalised and split at once, with digits between them, which change neither them nor each other.
        """
        characters = [character for character in characters if character != _BETWEEN]
        spellings = self._tokenizer.normalizer.normalize_str(_BETWEEN.join(characters)).split(_BETWEEN)
        line = _BETWEEN.join(["", *spellings, ""])
        parts = [part for _, part in self._tokenizer.pre_tokenizer.pre_tokenize_str(line)]
        starts, ends = {start for start, _ in parts}, {end for _, end in parts}
        letters, marks, spaces = {_BETWEEN: _BETWEEN}, {}, {}
        end = 0
        for character, spelled in zip(characters, spellings, strict=True):
            start = end + 1
            end = start + len(spelled)
            bare = spelled.strip()
            if self._strips and any(map(unicodedata.combining, spelled)):
                continue  # the normaliser would sort it among others
            if not any(at in starts or at in ends for at in range(start, end + 1)):
                letters[character] = spelled
            elif not bare:
                spaces[character] = spelled
            elif len(bare) == 1 and start + spelled.index(bare) in starts:  # with spaces around it, or without
                marks[character] = bare
        return letters, marks, spaces


def _is_supported(tokenizer: tokenizers.Tokenizer) -> bool:
    """Whether there is a kernel for a tokenizer's normaliser, pre-tokenizer, model and added tokens."""
    model = tokenizer.model
    return (
        wordpiece is not None
        and type(model) is WordPiece
        and type(tokenizer.normalizer) is BertNormalizer
        and type(tokenizer.pre_tokenizer) is BertPreTokenizer
        and model.token_to_id(model.unk_token) is not None  # without it, each unknown word is an error
        and model.max_input_chars_per_word <= _LONGEST_WORD
        and finds_added(tokenizer)
    )


def _block(number: int) -> Iterator[str]:
    """The assigned characters of a block. Unassigned ones may be combining marks in a later version of Unicode."""
    for code in range(number << 8, (number + 1) << 8):
        if unicodedata.category(chr(code)) not in ("Cn", "Cs"):
            yield chr(code)


_Counts = npt.NDArray[np.int64]


class _SpecialTokens(NamedTuple):
    """Ids before, between and after two texts, and the types of all five parts."""

    before: list[int]
    between: list[int]
    after: list[int]
    types: list[int]


@dataclass(slots=True)
class PairPieces:
    """Ids and types of plain pairs, if :class:`WordPieces` supports the tokenizer. Create it with :meth:`find`."""

    words: WordPieces
    special: _SpecialTokens
    room: int

    @classmethod
    def find(cls, tokenizer: tokenizers.Tokenizer, max_length: int) -> PairPieces | None:
        """Return the fast path of a tokenizer without truncation and padding, or None if it has none."""
        special = _find_pair_special_tokens(tokenizer) if _is_supported(tokenizer) else None
        if special is None:
            return None
        room = max_length - sum(map(len, special[:3]))
        return cls(WordPieces(tokenizer, [], [], room), special, room)

    def encode(self, pairs: Sequence[tuple[str, str]]) -> tuple[TokenIds, TokenIds, list[int], list[int]] | None:
        """Return ids and types of pairs, and the positions of truncated pairs and of those left to the tokenizer.

        The last have no ids. Returns None until enough texts have come for the kernel to pay off.
        """
        encoded = self.words.encode(list(chain.from_iterable(pairs)))
        if encoded is None:
            return None
        pieces, cut, left = encoded
        counts = pieces.lengths
        counts[cut] += 1  # at least
        counts = counts.reshape(-1, 2)
        is_fallback = np.zeros(len(pairs), dtype=np.bool_)
        is_fallback[np.array(left, dtype=np.intp) // 2] = True
        is_fallback |= (counts > self.room).all(
            axis=1
        )  # the longer one gets an odd piece, but which one is unknown
        ids, types = self._put_together(pieces, truncate_longest_first(self.room, counts), is_fallback)
        is_cut = (counts.sum(axis=1) > self.room) & ~is_fallback
        return ids, types, np.flatnonzero(is_cut).tolist(), np.flatnonzero(is_fallback).tolist()

    def _put_together(
        self, pieces: TokenIds, kept: _Counts, is_fallback: npt.NDArray[np.bool_]
    ) -> tuple[TokenIds, TokenIds]:
        """Return special tokens around that many pieces of each text."""
        before, between, after, types = self.special
        fixed = np.cumsum([len(pieces.flat), len(before), len(between), len(after)])
        starts, lengths = np.empty((2, len(kept), 5), dtype=np.int64)
        starts[:, 0::2], starts[:, 1::2] = fixed[:-1], pieces.bounds[:-1].reshape(-1, 2)
        lengths[:, 0::2], lengths[:, 1::2] = np.diff(fixed), kept
        lengths[is_fallback] = 0
        source = np.concatenate([pieces.flat, np.array([*before, *between, *after], dtype=np.int32)])
        parts = TokenIds.cut_out(source, starts.ravel(), lengths.ravel())
        bounds = parts.bounds[::5]
        kinds = np.repeat(np.tile(np.array(types, dtype=np.int32), len(kept)), lengths.ravel())
        return TokenIds(parts.flat, bounds), TokenIds(kinds, bounds)


def truncate_longest_first(room: int, counts: _Counts) -> _Counts:
    """Return how many of ``(N, 2)`` tokens are kept; the longer text, or else the second, gets an odd one."""
    half, least = room // 2, counts.min(axis=1, keepdims=True)
    halves = np.where(counts[:, :1] > counts[:, 1:], [room - half, half], [half, room - half])
    cut = np.where(least > half, halves, np.where(counts == least, counts, room - least))
    return np.where(counts.sum(axis=1, keepdims=True) > room, cut, counts)


def _find_pair_special_tokens(tokenizer: tokenizers.Tokenizer) -> _SpecialTokens | None:
    """Return the special tokens of a pair, found with two; None if the tokenizer does anything else."""
    one, other = map(_read_special_tokens, tokenizer.encode_batch_fast([("a", "b c"), ("b c", "a")]))
    return one if one == other else None


def _read_special_tokens(encoding: tokenizers.Encoding) -> _SpecialTokens | None:
    """Return the parts of a pair, each of one type."""
    sides = enumerate(encoding.sequence_ids)
    runs = [(side, [place for place, _ in run]) for side, run in groupby(sides, itemgetter(1))]
    if [side for side, _ in runs] != [None, 0, None, 1, None]:
        return None
    types = [{encoding.type_ids[place] for place in places} for _, places in runs]
    if any(len(kinds) > 1 for kinds in types):
        return None
    before, _, between, _, after = ([encoding.ids[place] for place in places] for _, places in runs)
    return _SpecialTokens(before, between, after, [kind for kinds in types for kind in kinds])


_PIECES_OF_A_TEXT = 25  # so many pieces of the vocabulary are read in the time of a short text
_SEVERAL_SPACES = {"Regex": " {2,}"}


class _Parts(NamedTuple):
    """A normaliser and a pre-tokenizer that the kernel supports, as its arguments.

    Attributes:
        charsmap: SentencePiece's precompiled map of characters.
        space: replacement of a space, which begins a word.
        spaces: replacement of several spaces, before that.
        prefix: whether a text, or a part between spaces, begins with `space`.
        split: whether `space` begins a word.
        strip_left: whether spaces are removed on the left.
        strip_right: whether they are on the right.
        split_whitespace: whether texts are split at spaces, which are dropped.
    """

    space: str
    prefix: bool
    split: bool
    split_whitespace: bool
    charsmap: bytes | None = None
    spaces: str | None = None
    strip_left: bool = False
    strip_right: bool = False


class UnigramPieces(TokenizerKernel):
    """Ids of texts by Unigram models. Create it with :meth:`find`.

    The kernel supports the parts of SentencePiece's models: the normalisers `Precompiled`, `Strip` and `Replace`
    of several spaces, in this order, and the pre-tokenizers `WhitespaceSplit` and `Metaspace`. Texts with added
    tokens, and a few with rare combinations of characters, are left to the tokenizer.
    """

    def __init__(self, tokenizer: tokenizers.Tokenizer, special: tuple[list[int], list[int]], room: int) -> None:
        pays = tokenizer.get_vocab_size() // _PIECES_OF_A_TEXT
        super().__init__(tokenizer, special, room, texts_that_pay=pays)
        self._tokenizer, self._special, self._room = tokenizer, special, room

    @classmethod
    def find(cls, tokenizer: tokenizers.Tokenizer, max_length: int) -> Self | None:
        """Return the fast path of a tokenizer, or None if there is no kernel or the kernel does not support it.

        The tokenizer is without padding and truncates on the right; ``max_length`` includes special tokens.
        """
        if unigram is None or type(tokenizer.model) is not Unigram or not finds_added(tokenizer):
            return None
        special = find_special_tokens(tokenizer)
        if special is None or _read_parts(tokenizer) is None:
            return None
        return cls(tokenizer, special, max_length - sum(map(len, special)))

    def _make(self) -> unigram.UnigramPieces:
        parts, model = _read_parts(self._tokenizer), json.loads(self._tokenizer.model.__getstate__())
        if parts is None:
            raise ValueError("not a tokenizer that the kernel supports")
        before, after = (np.array(ids, dtype=np.int32).tobytes() for ids in self._special)
        unknown = model["unk_id"]
        return unigram.UnigramPieces(
            tuple(piece for piece, _ in model["vocab"]),
            scores=np.array([score for _, score in model["vocab"]], dtype=np.float64).tobytes(),
            unknown=-1 if unknown is None else unknown,
            byte_fallback=model["byte_fallback"],
            kinds=character_kinds() if parts.charsmap else b"",
            added=tuple(token.content for token in self._tokenizer.get_added_tokens_decoder().values()),
            before=before,
            after=after,
            room=self._room,
            **parts._asdict(),
        )


def _read_parts(tokenizer: tokenizers.Tokenizer) -> _Parts | None:
    """Return the kernel's arguments for the normaliser and the pre-tokenizer, None for others than it supports."""
    splitters, normalizers = rules_of(tokenizer.pre_tokenizer), _read_normalizers(rules_of(tokenizer.normalizer))
    split_whitespace = bool(splitters) and splitters[0] == {"type": "WhitespaceSplit"}
    rest = splitters[1:] if split_whitespace else splitters
    if normalizers is None or len(rest) != 1 or rest[0]["type"] != "Metaspace":
        return None
    scheme = rest[0]["prepend_scheme"]
    if scheme == "first" and split_whitespace:  # only a part at the very beginning would have the prefix
        return None
    return _Parts(rest[0]["replacement"], scheme != "never", rest[0]["split"], split_whitespace, **normalizers)


def _read_normalizers(steps: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return those of the kernel's arguments, None unless it supports them in this order."""
    left, arguments = iter(steps), {}
    step = next(left, None)
    if step and step["type"] == "Precompiled":
        arguments["charsmap"] = base64.b64decode(step["precompiled_charsmap"])
        step = next(left, None)
    if step and step["type"] == "Strip":
        arguments |= {"strip_left": step["strip_left"], "strip_right": step["strip_right"]}
        step = next(left, None)
    if step and step["type"] == "Replace" and step["pattern"] == _SEVERAL_SPACES:
        arguments["spaces"] = step["content"]
        step = next(left, None)
    return None if step else arguments


_CONTROL, _JOINS, _UNCLEAR = 1, 2, 3
_PLANES = 0x20000  # the first two, whose characters have kinds, and then the beginning of plane 14
_TAGS = range(0xE0000, 0xE1000)
_ALWAYS_CONTROL = "\0\n\r"
# Ideographs, Hangul syllables, surrogates and private use never join the character before, and others join them.
_PLAIN_BLOCKS = (range(0x3400, 0xA000), range(0xAC00, 0xF900))
_INDIC = range(0x11000, 0x12000)  # of plane 1, with letters that join the next character
_MAY_JOIN = {"Mn", "Mc", "Me", "Cf", "Sk", "Lm"}
_MAY_BE_CONTROL = {"Cc", "Cf", "Zl", "Zp", "Cn"}
_ACUTE = "\u0301"


@functools.cache
def character_kinds() -> bytes:
    """Return the kind of each character, one byte each, as ``kernels/charsmap.h`` reads them.

    For each character that may join others, the tokenizers package shows whether it joins an "a" before it,
    whether an "a" joins it, and whether an accent does not.
    """
    kinds = bytearray(_PLANES + len(_TAGS))
    candidates = [code for code in [*range(_PLANES), *_TAGS] if _may_join(code)]
    joining = _those_that_join(candidates, "a{}")
    for code in joining:
        kinds[_place(code)] = _JOINS
    within = joining | _those_that_join([code for code in candidates if code < 0x10000], f"{{}}{_ACUTE}")
    for code in candidates:
        if _category(code) in _MAY_BE_CONTROL and code not in within:
            kinds[_place(code)] = _CONTROL
    for code in _those_that_join(candidates, "{}a"):  # its cluster contains the next character's
        kinds[_place(code)] = _UNCLEAR
    for code in range(0x10000, _PLANES):  # a later version of Unicode may assign it
        if _category(code) == "Cn" and code not in _INDIC:
            kinds[code] = _UNCLEAR
    for character in _ALWAYS_CONTROL:
        kinds[ord(character)] = _CONTROL
    return bytes(kinds)


def _may_join(code: int) -> bool:
    if code < 0x10000:
        return chr(code) not in _ALWAYS_CONTROL and not any(code in block for block in _PLAIN_BLOCKS)
    return code in _INDIC or code in _TAGS or _category(code) in _MAY_JOIN


def _category(code: int) -> str:
    return unicodedata.category(chr(code))


def _place(code: int) -> int:
    return code if code < _PLANES else _PLANES + code - _TAGS.start


def _those_that_join(codes: Iterable[int], pattern: str) -> set[int]:
    """Return the characters that form one cluster in the pattern."""
    codes = list(codes)
    clusters = _one_letter_a_cluster().normalize_str("\n".join(pattern.format(chr(code)) for code in codes))
    return {code for code, cluster in zip(codes, clusters.split("\n"), strict=True) if len(cluster) == 1}


def _one_letter_a_cluster() -> Precompiled:
    """Return a normaliser that replaces each cluster of fewer than six bytes by "x", except line feeds.

    Its double array has one entry for each byte, which the clusters begin with.
    """
    units = [0] * 1024
    units[0] = 256 << 10
    for byte in range(1, 256):
        if byte != ord("\n"):
            units[256 ^ byte] = byte | 1 << 8 | 512 << 10
    return Precompiled(struct.pack(f"<{len(units) + 1}I", 4 * len(units), *units) + b"x\0")
