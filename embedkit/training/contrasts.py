"""Contrasts: variants of a text with nearly the same words and a different meaning.

A bag of words cannot distinguish roles, negation, or a question from a statement. Such pairs are rare in a corpus,
so a student may confuse them; the teacher's vectors show how different they are.

The rules use closed word classes instead of a parser, so not every contrast is good English.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence


def _words(listed: str) -> frozenset[str]:
    return frozenset(listed.split())


_LONGEST = 30  # words; a single word hardly changes longer texts
_AUXILIARIES = _words("is are was were am has have had do does did can could will would should must may might")
_DETERMINERS = _words("a an the some one two three his her its their my your our this that")
_INDEFINITE = _words("a an some one")
_OPPOSITES = {
    first: second
    for one, other in (
        *(("before", "after"), ("more", "less"), ("with", "without"), ("up", "down"), ("left", "right")),
        *(("above", "below"), ("inside", "outside"), ("always", "never"), ("most", "few")),
        *(("first", "last"), ("everyone", "nobody"), ("everything", "nothing"), ("increase", "decrease")),
        *(("increases", "decreases"), ("increased", "decreased"), ("high", "low"), ("higher", "lower")),
        *(("buy", "sell"), ("open", "close"), ("start", "stop"), ("man", "woman"), ("old", "young")),
        *(("cause", "prevent"), ("causes", "prevents"), ("enable", "disable"), ("accept", "refuse")),
    )
    for first, second in ((one, other), (other, one))
}
_QUESTIONS = _words("how what who whom whose where when why which")
_NOT = re.compile(r"\bnot |n['\u2019]t\b")
_NONE = re.compile(r"\b([Tt]here (?:is|was)) no\b")
_FROM_TO = re.compile(r"\bfrom (\w+) to (\w+)")
_SPLIT = re.compile(r"(?<=[.!?])\s")
_BREAKS = ".,;:!?"


def contrasts(text: str) -> list[str]:
    """Return up to four variants of a text: negated, with exchanged roles, with an antonym, and as a question.

    Texts of several sentences or of more than 30 words have none.
    """
    words = text.split()
    if not 3 <= len(words) <= _LONGEST or _SPLIT.search(text):
        return []
    made = (make(text, words) for make in _WAYS)
    return list(dict.fromkeys(variant for variant in made if variant is not None and variant != text))


def _negate(text: str, words: Sequence[str]) -> str | None:
    """Remove the first "not" or "no", or insert one after the first auxiliary of a statement."""
    if _NOT.search(text):
        return _NOT.sub("", text, count=1)
    if _NONE.search(text):
        return _NONE.sub(r"\1 a", text, count=1)
    place = _auxiliary(words)
    if not place or words[0].lower() in _QUESTIONS:
        return None
    before, after = words[: place + 1], words[place + 1 :]
    if before[0].lower() == "there" and after[0].lower() in _INDEFINITE:
        return " ".join([*before, "no", *after[1:]])
    return " ".join([*before, "not", *after])


def _exchange(text: str, words: Sequence[str]) -> str | None:
    """Exchange the ends of "from ... to ...", or the nouns after the first two determiners."""
    if _FROM_TO.search(text):
        return _FROM_TO.sub(r"from \2 to \1", text, count=1)
    places = [
        index + 1
        for index, word in enumerate(words[:-1])
        if word.lower() in _DETERMINERS and words[index + 1].lower() not in _DETERMINERS
    ]
    if len(places) < 2:
        return None
    changed, (first, second) = list(words), places[:2]
    one, other = _bare(words[first]), _bare(words[second])
    changed[first] = words[first].replace(one, other, 1)
    changed[second] = words[second].replace(other, one, 1)
    return " ".join(changed)


def _oppose(_: str, words: Sequence[str]) -> str | None:
    """Replace the first word that has an antonym."""
    for index, word in enumerate(words):
        opposite = _OPPOSITES.get(_bare(word).lower())
        if opposite is not None:
            said = opposite.capitalize() if word[0].isupper() else opposite
            return " ".join([*words[:index], word.replace(_bare(word), said, 1), *words[index + 1 :]])
    return None


def _ask(text: str, words: Sequence[str]) -> str | None:
    """Turn a statement into a question by moving the auxiliary to the front."""
    place = _auxiliary(words)
    if place is None or not 0 < place <= 3 or text.endswith("?"):
        return None
    first = words[0].lower()
    if first in _QUESTIONS:
        return None
    subject = [first if first in _DETERMINERS or first == "there" else words[0], *words[1:place]]
    asked = " ".join([words[place].capitalize(), *subject, *words[place + 1 :]])
    return asked.rstrip(_BREAKS) + "?"


_WAYS: tuple[Callable[[str, Sequence[str]], str | None], ...] = (_negate, _exchange, _oppose, _ask)


def _auxiliary(words: Sequence[str]) -> int | None:
    """Return the index of the first auxiliary that is not the last word, or None."""
    return next((index for index, word in enumerate(words[:-1]) if word.lower() in _AUXILIARIES), None)


def _bare(word: str) -> str:
    return word.strip("\"'“”()" + _BREAKS) or word
