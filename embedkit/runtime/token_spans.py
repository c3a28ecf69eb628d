"""Tokens with the characters that they stand for, as people look at them; encoding never needs these."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import tokenizers

__all__ = ["TokenSpan", "TokenSpans"]


class TokenSpan(NamedTuple):
    """One token of a text.

    Attributes:
        id: in the model's vocabulary.
        text: the characters that it stands for; as the vocabulary spells it if special.
        special: whether the tokenizer added it.
        start: first character of the text that it stands for; None if special.
        stop: the character behind the last; None if special.
    """

    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None


class TokenSpans:
    """A tokenizer that neither cuts nor pads.

    Args:
        json: content of a ``tokenizer.json``.
    """

    def __init__(self, json: str) -> None:
        self._tokenizer = tokenizers.Tokenizer.from_str(json)
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()

    def find(self, texts: Sequence[str], *, special_tokens: bool = True) -> list[list[TokenSpan]]:
        """The tokens of each text.

        Args:
            texts: N texts.
            special_tokens: whether those that the tokenizer adds are among them.
        """
        found = self._tokenizer.encode_batch(list(texts), add_special_tokens=special_tokens)
        return [_spans(text, encoding) for text, encoding in zip(texts, found, strict=True)]


def _spans(text: str, encoding: tokenizers.Encoding) -> list[TokenSpan]:
    rows = zip(encoding.ids, encoding.tokens, encoding.special_tokens_mask, encoding.offsets, strict=True)
    return [
        TokenSpan(id_, token, special=True, start=None, stop=None)
        if special
        else TokenSpan(id_, text[start:stop], special=False, start=start, stop=stop)
        for id_, token, special, (start, stop) in rows
    ]
