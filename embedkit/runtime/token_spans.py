"""Tokens with their positions in the text, for display; encoding does not need them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import tokenizers


class TokenSpan(NamedTuple):
    """One token of a text.

    Attributes:
        id: id in the model's vocabulary.
        text: its characters in the text; the spelling of the vocabulary if special.
        special: whether the tokenizer added it.
        start: first character in the text; None if special.
        stop: end of the characters, exclusive; None if special.
    """

    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None


class TokenSpans:
    """A tokenizer without truncation and padding.

    Args:
        json: contents of a ``tokenizer.json``.
    """

    def __init__(self, json: str) -> None:
        self._tokenizer = tokenizers.Tokenizer.from_str(json)
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()

    def find(self, texts: Sequence[str], *, special_tokens: bool = True) -> list[list[TokenSpan]]:
        """Return the tokens of each text.

        Args:
            texts: N texts.
            special_tokens: whether to include tokens that the tokenizer adds.
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
