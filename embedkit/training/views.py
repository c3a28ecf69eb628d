"""Views: how one sentence becomes two different inputs that mean the same.

Operations act on the word pieces of the truncated text and never touch the first and last token.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Literal

import numpy as np

from embedkit.config import setting

__all__ = ["AUGMENTATIONS", "ViewsConfig", "augment"]

Augmentation = Callable[[list[int], float, int, np.random.Generator], list[int]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ViewsConfig:
    """How the views of a batch are made from the columns of the corpus."""

    first: Literal["none", "deletion", "repetition", "span"] = setting("none", "augmentation of view 1")
    second: Literal["none", "deletion", "repetition", "span"] = setting(
        "none", "augmentation of view 2; with none, views of one column differ by dropout alone"
    )
    rate: float = setting(0.2, "share of the inner word pieces that an augmentation touches", above=0, maximum=1)


def augment(
    ids: list[int], name: str, *, rate: float, max_length: int, generator: np.random.Generator
) -> list[int]:
    """A view of a text's token ids, special tokens kept; texts of up to two inner pieces stay as they are."""
    inner = ids[1:-1]
    changed = AUGMENTATIONS[name](inner, rate, max_length - 2, generator)
    return [ids[0], *changed, ids[-1]]


def _none(inner: list[int], rate: float, room: int, generator: np.random.Generator) -> list[int]:
    return inner


def _deletion(inner: list[int], rate: float, room: int, generator: np.random.Generator) -> list[int]:
    """Drop round(rate * L) pieces at random places."""
    gone = generator.permutation(len(inner))[: round(rate * len(inner))]
    dropped = set(gone.tolist())
    return [piece for place, piece in enumerate(inner) if place not in dropped]


def _repetition(inner: list[int], rate: float, room: int, generator: np.random.Generator) -> list[int]:
    """Insert copies of random pieces at random places, as many as fit (PCL, word repetition)."""
    result = list(inner)
    for _ in range(min(round(rate * len(inner)), room - len(inner))):
        piece = result[int(generator.integers(len(result)))]
        result.insert(int(generator.integers(len(result) + 1)), piece)
    return result


def _span(inner: list[int], rate: float, room: int, generator: np.random.Generator) -> list[int]:
    """Drop one run of round(rate * L) neighbouring pieces."""
    length = round(rate * len(inner))
    start = int(generator.integers(len(inner) - length + 1))
    return inner[:start] + inner[start + length :]


AUGMENTATIONS: dict[str, Augmentation] = {
    "none": _none,
    "deletion": _deletion,
    "repetition": _repetition,
    "span": _span,
}
