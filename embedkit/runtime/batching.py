"""How texts are grouped: chunks bound the memory, token batches inside a chunk waste little padding."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt


def read_chunks(items: Iterable[Any], *, most_items: int, most_characters: int) -> Iterator[list[Any]]:
    """Cut a stream of texts or pairs into lists, in order, each closed by the item that reaches a bound.

    An item that is no text and no pair counts no characters; the tokenizer refuses it by its position.
    """
    chunk: list[Any] = []
    characters = 0
    for item in items:
        chunk.append(item)
        texts = item if isinstance(item, (tuple, list)) else (item,)
        characters += sum(len(text) for text in texts if isinstance(text, str))
        if len(chunk) >= most_items or characters >= most_characters:
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
        most_tokens: largest ``B * L`` of a batch; a longer text is a batch of its own.
        most_texts: largest B of a batch.

    Yields:
        ``(B,)`` positions of the texts of a batch, longest first; every position comes once. The
        longest batch comes first, so that memory is allocated once.
    """
    order = np.argsort(-lengths, kind="stable")
    start = 0
    while start < len(order):
        longest = int(lengths[order[start]])
        size = max(1, most_tokens // max(1, longest))
        size = size if most_texts is None else min(size, most_texts)
        yield order[start : start + size]
        start += size
