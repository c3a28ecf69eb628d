"""Kernels of tokenizers: what those of all kinds have in common."""

from __future__ import annotations

import contextlib
import math
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import tokenizers

from embedkit.errors import ModelError
from embedkit.runtime.token_ids import TokenIds
from embedkit.runtime.tokenizer_rules import tokenizer_errors
from embedkit.threads import submit_each

_TRUNCATED, _FALLBACK = 1, 2
# Creating a kernel takes as long as this many short texts, so it is skipped for a few.
_TEXTS_THAT_PAY = 1000
_CHARACTERS = 64  # of a short text; the kernel reads no more of a long one than is needed
_TEXTS_OF_A_THREAD = 512  # fewer take less time than starting a thread
_MOST_ADDED = 1000  # added tokens, each of which is compared with a text; the tokenizers package has an automaton


class _Kernel(Protocol):
    def tokenize(self, texts: list[str]) -> tuple[bytes, bytes, bytes]: ...


class TokenizerKernel(ABC):
    """Ids of the texts that a kernel supports. Subclasses create the kernel.

    Args:
        arguments: those of the subclass, from which a copy creates its own kernel.
        texts_that_pay: how many texts take as long as creating the kernel.
    """

    def __init__(self, *arguments: Any, texts_that_pay: int = 0) -> None:
        self._arguments = arguments
        self._missing: float = max(texts_that_pay, _TEXTS_THAT_PAY)
        self._kernel: _Kernel | None = None

    @abstractmethod
    def _make(self) -> _Kernel:
        """Create the kernel, or raise OverflowError or ValueError for a tokenizer that it does not support."""

    def encode(self, texts: list[str], threads: int = 1) -> tuple[TokenIds, list[int], list[int]] | None:
        """Return ids with special tokens, positions of truncated texts, and positions of unsupported texts.

        The last have no ids. Returns None until enough texts have come for the kernel to pay off.
        """
        kernel = self._kernel or self._count(texts)
        if kernel is None:
            return None
        threads = min(threads, len(texts) // _TEXTS_OF_A_THREAD)
        if threads < 2:
            flat, bounds, outcomes = kernel.tokenize(texts)
            ids = TokenIds.of_bytes(flat, bounds)
        else:
            parts = _tokenize(kernel, texts, threads)
            ids = TokenIds.join([TokenIds.of_bytes(flat, bounds) for flat, bounds, _ in parts])
            outcomes = b"".join([outcomes for *_, outcomes in parts])
        return ids, _positions(outcomes, _TRUNCATED), _positions(outcomes, _FALLBACK)

    def __reduce__(self) -> tuple[type[TokenizerKernel], tuple[Any, ...]]:
        return type(self), self._arguments

    def _count(self, texts: list[str]) -> _Kernel | None:
        """Return the kernel, if it pays off by now; two threads may both create one, which are equal."""
        self._missing -= max(len(texts), sum(map(len, texts)) // _CHARACTERS)
        if self._missing <= 0:
            self._create()
            self._missing = math.inf if self._kernel is None else 0
        return self._kernel

    def _create(self) -> None:
        """Make the kernel; it stays as it was if the tokenizer is not supported or fails."""
        # No model has ids of more than 31 bits, but a file may.
        with contextlib.suppress(OverflowError, ModelError, ValueError), tokenizer_errors():
            self._kernel = self._make()


def _tokenize(kernel: _Kernel, texts: list[str], threads: int) -> list[tuple[bytes, bytes, bytes]]:
    """Run the kernel on the texts, in one part per thread."""
    size = -(-len(texts) // threads)
    first, *rest = (texts[at : at + size] for at in range(0, len(texts), size))
    with ThreadPoolExecutor(threads - 1) as pool:
        others = submit_each(pool, kernel.tokenize, rest)
        own = [kernel.tokenize(part) for part in (first, *rest[len(others) :])]
        return [own[0], *(other.result() for other in others), *own[1:]]


def _positions(outcomes: bytes, outcome: int) -> list[int]:
    return [position for position, other in enumerate(outcomes) if other == outcome] if outcome in outcomes else []


def finds_added(tokenizer: tokenizers.Tokenizer) -> bool:
    """Return whether a fast path finds the added tokens: those of texts before normalisation, if they are few."""
    added = tokenizer.get_added_tokens_decoder().values()
    return len(added) <= _MOST_ADDED and not any(token.normalized for token in added)


def find_special_tokens(tokenizer: tokenizers.Tokenizer) -> tuple[list[int], list[int]] | None:
    """Return the ids that a tokenizer adds before and after a text, found with two texts; else None."""
    found = []
    for text in ("a", "b c"):
        inner, outer = tokenizer.encode(text, add_special_tokens=False).ids, tokenizer.encode(text).ids
        starts = [start for start in range(len(outer)) if outer[start : start + len(inner)] == inner]
        if len(starts) != 1:
            return None
        found.append((outer[: starts[0]], outer[starts[0] + len(inner) :]))
    return found[0] if found[0] == found[1] else None
