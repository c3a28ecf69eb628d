"""A fast path through BERT's tokenizer for texts that can be normalised character by character."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import tokenizers
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer

# Latin blocks and IPA, Greek and Cyrillic, General Punctuation and Currency Symbols, without combining
# marks, line terminators and direction marks.
_NOT_PLAIN = re.compile(
    "[^\t\n\r\x20-\x7e\xa0-\u02af\u0370-\u0482\u048a-\u052f\u2010-\u2027\u2030-\u205e\u20a0-\u20bf]"
)


@dataclass(frozen=True, slots=True)
class PlainTexts:
    """Tokenizes plain texts at about half the cost. Create it with :meth:`find`.

    BERT's normaliser drops control characters, spaces Chinese characters, strips accents and lowercases, with
    offsets of every character, which costs as much as all the rest. Its result for a Latin, Greek or Cyrillic
    letter, punctuation or a currency sign does not depend on adjacent characters (combining marks, which it would
    sort, are not plain), so Python replaces characters one by one, and lowercases ASCII. Special tokens
    are added around ids instead of merged. Pre-tokenization and word pieces are the tokenizer's own.

    Attributes:
        quick: the tokenizer without its normaliser, special and added tokens; truncates texts.
        before: ids before each text.
        after: ids after each text.
        room: number of tokens to which ``quick`` truncates.
        lowercase: whether the normaliser lowercases.
        spelling: code point -> result of the normaliser.
        added: finds added tokens.
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
        """Return the fast path of a tokenizer, or None if it has none.

        Args:
            tokenizer: the tokenizer to imitate; without padding.
            max_length: maximum length of a text in tokens, including special tokens.
        """
        normalizer, added = tokenizer.normalizer, tokenizer.get_added_tokens_decoder().values()
        if type(normalizer) is not BertNormalizer or any(token.normalized for token in added):
            return None
        if type(tokenizer.model) is WordPiece and tokenizer.model.token_to_id(tokenizer.model.unk_token) is None:
            return None  # it raises an error for each unknown word
        quick = tokenizers.Tokenizer(tokenizer.model)  # shares memory, not a copy
        quick.pre_tokenizer = tokenizer.pre_tokenizer
        frame = find_frame(tokenizer, quick)
        if frame is None:
            return None
        room = max_length - sum(map(len, frame))
        quick.enable_truncation(room)
        pattern = "|".join(re.escape(token.content) for token in added)
        spelling = _Spelling(normalizer)
        return cls(quick, *frame, room, bool(normalizer.lowercase), spelling, re.compile(pattern or "(?!)"))

    def spell(self, text: str) -> str | None:
        """Return the normalised text, or None if it is not plain or contains an added token such as ``[MASK]``."""
        if self.added.search(text):
            return None
        if text.isascii() and text.isprintable():
            return text.lower() if self.lowercase else text
        return None if _NOT_PLAIN.search(text) else text.translate(self.spelling)

    def encode(self, texts: Sequence[str]) -> list[tuple[list[int], bool]]:
        """Return ids of texts normalised by :meth:`spell`, with special tokens, and whether each was truncated."""
        found = []
        for encoding in self.quick.encode_batch_fast(texts):
            ids = encoding.ids
            # Reading `overflowing` copies the whole rest of a text, so it is read only if there can be one.
            cut = len(ids) == self.room and bool(encoding.overflowing)
            found.append(([*self.before, *ids, *self.after], cut))
        return found


def plain_characters() -> str:
    """Return every character that a plain text may contain."""
    return _NOT_PLAIN.sub("", "".join(map(chr, range(0x2100))))


class _Spelling(dict[int, str]):
    """Queries the normaliser once for each new character."""

    def __init__(self, normalizer: BertNormalizer) -> None:
        super().__init__()
        self._normalizer = normalizer

    def __missing__(self, code: int) -> str:
        self[code] = spelling = str(self._normalizer.normalize_str(chr(code)))
        return spelling


def find_frame(whole: tokenizers.Tokenizer, bare: tokenizers.Tokenizer) -> tuple[list[int], list[int]] | None:
    """Return the ids that ``whole`` adds before and after a text, found with two texts; else None."""
    frames = []
    for text in ("a", "b c"):
        inner, outer = bare.encode(text, add_special_tokens=False).ids, whole.encode(text).ids
        starts = [start for start in range(len(outer)) if outer[start : start + len(inner)] == inner]
        if len(starts) != 1:
            return None
        frames.append((outer[: starts[0]], outer[starts[0] + len(inner) :]))
    return frames[0] if frames[0] == frames[1] else None
