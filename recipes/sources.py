"""The text that recipes/asked.py reads, and the part of it that is for development."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import lzma
import re
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

from wordings import span

from embedkit.adaptation.teachers import random_texts
from embedkit.runtime.bundle import read_bundle
from embedkit.runtime.find import find_model

_SENTENCE = re.compile(r"(?<=[.?!])\s+")
_UNSEEN = "SMDMDataMiningOnStackExchange", "Elasticsearch-Coffee-Search-Engine-JS"  # sites held out whole
ABSTRACTS = "arxiv-abstracts", "conference-abstracts", "pmc-abstracts"
_LAST = 1200  # abstracts of each file that are for development
_START = 80  # characters of a text or sentence that are compared
_HELD = {
    "wikipedia": 2050,
    "abstract-sentences": 1020,
    "pmc-sentences": 1020,
    "openstax": 1000,
    "headlines": 960,
    "opentriviaqa": 920,
    "pmc-passages": 900,
    "nq-open": 890,
    "conference-abstracts": 700,
    "openstax-passages": 550,
    "arxiv-abstracts": 520,
    "nlvr2-captions": 460,
    "pmc-abstracts": 410,
    "medquad-passages": 300,
    "conference-titles": 290,
    "pmc-titles": 240,
    "common-voice": 220,
    "tatoeba": 210,
    "factbook": 180,
    "wordnet-glosses": 100,
    "wordnet-examples": 60,
    "schema-guided-dialogue": 50,
    "openstax-glossary": 40,
    "openstax-captions": 40,
}
_SPANS = {"desktop-help": 100, "digitalgov": 100, "owasp-cheatsheets": 100, "software-docs-bsd-mit-apache": 100}
_RANDOM = 480  # texts of random words


@dataclasses.dataclass
class Thread:
    """The body of a question, and its answers."""

    body: str = ""
    answers: list[str] = dataclasses.field(default_factory=list)


def json_lines(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file of JSON lines."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def some(rows: list[Any], count: int, generator: Random) -> list[Any]:
    """Return rows that are drawn, all if they are few."""
    return generator.sample(rows, min(count, len(rows)))


def draw(text: str, count: int) -> int:
    """Return a number below ``count`` that depends on the text alone."""
    return int(hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()[:8], 16) % count


def sentences(text: str) -> list[str]:
    """Return the sentences of a text."""
    return [sentence.strip() for sentence in _SENTENCE.split(text)]


def questions_in(texts: Iterable[str]) -> Iterator[str]:
    """Yield the sentences of texts that are questions."""
    found = (part for text in texts for part in sentences(text))
    return (part for part in found if part.endswith("?") and 7 <= len(part.split()) <= 30)


def first_words(text: str, count: int = 60) -> str:
    """Return the first words of a text."""
    return " ".join(text.split()[:count])


def plain(text: str) -> str:
    """Return the words of a text in lower case."""
    return re.sub(r"\W+", " ", text.lower()).strip()


def starts(text: str) -> set[str]:
    """Return the start of a text, and of each of its sentences of four words or more."""
    return {plain(text)[:_START], *(key[:_START] for key in map(plain, sentences(text)) if key.count(" ") > 2)}


def lines(data: Path, name: str) -> list[str]:
    """Return the texts of a file of training text."""
    with lzma.open(data / f"train/{name}.txt.xz", "rt", encoding="utf-8") as file:
        return [" ".join(line.split()) for line in file]


def shuffled(data: Path, name: str) -> list[str]:
    """Return the texts of a file of training text in an order of their own."""
    found = lines(data, name)
    Random(name).shuffle(found)
    return found


def without(texts: Iterable[str], left_out: AbstractSet[str]) -> Iterator[str]:
    """Yield the texts of which neither start nor sentence is left out."""
    return (text for text in texts if are_kept([text], left_out))


def are_kept(texts: Iterable[str], left_out: AbstractSet[str]) -> bool:
    """Whether no start or sentence of any of the texts is left out."""
    return all(left_out.isdisjoint(starts(text)) for text in texts)


def threads(data: Path) -> dict[str, Thread]:
    """Return the threads of Stack Exchange that are trained on, by their titles."""
    return _threads(row for row in question_rows(data) if not _is_held_out(row))


def unseen_sites(data: Path) -> dict[str, dict[str, Thread]]:
    """Return the threads of the sites that are held out, by site and title."""
    rows = question_rows(data)
    return {site: _threads(row for row in rows if row["source"] == site) for site in _UNSEEN}


def last_abstracts(data: Path, name: str) -> list[str]:
    """Return the abstracts of a file that are for development."""
    return lines(data, name)[-_LAST:]


def reserved(data: Path, files: Iterable[Path]) -> set[str]:
    """Return the starts of the texts and sentences that are for development, and of those of re-ranking sets."""
    texts = [row[name] for row in question_rows(data) if _is_held_out(row) for name in ("query", "passage")]
    for name in ABSTRACTS:
        texts += last_abstracts(data, name)
    for file in files:
        for row in json_lines(file):
            texts += [row["query"], *row["positive"], *row["negative"]]
    return set[str]().union(*map(starts, texts))


def is_for_development(fact: str) -> bool:
    """Whether a question of fact is for development: one of three."""
    return draw(fact, 3) == 0


def held(data: Path, left_out: set[str]) -> list[str]:
    """Return texts of many kinds, spans of some, and random words."""
    generator, found = Random(0), list(kinds(data, left_out))
    for name, count in _SPANS.items():
        texts = islice(without(shuffled(data, name), left_out), count)
        found += (" ".join(span(text, 4, 16, generator)) for text in texts)
    found += islice(random_texts(read_bundle(find_model("tiny")).tokenizer_json), _RANDOM)
    found = list(dict.fromkeys(first_words(text, 110) for text in found))
    generator.shuffle(found)
    return found


def kinds(data: Path, left_out: set[str], times: int = 1) -> Iterator[str]:
    """Yield texts of many kinds, ``times`` as many of each as ``held`` has, or all that there are."""
    for name, count in _HELD.items():
        texts = without(reversed(shuffled(data, name)), left_out)  # from the end: others than those of facts
        yield from islice((text for text in texts if not is_for_development(text)), times * count)


def _threads(rows: Iterable[Mapping[str, Any]]) -> dict[str, Thread]:
    found = dict[str, Thread]()
    for row in rows:
        thread = found.setdefault(row["query"], Thread())
        if row["kind"] == "answer":
            thread.answers.append(row["passage"])
        else:
            thread.body = row["passage"]
    return found


def question_rows(data: Path, name: str = "stackexchange") -> list[dict[str, Any]]:
    """Return the rows of a file of questions: ``query``, ``passage`` and more."""
    with lzma.open(data / f"questions/{name}.jsonl.xz", "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def _is_held_out(row: Mapping[str, Any]) -> bool:
    """Whether a row is of an unseen site, or of a quarter of the threads of the others."""
    return row["source"] in _UNSEEN or draw(row["query"], 4) == 0
