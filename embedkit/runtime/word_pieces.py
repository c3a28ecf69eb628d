"""The fast path through BERT's tokenizers, for texts and pairs: a C kernel, if it was built."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from operator import itemgetter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import tokenizers
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

from embedkit.runtime.kernels import wordpiece
from embedkit.runtime.token_ids import TokenIds
from embedkit.runtime.tokenizer_kernels import TokenizerKernel, find_special_tokens, finds_added

# Latin blocks and IPA, Greek and Cyrillic, General Punctuation and Currency Symbols, without combining
# marks, line terminators and direction marks.
_NOT_PLAIN = re.compile(
    "[^\t\n\r\x20-\x7e\xa0-\u02af\u0370-\u0482\u048a-\u052f\u2010-\u2027\u2030-\u205e\u20a0-\u20bf]"
)


def first_characters() -> str:
    """Return the characters that every kernel knows from the beginning."""
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
