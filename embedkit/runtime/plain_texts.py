"""A quicker way through BERT's tokenizer for texts that can be normalised a character at a time."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import tokenizers
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer

__all__ = ["PlainTexts", "plain_characters"]

# Latin blocks and IPA, Greek and Cyrillic, General Punctuation and Currency Symbols, without combining
# marks and without what ends a line or gives a direction.
_NOT_PLAIN = re.compile(
    "[^\t\n\r\x20-\x7e\xa0-\u02af\u0370-\u0482\u048a-\u052f\u2010-\u2027\u2030-\u205e\u20a0-\u20bf]"
)


@dataclass(frozen=True, slots=True)
class PlainTexts:
    """What a tokenizer gives for plain texts, at about half the cost. Use :meth:`find`.

    BERT's normaliser drops control characters, spaces out Chinese, strips accents and lowercases, keeping account
    of every character on the way, which costs as much as all the rest. What it makes of a Latin, Greek or Cyrillic
    letter, of punctuation or a sign of currency does not depend on the characters beside it (combining marks,
    which it would sort, are not plain); so Python puts one for the other, and for ASCII lowercases. Special tokens
    are put around ids instead of being merged with them. Pre-tokenization and word pieces are the tokenizer's own.

    Attributes:
        quick: the tokenizer without its normaliser, special and added tokens; cuts texts.
        before: ids that stand before each text.
        after: ids that stand behind it.
        room: tokens that ``quick`` cuts to.
        lowercase: whether the normaliser lowercases.
        spelling: code of a character -> what the normaliser makes of it.
        added: finds what the tokenizer would not take for text.
    """

    quick: tokenizers.Tokenizer
    before: list[int]
    after: list[int]
    room: int
    lowercase: bool
    spelling: Mapping[int, str]
    added: re.Pattern[str]

    @classmethod
    def find(cls, tokenizer: tokenizers.Tokenizer, max_length: int) -> Self | None:
        """The quicker way, or None where this tokenizer has none.

        Args:
            tokenizer: whose ids are wanted; pads nothing.
            max_length: the longest text in tokens, special tokens included.
        """
        normalizer, added = tokenizer.normalizer, tokenizer.get_added_tokens_decoder().values()
        if type(normalizer) is not BertNormalizer or any(token.normalized for token in added):
            return None
        if type(tokenizer.model) is WordPiece and tokenizer.model.token_to_id(tokenizer.model.unk_token) is None:
            return None  # which has an error for each word that it does not know
        quick = tokenizers.Tokenizer(tokenizer.model)  # the same in memory, not a copy
        quick.pre_tokenizer = tokenizer.pre_tokenizer
        frame = _find_frame(tokenizer, quick)
        if frame is None:
            return None
        room = max_length - sum(map(len, frame))
        quick.enable_truncation(room)
        pattern = "|".join(re.escape(token.content) for token in added)
        spelling = _Spelling(normalizer)
        return cls(quick, *frame, room, bool(normalizer.lowercase), spelling, re.compile(pattern or "(?!)"))

    def spell(self, text: str) -> str | None:
        """A text as it is normalised, or None if it is not plain or has an added token in it, ``[MASK]`` say."""
        if self.added.search(text):
            return None
        if text.isascii() and text.isprintable():
            return text.lower() if self.lowercase else text
        return None if _NOT_PLAIN.search(text) else text.translate(self.spelling)

    def encode(self, texts: Sequence[str]) -> list[tuple[list[int], bool]]:
        """The ids of texts as :meth:`spell` gave them, special tokens included, and whether some were cut off."""
        found = []
        for encoding in self.quick.encode_batch_fast(texts):
            ids = encoding.ids
            # Reading `overflowing` copies the whole rest of a text: look only where there can be one.
            cut = len(ids) == self.room and bool(encoding.overflowing)
            found.append(([*self.before, *ids, *self.after], cut))
        return found


def plain_characters() -> str:
    """Every character that a plain text may have."""
    return _NOT_PLAIN.sub("", "".join(map(chr, range(0x2100))))


class _Spelling(dict[int, str]):
    """Asks the normaliser once for each character that comes."""

    def __init__(self, normalizer: BertNormalizer) -> None:
        super().__init__()
        self._normalizer = normalizer

    def __missing__(self, code: int) -> str:
        self[code] = spelling = str(self._normalizer.normalize_str(chr(code)))
        return spelling


def _find_frame(whole: tokenizers.Tokenizer, bare: tokenizers.Tokenizer) -> tuple[list[int], list[int]] | None:
    """Ids that ``whole`` puts before and after a text, seen on two; None if it does anything else."""
    frames = []
    for text in ("a", "b c"):
        inner, outer = bare.encode(text).ids, whole.encode(text).ids
        starts = [start for start in range(len(outer)) if outer[start : start + len(inner)] == inner]
        if len(starts) != 1:
            return None
        frames.append((outer[: starts[0]], outer[starts[0] + len(inner) :]))
    return frames[0] if frames[0] == frames[1] else None
