"""The fastest path through BERT's tokenizer: plain texts by a C kernel, if it was built."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import tokenizers
from tokenizers.models import WordPiece
from tokenizers.pre_tokenizers import BertPreTokenizer

from embedkit.runtime.kernels import wordpiece
from embedkit.runtime.plain_texts import PlainTexts, plain_characters
from embedkit.runtime.token_ids import TokenIds

__all__ = ["WordPieces"]

_CUT, _LEFT = 1, 2
# Reading the vocabulary takes as long as this many short texts, so it is skipped for a few.
_TEXTS_THAT_PAY = 1000
_TEXTS_OF_A_THREAD = 512  # fewer take less time than starting a thread
_LONGEST_WORD = 256  # the longest word that the kernel supports


@dataclass(slots=True)
class WordPieces:
    """Ids of plain texts, for tokenizers with BERT's normaliser, pre-tokenizer and model. Created by :meth:`find`.

    The kernel has no Unicode tables: the result of the normaliser for each plain character, and whether the
    pre-tokenizer treats it as a letter, a mark or a space, are queried once per character.
    It reads a text in one pass and stops at the truncation.

    Attributes:
        tokenizer: the tokenizer to imitate.
        plain: its fast path without the kernel.
    """

    tokenizer: tokenizers.Tokenizer
    plain: PlainTexts
    _seen: float = 0
    _kernel: wordpiece.WordPieces | None = field(default=None, repr=False)

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
        """Return ids with special tokens, positions of truncated texts, and positions of texts that are not plain.

        The last have no ids. Returns None until enough texts have come for the kernel to pay off.
        """
        kernel = self._kernel or self._count(len(texts))
        if kernel is None:
            return None
        found = _tokenize(kernel, texts, min(threads, len(texts) // _TEXTS_OF_A_THREAD))
        outcomes = b"".join(outcomes for *_, outcomes in found)
        ids = TokenIds.join(
            [
                TokenIds(np.frombuffer(flat, dtype=np.int32), np.frombuffer(bounds, dtype=np.int64))
                for flat, bounds, _ in found
            ]
        )
        return ids, _positions(outcomes, _CUT), _positions(outcomes, _LEFT)

    def __reduce__(self) -> tuple[type[WordPieces], tuple[tokenizers.Tokenizer, PlainTexts]]:
        return type(self), (self.tokenizer, self.plain)  # a copy creates its own kernel

    def _count(self, texts: int) -> wordpiece.WordPieces | None:
        """Return the kernel, if it pays off by now; two threads may both create one, which are equal."""
        self._seen += texts
        if self._seen >= _TEXTS_THAT_PAY:
            try:
                self._kernel = self._make()
            except (OverflowError, ValueError):  # no model has ids of more than 31 bits, but a file may
                self._seen = -math.inf
        return self._kernel

    def _make(self) -> wordpiece.WordPieces:
        model, plain = self.tokenizer.model, self.plain
        letters, marks, spaces = self._classify(plain_characters(), plain.spelling)
        return wordpiece.WordPieces(
            self.tokenizer.get_vocab(with_added_tokens=False),
            unknown=model.token_to_id(model.unk_token),
            prefix=model.continuing_subword_prefix,
            longest_word=model.max_input_chars_per_word,
            letters=letters,
            marks=marks,
            spaces=spaces,
            added=tuple(token.content for token in self.tokenizer.get_added_tokens_decoder().values()),
            before=np.array(plain.before, dtype=np.int32).tobytes(),
            after=np.array(plain.after, dtype=np.int32).tobytes(),
            room=plain.room,
        )

    def _classify(
        self, characters: Iterable[str], spelling: Mapping[int, str]
    ) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
        """Return the spelling of letters, marks and spaces; other characters are in none of the three."""
        letters, marks, spaces = {}, {}, {}
        for character in characters:
            spelled = spelling[ord(character)]
            pieces = [piece for piece, _ in self.tokenizer.pre_tokenizer.pre_tokenize_str(f"a{spelled}a")]
            if pieces == [f"a{spelled}a"]:
                letters[character] = spelled
            elif pieces == ["a", spelled, "a"]:
                marks[character] = spelled
            elif pieces == ["a", "a"]:
                spaces[character] = spelled
        return letters, marks, spaces


def _tokenize(kernel: wordpiece.WordPieces, texts: list[str], threads: int) -> list[tuple[bytes, bytes, bytes]]:
    """Run the kernel on the texts, in one part per thread."""
    if threads < 2:
        return [kernel.tokenize(texts)]
    size = -(-len(texts) // threads)
    with ThreadPoolExecutor(threads - 1) as pool:
        others = [pool.submit(kernel.tokenize, texts[at : at + size]) for at in range(size, len(texts), size)]
        return [kernel.tokenize(texts[:size]), *(other.result() for other in others)]


def _positions(outcomes: bytes, outcome: int) -> list[int]:
    return [position for position, found in enumerate(outcomes) if found == outcome] if outcome in outcomes else []
