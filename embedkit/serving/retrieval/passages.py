"""The passage of a text that has most words of a query, to be shown instead of the whole text.

`http/page/highlight.js` finds passages in the same way.
"""

from __future__ import annotations

import re
from typing import Final

_WORD: Final = re.compile(r"[^\W_]+")
_SHORT: Final = 3
"""Words no longer than this do not count, because they are in most texts, unless they hold a digit."""

_STEM: Final = 4
"""Two words of which one begins with the other are taken for forms of one word from this length on."""

_PAUSE: Final = re.compile(r"[.!?\u2026\u3002\uff01\uff1f]\s|\n\s*")
_SPACE: Final = re.compile(r"\s")


def find_passage(text: str, query: str, most: int = 240) -> tuple[int, int]:
    """Return the first character and the end, exclusive, of a passage of at most ``most`` characters.

    It begins after a sentence or a line, if one ends near, and otherwise between words. Without a common word it
    is the beginning of the text.
    """
    if len(text) <= most:
        return 0, len(text)
    first, last = _densest(_matches(text, query), most)
    slack = most - (last - first)
    start = _start(text, max(0, first - slack // 2), first)
    end = _end(text, max(last, start + 1), min(len(text), start + most))
    return start, end


def _matches(text: str, query: str) -> list[tuple[int, int, str]]:
    """Return first character, end, and word of the query of each word in a text that is one of the query's."""
    words = _WORD.findall(query.casefold())
    wanted = [word for word in words if len(word) > _SHORT or any(map(str.isdigit, word))] or words
    found: dict[str, str | None] = {}
    matches = []
    for match in _WORD.finditer(text):
        word = match[0].casefold()
        if word not in found:
            found[word] = next((other for other in wanted if _are_forms(word, other)), None)
        if (other := found[word]) is not None:
            matches.append((match.start(), match.end(), other))
    return matches


def _are_forms(word: str, other: str) -> bool:
    short, long = sorted((word, other), key=len)
    return word == other or (len(short) >= _STEM > len(long) - len(short) and long.startswith(short))


def _densest(matches: list[tuple[int, int, str]], most: int) -> tuple[int, int]:
    """Return the range within ``most`` characters with most different words, the first of several."""
    best, place, stop = (0, 0), (0, 0), 0
    for number, (start, _, _) in enumerate(matches):
        while stop < len(matches) and matches[stop][1] - start <= most:
            stop += 1
        near = matches[number:stop]
        count = len({word for _, _, word in near}), len(near)
        if near and count > best:
            best, place = count, (start, near[-1][1])
    return place


def _start(text: str, earliest: int, latest: int) -> int:
    pauses = [match.end() for match in _PAUSE.finditer(text, earliest, latest)]
    if not earliest or pauses:
        return pauses[0] if earliest else 0
    space = _SPACE.search(text, earliest, latest)
    return space.end() if space else latest


def _end(text: str, earliest: int, latest: int) -> int:
    if latest == len(text):
        return latest
    pauses = [match.start() + 1 for match in _PAUSE.finditer(text, earliest, latest)]
    spaces = [match.start() for match in _SPACE.finditer(text, earliest, latest)]
    return (pauses or spaces or [latest])[-1]
