"""Labelled questions for the last stage of the encoders (recipes/questions.toml), from text that may be shipped.

    python recipes/questions.py DIR --teacher all-MiniLM-L6-v2.onnx -o questions.jsonl --texts general.txt

DIR has the folders ``questions`` and ``train``. A row has a ``query``, its ``positive`` passages, and its
``source``:

- a question with its answers, and another wording of it with the same answers led by the question: a question of
  its own body, if the teacher finds the two alike
- a heading with its section, and the heading as people ask it ("How do I ...?") with the section led by the titles
- a title of a paper with its abstract, so that search among these is kept

Threads and articles for development are left out (``is_held_out``), and large sources are drawn from. The texts
are of all sources, for the anchor: they are to keep their vectors.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import lzma
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from embedkit import Encoder

_SENTENCE = re.compile(r"(?<=[.?!])\s+")
_UNSEEN = "SMDMDataMiningOnStackExchange"  # a site that is held out whole
_MOST = {"medquad": 1200, "business-help": 3000, "powershell-docs": 1200}
_ALIKE = 0.55, 0.97  # cosines of two wordings of one question
_ABSTRACTS = 750  # of each source
_NO_TITLE = re.compile(r"(?:We|This|In|The|These|Our|It|There|Here|Background|Objectives?|Introduction)\b")
_SENTENCES = {
    "wikipedia": 5000,
    "headlines": 4000,
    "common-voice": 2500,
    "tatoeba": 2500,
    "nlvr2-captions": 2500,
    "wordnet-examples": 1500,
    "openstax": 2500,
    "pmc-captions": 800,
    "abstract-sentences": 2000,
    "wordnet-glosses": 1500,
    "stackexchange-titles": 2000,
    "nq-open": 1500,
}
_GENERAL = 3000, 40  # sentences of these, and texts of every file
_READ = 60_000, 4000  # lines that they are drawn from
_WORDS = 45, 90  # of a passage, by its text: people's answers are short, and long ones are slow to learn
_VERBS = re.compile(
    r"(?:access|add|adjust|allow|analyze|apply|approve|assign|attach|calculate|cancel|change|check|choose|clear|close"
    r"|combine|configure|connect|convert|copy|correct|create|customize|define|delete|design|disable|download|edit"
    r"|enable|enter|export|filter|find|fix|get|group|handle|import|include|insert|install|integrate|invite|keep|link"
    r"|make|manage|map|merge|migrate|modify|monitor|move|open|pay|post|prepare|prevent|print|process|protect|publish"
    r"|receive|reconcile|record|recover|register|remove|rename|replace|report|reset|resolve|restore|reverse|review"
    r"|run|save|schedule|search|select|send|set|share|show|sign|sort|specify|split|start|stop|submit|synchronize"
    r"|test|track|transfer|turn|uninstall|update|upgrade|use|verify|view|work|write)",
    re.IGNORECASE,
)
_ASKED = (
    "How do I {}?",
    "How can I {}?",
    "how to {}",
    "What is the way to {}?",
    "I want to {}",
    "Is there a way to {}?",
    "Is it possible to {}, and how?",
    "I need to {}, where do I find that?",
    "{}",
)


def draw(text: str, count: int) -> int:
    """Return a number below ``count`` that depends on the text alone."""
    return int(hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()[:8], 16) % count


def is_held_out(row: dict[str, Any]) -> bool:
    """Whether a row is for development: a quarter of the threads and one site, a sixth of the articles."""
    if row["kind"] == "section":
        return draw(row.get("title") or row["query"], 6) == 0
    return row["source"] == _UNSEEN or draw(row["query"], 4) == 0


def rows(data: Path, name: str) -> list[dict[str, Any]]:
    """Return the rows of a file of questions."""
    with lzma.open(data / f"questions/{name}.jsonl.xz", "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def lines(data: Path, name: str, count: int | None = None) -> list[str]:
    """Return the first texts of a file of training text, or all."""
    with lzma.open(data / f"train/{name}.txt.xz", "rt", encoding="utf-8") as file:
        return [line.strip() for line in islice(file, count)]


def short(passage: str) -> str:
    """Return the first words of a passage."""
    return " ".join(passage.split()[: _WORDS[draw(passage, 2)]])


def wordings(title: str, body: str) -> list[str]:
    """Return the questions of a body, other than its title."""
    plain = re.sub(r"\W+", " ", title.lower()).strip()
    found = [sentence.strip() for sentence in _SENTENCE.split(body) if sentence.strip().endswith("?")]
    fit = [text for text in found if 4 <= len(text.split()) <= 30]
    return [text for text in fit if re.sub(r"\W+", " ", text.lower()).strip() != plain]


def threads(data: Path, teacher: Encoder) -> Iterator[dict[str, Any]]:
    """Yield the questions of sites, in two wordings, with their answers."""
    answers, bodies = defaultdict[str, list[str]](list), dict[str, str]()
    for row in rows(data, "stackexchange"):
        if not is_held_out(row):
            if row["kind"] == "answer":
                answers[row["query"]].append(row["passage"])
            else:
                bodies[row["query"]] = row["passage"]
    for title, passages in answers.items():
        yield {"query": title, "positive": passages, "source": "title with answer"}
    for title, body in bodies.items():
        if title not in answers or draw(title, 2):
            yield {"query": title, "positive": [body], "source": "title with body"}
    pairs = [(title, text) for title in answers for text in wordings(title, bodies.get(title, ""))]
    for title, text in alike(teacher, pairs):
        led = [f"{title} {passage}" for passage in answers[title]]
        yield {"query": text, "positive": led, "source": "wording with answer"}


def alike(teacher: Encoder, pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the pairs of texts that the teacher finds alike, but not equal, the closest first."""
    first, second = (teacher.encode([pair[side] for pair in pairs], show_progress_bar=False) for side in (0, 1))
    cosines = (first * second).sum(axis=1)
    return [pairs[row] for row in np.argsort(-cosines) if _ALIKE[0] < cosines[row] < _ALIKE[1]]


def asked(heading: str) -> str | None:
    """Return a heading as people ask it, or None if it does not say what to do."""
    words = re.sub(r"^(?:how )?to ", "", heading.strip().rstrip("."), flags=re.IGNORECASE).split()
    if len(words) < 3 or not _VERBS.fullmatch(words[0]):
        return None
    plain = " ".join([words[0].lower(), *words[1:]])
    return _ASKED[draw(heading, len(_ASKED))].format(plain)


def sections(data: Path) -> Iterator[dict[str, Any]]:
    """Yield headings with their sections, and questions with their answers of the large sources."""
    for name in ("business-help", "powershell-docs", "opensource-guide"):
        found = [row for row in rows(data, name) if not is_held_out(row) and len(row["query"].split()) > 2]
        found.sort(key=lambda row: draw(row["query"] + row["passage"], 2**32))
        for row in found[: _MOST.get(name)]:
            query, passage, title = row["query"], row["passage"], row.get("title") or ""
            if question := asked(query):
                led = f"{title}. {query}. {passage}" if title != query else f"{query}. {passage}"
                yield {"query": question, "positive": [led], "source": "heading as asked"}
            else:
                yield {"query": query, "positive": [passage], "source": "heading with section"}
    found = sorted(rows(data, "medquad"), key=lambda row: draw(row["query"] + row["passage"], 2**32))
    for row in found[: _MOST["medquad"]]:
        yield {"query": row["query"], "positive": [row["passage"]], "source": "medical question with answer"}


def help_pages(data: Path) -> Iterator[dict[str, Any]]:
    """Yield paragraphs of a desktop's help whose first sentence says what to do, which is the query."""
    for text in lines(data, "desktop-help"):
        heading, *rest = _SENTENCE.split(text, maxsplit=1)
        question = asked(heading)
        if question and rest and len(heading.split()) <= 9 and len(rest[0].split()) >= 12:
            led = text if draw(text, 2) else rest[0]
            yield {"query": question, "positive": [led], "source": "help page"}


def abstracts(data: Path) -> Iterator[dict[str, Any]]:
    """Yield titles of papers with their abstracts, so that search among these is kept."""
    for name in ("conference-abstracts", "pmc-abstracts"):
        found = sorted(titles(data, name), key=lambda pair: draw(pair[0], 2**32))
        for title, text in found[:_ABSTRACTS]:
            yield {"query": title.rstrip("."), "positive": [text], "source": "title with abstract"}


def titles(data: Path, name: str) -> list[list[str]]:
    """Return the title and the abstract of those papers whose text is led by its title."""
    led = [_SENTENCE.split(text, maxsplit=1) for text in lines(data, name)]
    fit = [pair for pair in led if len(pair) == 2 and 5 <= len(pair[0].split()) <= 16]
    return [pair for pair in fit if pair[0][0].isupper() and not _NO_TITLE.match(pair[0])]


def general(data: Path) -> list[str]:
    """Return sentences, and some texts of every file."""
    short = [text for name, count in _SENTENCES.items() for text in sample(lines(data, name, _READ[0]), count)]
    names = [path.name.removesuffix(".txt.xz") for path in sorted((data / "train").glob("*.txt.xz"))]
    every = [text for name in names for text in sample(lines(data, name, _READ[1]), _GENERAL[1])]
    for texts in (short, every):
        Random(2).shuffle(texts)
    return short[: _GENERAL[0]] + every


def sample(texts: list[str], count: int) -> list[str]:
    """Draw texts."""
    return Random(1).sample(texts, min(count, len(texts)))


def main() -> None:
    """Write the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--teacher", required=True, help="bundle of all-MiniLM-L6-v2")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--texts", type=Path, help="file to write general texts to")
    options = parser.parse_args()
    teacher = Encoder.load(options.teacher, threads=1)
    data = options.data
    kinds = (threads(data, teacher), sections(data), help_pages(data), abstracts(data))
    found = [{**row, "positive": [short(text) for text in row["positive"]]} for kind in kinds for row in kind]
    with options.output.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in found)
    if options.texts:
        options.texts.write_text("\n".join(general(data)) + "\n", encoding="utf-8")
    counts = Counter(row["source"] for row in found)
    print(", ".join(f"{count:,} {source}" for source, count in counts.items()))


if __name__ == "__main__":
    main()
