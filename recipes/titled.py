"""Text for passages below their titles, with which recipes/titled.toml trains.

    python recipes/titled.py DATA --finder tiny-long.onnx --without DATA/rerank/*.jsonl -o OUT

DATA has the folders ``questions`` and ``train``. The script writes:

- ``OUT/titled.txt``: answers and sections below their titles, and questions and titles above the two passages
  nearest to each, cut to 40, 70, 110 or 170 words
- ``OUT/general.txt``: texts of many kinds, most of them sentences

Texts for development and of the files after ``--without`` are left out, as in recipes/asked.py.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from random import Random

from asked import write
from sources import (
    are_kept,
    first_words,
    is_for_development,
    kinds,
    question_rows,
    reserved,
    shuffled,
    threads,
    without,
)

from embedkit import Encoder
from embedkit.errors import EmbedkitError
from embedkit.serving.retrieval import ExactIndex

_ASKING = {
    "stackoverflow-titles": 8000,
    "stackexchange-titles": 8000,
    "query-wellformedness": 6000,
    "nq-open": 4000,
}
_PASSAGES = {
    "software-docs-bsd-mit-apache": 20_000,
    "desktop-help": 13_000,
    "digitalgov": 19_000,
    "python-docs": 13_000,
    "owasp-cheatsheets": 3300,
    "openstax-passages": 20_000,
    "medquad-passages": 5000,
    "stackexchange-posts": 9300,
}
_SECTIONS = {"medquad": 5000, "business-help": 7838, "powershell-docs": 2880, "opensource-guide": 154}
_SHORT = {"tatoeba": 25_000, "common-voice": 20_000, "headlines": 12_000, "wordnet-examples": 11_000}
_NEAREST = 2
_LENGTHS = 40, 70, 110, 170  # in words
_GENERAL = 9  # times as many texts as are held in the last stage


def stacked(data: Path) -> Iterator[tuple[str, str]]:
    """Yield titles of threads with each answer and the question itself."""
    for title, thread in threads(data).items():
        yield from ((title, text) for text in [thread.body, *thread.answers])


def sections(data: Path) -> Iterator[tuple[str, str]]:
    """Yield headings and questions with what stands below them."""
    for name, count in _SECTIONS.items():
        rows = question_rows(data, name)
        Random(name).shuffle(rows)
        for row in rows[:count]:
            yield row["query"], row["passage"]


def near(data: Path, finder: Encoder) -> Iterator[tuple[str, str]]:
    """Yield questions and titles with the passages nearest to them."""
    asked = [text for name, count in _ASKING.items() for text in shuffled(data, name)[:count]]
    asked = [text for text in asked if not is_for_development(text)]
    texts = [text for name, count in _PASSAGES.items() for text in shuffled(data, name)[:count]]
    texts = [text for text in texts if len(text.split()) > 12]
    vectors, queries = (finder.encode(each, show_progress_bar=False) for each in (texts, asked))
    _, rows = ExactIndex(vectors).search(queries, _NEAREST)
    for title, found in zip(asked, rows, strict=True):
        yield from ((title, texts[row]) for row in found)


def main() -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--finder", default="tiny", help="bundle that finds passages near a title: %(default)s")
    parser.add_argument("--without", type=Path, nargs="+", default=[], help="re-ranking sets that are left out")
    parser.add_argument("--threads", type=int)
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    data, generator = options.data, Random(0)
    finder = Encoder.load(options.finder, threads=options.threads)
    left_out = reserved(data, options.without)
    titled = list[str]()
    for title, text in chain(stacked(data), sections(data), near(data, finder)):
        if text and are_kept([title, text], left_out):
            titled.append(first_words(f"{title} {text}", generator.choice(_LENGTHS)))
    general = [first_words(text, 110) for text in kinds(data, left_out, _GENERAL)]
    for name, count in _SHORT.items():
        general += without(shuffled(data, name)[:count], left_out)
    for name, texts in {"titled": titled, "general": general}.items():
        found = list(dict.fromkeys(texts))
        generator.shuffle(found)
        write(options.output / f"{name}.txt", found)
        print(f"{name}: {len(found):,} texts", flush=True)


if __name__ == "__main__":
    try:
        main()
    except EmbedkitError as error:
        raise SystemExit(f"error: {error}") from None
