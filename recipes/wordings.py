"""Other wordings of a question or a claim, by patterns, left out words and synonyms."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from random import Random

_HOW = re.compile(
    r"(?:how (?:do|can|should|could|would) (?:i|you|we|one)|how to|(?:can|could|may) (?:i|you|we|one)"
    r"|is it possible to|is there (?:a|any|an easy) way to|(?:best|any) way to|to)\s+(\S+\s.+)",
    re.IGNORECASE,
)
_WHAT = re.compile(r"what(?:'s| is| are) (?:an? |the )?(.+)", re.IGNORECASE)
_TASKS = (
    "How do I {}?",
    "How can I {}?",
    "how to {}",
    "I want to {}",
    "I would like to {}.",
    "I need to {}, how?",
    "Is it possible to {}?",
    "Is there a way to {}?",
    "is there any way I could {}",
    "Can you {}?",
    "can i {}",
    "ways to {}",
    "What's the best way to {}?",
    "What steps do I take to {}",
    "Does anyone know how to {}?",
    "Please help me {}.",
    "I'm trying to {}",
    "I am unable to {}",
    "trouble: I cannot {}",
    "Explain how to {}",
    "Any easy method to {}?",
    "tell me how I can {}",
    "What should I do to {}?",
    "{}",
)
_DEFINITIONS = (
    "What is {}?",
    "what does {} mean",
    "definition of {}",
    "Explain {}",
    "I don't know what {} is",
    "tell me about {}",
    "meaning of {}?",
    "Can someone explain {} to me",
    "{}",
)
_OTHERS = (
    "{}",
    "I have a question: {}",
    "Does anybody know {}",
    "hi, {}",
    "{} Any help appreciated.",
    "I wonder, {}",
    "{} please",
    "not sure: {}",
)
_COMMON = (
    "a an and any are as at be by can do does for from how i in is it its me my of on or our some that the there"
    " this to we what when where which why with you your"
)
_FEW = frozenset(re.findall(r"\w+", _COMMON))


def wording(title: str, generator: Random) -> str:
    """Return a title in a pattern of its kind, often with fewer words or in lower case."""
    kind = next((kind for kind in (_HOW, _WHAT) if kind.fullmatch(title)), None)
    if kind is None:
        bare = title.rstrip("?.! ")
        opened = bare if bare[1:2].isupper() else bare[:1].lower() + bare[1:]
        text = generator.choice(_OTHERS).format(generator.choice((title, opened)))
    else:
        bare = kind.sub(r"\1", title).rstrip("?.! ")
        text = generator.choice(_TASKS if kind is _HOW else _DEFINITIONS).format(bare)
    text = " ".join(_shortened(text.split(), generator))
    text = text.lower() if generator.random() < 0.4 else text
    return text.rstrip("?.") if generator.random() < 0.3 else text


def _shortened(words: list[str], generator: Random) -> list[str]:
    """Leave out most common words in a quarter of the texts, and any one word in a fifth."""
    way = generator.random()
    if len(words) > 5 and way < 0.25:
        return [word for word in words if word.lower().strip("?.,") not in _FEW or generator.random() < 0.2]
    if len(words) > 5 and way < 0.45:
        del words[generator.randrange(len(words))]
    return words


def claim(sentence: str, synonyms: Mapping[str, list[str]], generator: Random) -> str:
    """Return some consecutive words of a sentence, a few left out or replaced by synonyms."""
    words = span(sentence.rstrip("."), 8, 14, generator)
    kept = [word for word in words if generator.random() > (0.3 if word.lower() in _FEW else 0.12)]
    text = " ".join(kept or words)
    return replace(replace(text, synonyms, generator), synonyms, generator)


def span(text: str, least: int, most: int, generator: Random) -> list[str]:
    """Return consecutive words of a text, as many as are drawn."""
    words, count = text.split(), generator.randint(least, most)
    start = generator.randrange(max(len(words) - count, 0) + 1)
    return words[start : start + count]


def synonyms_of(glosses: Iterable[str]) -> dict[str, list[str]]:
    """Return the words that share a definition with a word, from lines of words and their definition."""
    found = dict[str, set[str]]()
    for gloss in glosses:
        words = gloss.partition(":")[0].split(", ")
        if 2 <= len(words) <= 6 and all(re.fullmatch("[a-z]{3,}", word) for word in words):
            for word in words:
                found.setdefault(word, set()).update({*words} - {word})
    return {word: sorted(others) for word, others in found.items() if word not in _FEW}


def replace(text: str, synonyms: Mapping[str, list[str]], generator: Random) -> str:
    """Return a text with one or two of its words replaced by synonyms, if it has any."""
    words = text.split()
    places = [place for place, word in enumerate(words) if word.lower() in synonyms]
    generator.shuffle(places)
    for place in places[: generator.choice((1, 1, 2))]:
        words[place] = generator.choice(synonyms[words[place].lower()])
    return " ".join(words)
