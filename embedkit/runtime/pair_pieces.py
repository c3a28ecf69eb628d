"""The fastest path through BERT's tokenizer for pairs: pieces of both texts, truncated and framed in bulk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import tokenizers

from embedkit.runtime.plain_texts import PlainTexts
from embedkit.runtime.token_ids import TokenIds
from embedkit.runtime.word_pieces import WordPieces

_Counts = npt.NDArray[np.int64]


class _Frame(NamedTuple):
    """Ids before, between and after two texts, and the types of all five parts."""

    before: list[int]
    between: list[int]
    after: list[int]
    types: list[int]


@dataclass(slots=True)
class PairPieces:
    """Ids and types of plain pairs, if :class:`WordPieces` supports the tokenizer. Create it with :meth:`find`.

    Attributes:
        words: returns the pieces of texts, without special tokens.
        frame: the special tokens.
        room: maximum number of pieces of both texts together.
    """

    words: WordPieces
    frame: _Frame
    room: int

    @classmethod
    def find(cls, tokenizer: tokenizers.Tokenizer, max_length: int) -> PairPieces | None:
        """Return the fast path of a tokenizer without truncation and padding, or None if it has none.

        Args:
            tokenizer: the tokenizer to imitate.
            max_length: maximum length of a pair in tokens, including special tokens.
        """
        plain, frame = PlainTexts.find(tokenizer, max_length), _find_frame(tokenizer)
        if plain is None or frame is None:
            return None
        room = max_length - sum(map(len, frame[:3]))
        words = WordPieces.find(tokenizer, replace(plain, before=[], after=[], room=room))
        return None if words is None else cls(words, frame, room)

    def encode(self, pairs: Sequence[tuple[str, str]]) -> tuple[TokenIds, TokenIds, list[int], list[int]] | None:
        """Return ids and types of pairs, and the positions of truncated pairs and of those left to the tokenizer.

        The last have no ids. Returns None until enough texts have come for the kernel to pay off.
        """
        found = self.words.encode(list(chain.from_iterable(pairs)))
        if found is None:
            return None
        pieces, cut, left = found
        counts = pieces.lengths
        counts[cut] += 1  # at least
        counts = counts.reshape(-1, 2)
        is_left = np.zeros(len(pairs), dtype=np.bool_)
        is_left[np.array(left, dtype=np.intp) // 2] = True
        is_left |= (counts > self.room).all(axis=1)  # the longer one gets an odd piece, but which one is unknown
        ids, types = self._put_together(pieces, _share(self.room, counts), is_left)
        is_cut = (counts.sum(axis=1) > self.room) & ~is_left
        return ids, types, np.flatnonzero(is_cut).tolist(), np.flatnonzero(is_left).tolist()

    def _put_together(
        self, pieces: TokenIds, kept: _Counts, is_left: npt.NDArray[np.bool_]
    ) -> tuple[TokenIds, TokenIds]:
        """Return special tokens around that many pieces of each text."""
        before, between, after, types = self.frame
        fixed = np.cumsum([len(pieces.flat), len(before), len(between), len(after)])
        starts, lengths = np.empty((2, len(kept), 5), dtype=np.int64)
        starts[:, 0::2], starts[:, 1::2] = fixed[:-1], pieces.bounds[:-1].reshape(-1, 2)
        lengths[:, 0::2], lengths[:, 1::2] = np.diff(fixed), kept
        lengths[is_left] = 0
        source = np.concatenate([pieces.flat, np.array([*before, *between, *after], dtype=np.int32)])
        parts = TokenIds.cut_out(source, starts.ravel(), lengths.ravel())
        bounds = parts.bounds[::5]
        kinds = np.repeat(np.tile(np.array(types, dtype=np.int32), len(kept)), lengths.ravel())
        return TokenIds(parts.flat, bounds), TokenIds(kinds, bounds)


def _share(room: int, counts: _Counts) -> _Counts:
    """Return how many tokens each text of a pair keeps, ``(N, 2)``; the longer, else the second, gets an odd one.

    Args:
        room: maximum number of tokens of both together.
        counts: ``(N, 2)``, their numbers of tokens.
    """
    half, least = room // 2, counts.min(axis=1, keepdims=True)
    halves = np.where(counts[:, :1] > counts[:, 1:], [room - half, half], [half, room - half])
    cut = np.where(least > half, halves, np.where(counts == least, counts, room - least))
    return np.where(counts.sum(axis=1, keepdims=True) > room, cut, counts)


def _find_frame(tokenizer: tokenizers.Tokenizer) -> _Frame | None:
    """Return the special tokens of a pair, found with two; None if the tokenizer does anything else."""
    one, other = map(_read_frame, tokenizer.encode_batch_fast([("a", "b c"), ("b c", "a")]))
    return one if one == other else None


def _read_frame(encoding: tokenizers.Encoding) -> _Frame | None:
    """Return the parts of a pair, each of one type."""
    runs = [(side, [place for place, _ in run]) for side, run in groupby(enumerate(encoding.sequence_ids), _side)]
    if [side for side, _ in runs] != [None, 0, None, 1, None]:
        return None
    types = [{encoding.type_ids[place] for place in places} for _, places in runs]
    if any(len(kinds) > 1 for kinds in types):
        return None
    before, _, between, _, after = ([encoding.ids[place] for place in places] for _, places in runs)
    return _Frame(before, between, after, [kind for kinds in types for kind in kinds])


def _side(place: tuple[int, int | None]) -> int | None:
    return place[1]
