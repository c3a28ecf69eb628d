"""Views: how one sentence becomes two different inputs with the same meaning.

Augmentations act on the word pieces of the truncated text and never change the first and last token.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Literal

import numpy as np

from embedkit.config import setting

Augmentation = Callable[[list[int], float, int, np.random.Generator], list[int]]
AugmentationName = Literal["none", "shuffle", "inversion", "deletion", "repetition", "span"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ViewsConfig:
    """How the views of a batch are made from the corpus columns."""

    first: AugmentationName = setting("none", "augmentation of view 1")
    second: AugmentationName = setting(
        "none", "augmentation of view 2; with none, views of one column differ by dropout only"
    )
    positives: tuple[AugmentationName, ...] = setting(
        (), "one augmentation per positive, for methods that use positives; empty: the method's own list"
    )
    rate: float = setting(0.2, "share of the inner word pieces that an augmentation changes", above=0, maximum=1)


def augment(
    ids: list[int], name: str, *, rate: float, max_length: int, generator: np.random.Generator
) -> list[int]:
    """Return an augmented copy of a text's token ids; first and last token and at least one between them are kept.

    Deletion, repetition and span change a share ``rate`` of the inner pieces, rounded (half to even); a text so
    short that it rounds to 0 is unchanged. A view has at most ``max_length`` tokens.
    """
    inner = ids[1:-1]
    if not inner:
        return ids
    changed = AUGMENTATIONS[name](inner, rate, max_length - 2, generator)
    return [ids[0], *changed, ids[-1]]


def _none(inner: list[int], _rate: float, _capacity: int, _generator: np.random.Generator) -> list[int]:
    return inner


def _shuffle(inner: list[int], _rate: float, _capacity: int, generator: np.random.Generator) -> list[int]:
    """Put all pieces in random order (PCL, shuffled sentence)."""
    return [inner[place] for place in generator.permutation(len(inner)).tolist()]


def _inversion(inner: list[int], _rate: float, _capacity: int, _generator: np.random.Generator) -> list[int]:
    """Reverse the order of all pieces (PCL, inversed sentence)."""
    return inner[::-1]


def _deletion(inner: list[int], rate: float, _capacity: int, generator: np.random.Generator) -> list[int]:
    """Drop round(rate * L) pieces at random places (PCL, word deletion)."""
    gone = generator.permutation(len(inner))[: _fewer_than_all(inner, rate)]
    dropped = set(gone.tolist())
    return [piece for place, piece in enumerate(inner) if place not in dropped]


def _repetition(inner: list[int], rate: float, capacity: int, generator: np.random.Generator) -> list[int]:
    """Insert copies of random pieces at random places, as many as fit (PCL, word repetition)."""
    result = list(inner)
    for _ in range(min(round(rate * len(inner)), capacity - len(inner))):
        piece = result[int(generator.integers(len(result)))]
        result.insert(int(generator.integers(len(result) + 1)), piece)
    return result


def _span(inner: list[int], rate: float, _capacity: int, generator: np.random.Generator) -> list[int]:
    """Drop one run of round(rate * L) consecutive pieces."""
    length = _fewer_than_all(inner, rate)
    start = int(generator.integers(len(inner) - length + 1))
    return inner[:start] + inner[start + length :]


def _fewer_than_all(inner: list[int], rate: float) -> int:
    return min(round(rate * len(inner)), len(inner) - 1)


AUGMENTATIONS: dict[str, Augmentation] = {
    "none": _none,
    "shuffle": _shuffle,
    "inversion": _inversion,
    "deletion": _deletion,
    "repetition": _repetition,
    "span": _span,
}
