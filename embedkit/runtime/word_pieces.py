"""The fastest path through BERT's tokenizer: plain texts by a C kernel, if it was built."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import tokenizers
from tokenizers.models import WordPiece
from tokenizers.pre_tokenizers import BertPreTokenizer

from embedkit.runtime.kernel_pieces import KernelPieces
from embedkit.runtime.kernels import wordpiece
from embedkit.runtime.plain_texts import PlainTexts, plain_characters

__all__ = ["WordPieces"]

_LONGEST_WORD = 256  # the longest word that the kernel supports


class WordPieces(KernelPieces):
    """Ids of plain texts for tokenizers with BERT's normaliser, pre-tokenizer and model. Created by :meth:`find`.

    The kernel has no Unicode tables: the result of the normaliser for each plain character, and whether the
    pre-tokenizer treats it as a letter, a mark or a space, are queried once per character.
    It reads a text in one pass and stops at the truncation.

    Args:
        tokenizer: the tokenizer to imitate.
        plain: its fast path without the kernel.
    """

    def __init__(self, tokenizer: tokenizers.Tokenizer, plain: PlainTexts) -> None:
        super().__init__(tokenizer, plain)
        self._tokenizer, self._plain = tokenizer, plain

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

    def _make(self) -> wordpiece.WordPieces:
        model, plain = self._tokenizer.model, self._plain
        letters, marks, spaces = self._classify(plain_characters(), plain.spelling)
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

    def _classify(
        self, characters: Iterable[str], spelling: Mapping[int, str]
    ) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
        """Return the spelling of letters, marks and spaces; other characters are in none of the three."""
        letters, marks, spaces = {}, {}, {}
        for character in characters:
            spelled = spelling[ord(character)]
            pieces = [piece for piece, _ in self._tokenizer.pre_tokenizer.pre_tokenize_str(f"a{spelled}a")]
            if pieces == [f"a{spelled}a"]:
                letters[character] = spelled
            elif pieces == ["a", spelled, "a"]:
                marks[character] = spelled
            elif pieces == ["a", "a"]:
                spaces[character] = spelled
        return letters, marks, spaces
