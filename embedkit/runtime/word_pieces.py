"""The fastest path through BERT's tokenizer: a C kernel, if it was built."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator

import numpy as np
import tokenizers
from tokenizers.models import WordPiece
from tokenizers.pre_tokenizers import BertPreTokenizer

from embedkit.runtime.kernel_pieces import KernelPieces
from embedkit.runtime.kernels import wordpiece
from embedkit.runtime.plain_texts import PlainTexts, plain_characters
from embedkit.runtime.token_ids import TokenIds

_LONGEST_WORD = 256  # the longest word that the kernel supports
_UNREAD_TEXTS = 200  # so many texts take longer than learning some blocks of characters
_READ_CHARACTERS = 2000  # of each of them
_PLANE = 0x10000
_BETWEEN = "0"


class WordPieces(KernelPieces):
    """Ids of texts for tokenizers with BERT's normaliser, pre-tokenizer and model. Create it with :meth:`find`.

    The kernel has no Unicode tables: the result of the normaliser for each character, and whether the
    pre-tokenizer treats it as a letter, a mark or a space, are queried from the tokenizer. It begins with the
    characters of plain texts, and learns others in blocks of 256 once enough texts have them. Texts with
    characters beyond the Basic Multilingual Plane, and with added tokens, are left to the tokenizer.
    It reads a text in one pass and stops at the truncation.

    Args:
        tokenizer: the tokenizer to imitate.
        plain: its fast path without the kernel.
    """

    def __init__(self, tokenizer: tokenizers.Tokenizer, plain: PlainTexts) -> None:
        super().__init__(tokenizer, plain)
        self._tokenizer, self._plain = tokenizer, plain
        self._strips = tokenizer.normalizer.normalize_str("\xe9") == "e"
        self._characters = set(plain_characters())
        self._unread, self._blocks = 0, set[int]()

    @classmethod
    def find(cls, tokenizer: tokenizers.Tokenizer, plain: PlainTexts | None) -> WordPieces | None:
        """Return the fast path of a tokenizer, or None if there is no kernel or the tokenizer differs from BERT's.

        Args:
            tokenizer: the tokenizer to imitate.
            plain: its fast path without the kernel, or None.
        """
        model = tokenizer.model
        if wordpiece is None or plain is None or type(model) is not WordPiece:
            return None
        if type(tokenizer.pre_tokenizer) is not BertPreTokenizer or model.max_input_chars_per_word > _LONGEST_WORD:
            return None
        return cls(tokenizer, plain)

    def encode(self, texts: list[str], threads: int = 1) -> tuple[TokenIds, list[int], list[int]] | None:
        """Return ids as :meth:`KernelPieces.encode`; the kernel may learn the characters of the texts before."""
        found = super().encode(texts, threads)
        if found is None or not self._learn([texts[position] for position in found[2]]):
            return found
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
        self._kernel = self._make()
        return True

    def _make(self) -> wordpiece.WordPieces:
        model, plain = self._tokenizer.model, self._plain
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
            before=np.array(plain.before, dtype=np.int32).tobytes(),
            after=np.array(plain.after, dtype=np.int32).tobytes(),
            room=plain.room,
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


def _block(number: int) -> Iterator[str]:
    """The assigned characters of a block. Unassigned ones may be combining marks in a later version of Unicode."""
    for code in range(number << 8, (number + 1) << 8):
        if unicodedata.category(chr(code)) not in ("Cn", "Cs"):
            yield chr(code)
