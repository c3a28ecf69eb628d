"""Text for the last stage of the encoders (recipes/last_stage.py), from sources that may be shipped.

    python recipes/questions.py DIR --teacher all-MiniLM-L6-v2.onnx -o OUT

DIR has the folders ``questions`` and ``train``. Written are:

- ``OUT/pairs.jsonl``: a ``query``, its ``positive`` passages and their ``source``: titles of questions with
  answers and bodies, headings with sections, sentences of a question's body with its title and answers (other
  wordings of it, by the teacher), titles of papers with abstracts, and sentences of abstracts with the rest
- ``OUT/lists.npz``: questions, and of each the places of the texts that the teacher finds nearest
- ``OUT/listed.txt``: these texts, the questions first
- ``OUT/texts.txt``: texts of all kinds, which are to keep their vectors

Threads and articles for development are left out (``is_held_out``).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import lzma
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt

from embedkit import Encoder

_SENTENCE = re.compile(r"(?<=[.?!])\s+")
_NO_TITLE = re.compile(r"(?:We|This|In|The|These|Our|It|There|Here|Background|Objectives?|Introduction)\b")
_UNSEEN = "SMDMDataMiningOnStackExchange"  # a site that is held out whole
_ALIKE = 0.45, 0.92  # cosines of a question's title and of a sentence of its body that is another wording of it
_WORDINGS = 3  # of a question
_MOST = 2500  # pairs of a source
_ABSTRACTS = 1800  # of each file
_WORDS = 60  # of a passage
_NEAREST, _DEPTH = 12, 48  # of listed texts; of those further away, every third
_QUESTIONS = {
    "stackexchange-titles": 9000,
    "query-wellformedness": 9000,
    "stackoverflow-titles": 6000,
    "tldr": 3000,
    "nq-open": 2500,
    "opentriviaqa": 2000,
    "medquad-questions": 1500,
    "clinc150": 1500,
    "openstax-questions": 1000,
    "wikitablequestions": 1000,
}
_PASSAGES = {
    "stackexchange-posts": 5000,
    "desktop-help": 4500,
    "wikipedia": 4000,
    "abstract-sentences": 2000,
    "pmc-sentences": 2000,
    "software-docs-bsd-mit-apache": 2000,
    "digitalgov": 1500,
    "python-docs": 1500,
    "medquad-passages": 1500,
    "openstax-passages": 1500,
    "pmc-passages": 1200,
    "conference-abstracts": 1000,
}
_TEXTS = {
    "wikipedia": 2500,
    "headlines": 1500,
    "nlvr2-captions": 1500,
    "nq-open": 1200,
    "common-voice": 800,
    "tatoeba": 800,
    "openstax": 800,
    "opentriviaqa": 800,
    "abstract-sentences": 700,
    "pmc-sentences": 700,
    "pmc-passages": 600,
    "openstax-passages": 500,
    "query-wellformedness": 500,
    "stackexchange-titles": 400,
    "wordnet-examples": 400,
    "conference-abstracts": 300,
    "craft-oastm-passages": 300,
    "factbook": 300,
    "medquad-passages": 300,
    "pmc-captions": 300,
    "wordnet-glosses": 300,
}


def draw(text: str, count: int) -> int:
    """Return a number below ``count`` that depends on the text alone."""
    return int(hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()[:8], 16) % count


def is_held_out(row: Mapping[str, Any]) -> bool:
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


def sentences(text: str) -> list[str]:
    """Return the sentences of a text."""
    return [sentence.strip() for sentence in _SENTENCE.split(text)]


def first_words(text: str) -> str:
    """Return the words of a text that are read."""
    return " ".join(text.split()[:_WORDS])


def labelled(data: Path) -> Iterator[dict[str, Any]]:
    """Yield the pairs of all files, as they are."""
    for name in ("stackexchange", "medquad", "business-help", "powershell-docs", "opensource-guide"):
        for row in rows(data, name):
            if not is_held_out(row):
                source = f"{name}, {row['kind']}"
                yield {"query": row["query"], "positive": [row["passage"]], "source": source}


def wordings(title: str, body: str) -> list[str]:
    """Return the sentences of a body that may ask the question of its title in other words."""
    plain = _plain(title)
    return [text for text in sentences(body) if 5 <= len(text.split()) <= 30 and plain not in _plain(text)]


def _plain(text: str) -> str:
    return re.sub(r"\W+", " ", text.lower()).strip()


def alike(teacher: Encoder, pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the pairs of texts that the teacher finds alike, but not equal, the closest first."""
    first, second = (teacher.encode([pair[side] for pair in pairs], show_progress_bar=False) for side in (0, 1))
    cosines = (first * second).sum(axis=1)
    return [pairs[row] for row in np.argsort(-cosines) if _ALIKE[0] < cosines[row] < _ALIKE[1]]


def reworded(data: Path, teacher: Encoder) -> Iterator[dict[str, Any]]:
    """Yield sentences of the bodies of questions with the title and answers, as a help centre has them."""
    answers, bodies = defaultdict[str, list[str]](list), dict[str, str]()
    for row in rows(data, "stackexchange"):
        if not is_held_out(row):
            if row["kind"] == "answer":
                answers[row["query"]].append(row["passage"])
            else:
                bodies[row["query"]] = row["passage"]
    found = alike(teacher, [(title, text) for title, body in bodies.items() for text in wordings(title, body)])
    taken = Counter[str]()
    for title, text in found:
        taken[title] += 1
        if taken[title] <= _WORDINGS:
            led = [f"{title} {answer}" for answer in answers[title]] or [
                f"{title} {bodies[title].replace(text, '')}"
            ]
            yield {"query": text, "positive": led, "source": "sentences of questions"}


def papers(data: Path) -> Iterator[dict[str, Any]]:
    """Yield titles with abstracts, and sentences with the rest of their abstract: search in these is kept."""
    for name in ("conference-abstracts", "pmc-abstracts"):
        for title, text in titles(data, name)[:_ABSTRACTS]:
            yield {"query": title.rstrip("."), "positive": [text], "source": "titles of papers"}
        for text in lines(data, name, _ABSTRACTS):
            parts = sentences(text)
            if 5 < len(parts) < 16:
                claim = parts.pop(1 + draw(text, len(parts) - 1))
                if 10 <= len(claim.split()) <= 40:
                    yield {"query": claim, "positive": [" ".join(parts)], "source": "sentences of abstracts"}


def titles(data: Path, name: str) -> list[list[str]]:
    """Return the title and the abstract of those papers whose text is led by its title."""
    led = [_SENTENCE.split(text, maxsplit=1) for text in lines(data, name)]
    fit = [pair for pair in led if len(pair) == 2 and 5 <= len(pair[0].split()) <= 16]
    return [pair for pair in fit if pair[0][0].isupper() and not _NO_TITLE.match(pair[0])]


def most(found: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield some pairs of each source, with the words of passages that are read."""
    drawn = list(found)
    Random(1).shuffle(drawn)
    taken = Counter[str]()
    for row in drawn:
        taken[row["source"]] += 1
        if taken[row["source"]] <= _MOST:
            yield {**row, "positive": [first_words(text) for text in row["positive"]]}


def texts_of(data: Path, counts: Mapping[str, int]) -> list[str]:
    """Return texts of the files of training text, drawn at random."""
    drawn = [(lines(data, name, 60_000), count) for name, count in counts.items()]
    chosen = [text for found, count in drawn for text in Random(2).sample(found, min(count, len(found)))]
    return list(dict.fromkeys(map(first_words, chosen)))


def lists(data: Path, teacher: Encoder) -> tuple[list[str], npt.NDArray[np.int32]]:
    """Return texts, questions first, and for each question the places of near texts: (Q, 24)."""
    held_out = {_plain(row["query"]) for row in rows(data, "stackexchange") if is_held_out(row)}
    questions = [text for text in texts_of(data, _QUESTIONS) if _plain(text) not in held_out]
    threads = [f"{row['query']} {row['passage']}" for row in rows(data, "stackexchange") if not is_held_out(row)]
    texts = list(dict.fromkeys([*questions, *texts_of(data, _PASSAGES), *map(first_words, threads)]))
    vectors = teacher.encode(texts, show_progress_bar=False)
    near = []
    for start in range(0, len(questions), 256):
        cosines = vectors[start : min(start + 256, len(questions))] @ vectors.T
        np.fill_diagonal(cosines[:, start:], -1)
        nearest = np.argpartition(-cosines, _DEPTH)[:, :_DEPTH]
        order = np.argsort(-np.take_along_axis(cosines, nearest, 1))
        nearest = np.take_along_axis(nearest, order, 1)
        near.append(np.hstack([nearest[:, :_NEAREST], nearest[:, _NEAREST::3]]))
    return texts, np.vstack(near).astype(np.int32)


def main() -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--teacher", required=True, help="bundle of all-MiniLM-L6-v2")
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    data, output = options.data, options.output
    teacher = Encoder.load(options.teacher, threads=1)
    output.mkdir(parents=True, exist_ok=True)
    found = [row for part in (labelled(data), reworded(data, teacher), papers(data)) for row in part]
    pairs = list(most(iter(found)))
    with (output / "pairs.jsonl").open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in pairs)
    (output / "texts.txt").write_text("\n".join(texts_of(data, _TEXTS)) + "\n", encoding="utf-8")
    listed, near = lists(data, teacher)
    (output / "listed.txt").write_text("\n".join(listed) + "\n", encoding="utf-8")
    np.savez(output / "lists.npz", near=near)
    counts = Counter(row["source"] for row in pairs)
    print(", ".join(f"{count:,} {source}" for source, count in counts.items()))


if __name__ == "__main__":
    main()
