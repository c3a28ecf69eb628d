"""Names of groups of texts: the words that distinguish a group from all texts."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final

_WORD: Final = re.compile(r"[^\W\d_]{2,}")
_WORDS: Final = 3
_LEAST_SHARE: Final = 0.3  # of a group's texts have each word of its name


def name_groups(groups: Iterable[Sequence[int]], count: int, text: Callable[[int], str]) -> list[str]:
    """Name groups by up to three words each.

    A word counts once in a text. With the share p of a group's texts and the share q of all texts with a word,
    words are chosen by p log(p / q), their part of the Kullback-Leibler divergence.

    Args:
        groups: the rows of each group.
        count: number of all texts.
        text: returns the text of a row.

    Returns:
        words separated by commas, the most telling first; "" where no word occurs often enough.
    """
    total = Counter(word for row in range(count) for word in _words(text(row)))
    names = []
    for rows in groups:
        found = Counter(word for row in rows for word in _words(text(row)))
        names.append(", ".join(_telling(found, len(rows), total, count)))
    return names


def _words(text: str) -> set[str]:
    return set(_WORD.findall(text.casefold()))


def _telling(found: Counter[str], size: int, total: Counter[str], count: int) -> list[str]:
    shares = {word: number / size for word, number in found.items() if number >= _LEAST_SHARE * size}
    scores = {word: share * math.log(share * count / total[word]) for word, share in shares.items()}
    return sorted(scores, key=lambda word: (-scores[word], word))[:_WORDS]
