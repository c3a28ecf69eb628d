"""How texts are grouped: chunks bound the memory, token batches inside a chunk waste little padding."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["read_chunks", "token_batches"]


def read_chunks(texts: Iterable[Any], *, most_texts: int, most_characters: int) -> Iterator[list[Any]]:
    """Cut a stream into lists, in order, each closed by the text that reaches one of the bounds.

    An item that is no text counts no characters; the tokenizer refuses it by its position.
    """
    chunk: list[Any] = []
    characters = 0
    for text in texts:
        chunk.append(text)
        characters += len(text) if isinstance(text, str) else 0
        if len(chunk) >= most_texts or characters >= most_characters:
            yield chunk
            chunk, characters = [], 0
    if chunk:
        yield chunk


def token_batches(
    lengths: npt.NDArray[np.int64], *, most_tokens: int, most_texts: int | None = None
) -> Iterator[npt.NDArray[np.intp]]:
    """Group texts of similar length so that a batch, padding included, keeps within a budget.

    Args:
        lengths: ``(N,)`` tokens of each text.
        most_tokens: largest ``B * L`` of a batch; a text longer than that stands alone.
        most_texts: largest B of a batch.

    Yields:
        ``(B,)`` positions of the texts of a batch, longest first; every position comes once. The
        longest batch comes first, so that memory is asked for once.
    """
    order = np.argsort(-lengths, kind="stable")
    start = 0
    while start < len(order):
        longest = int(lengths[order[start]])
        size = max(1, most_tokens // max(1, longest))
        size = size if most_texts is None else min(size, most_texts)
        yield order[start : start + size]
        start += size
