"""Queries and passages for the last stage of reranker-tiny: the text of recipes/asked.py among others.

    python recipes/candidates.py DATA --asked ASKED --without DATA/rerank/*.jsonl -o OUT

DATA has the folders ``questions`` and ``train``, and ASKED is the folder that asked.py wrote. The script writes a
file for each source to ``OUT/queries`` and ``OUT/passages``. Texts for development and evaluation are left out, as
by asked.py.
"""

from __future__ import annotations

import argparse
from itertools import islice
from pathlib import Path
from random import Random

from asked import write
from sources import (
    first_words,
    is_for_development,
    json_lines,
    question_rows,
    reserved,
    shuffled,
    some,
    starts,
    without,
)

_ASKED = {"papers": 1500, "topics": 700, "facts": 1200}
_QUERIES = {
    "stackexchange-titles": 1300,
    "stackoverflow-titles": 500,
    "medquad-questions": 300,
    "query-wellformedness": 400,
    "openstax-questions": 400,
    "nq-open": 300,
    "abstract-sentences": 300,
}
_HEADINGS = 500  # queries that are headings of business-help
_HELP = {"business-help": 4000, "powershell-docs": 1500}
_PASSAGES = {
    "stackexchange-posts": 4000,
    "desktop-help": 4000,
    "digitalgov": 3000,
    "software-docs-bsd-mit-apache": 4000,
    "medquad-passages": 4000,
    "openstax-passages": 5000,
    "conference-abstracts": 3000,
    "arxiv-abstracts": 2500,
    "pmc-abstracts": 1500,
    "pmc-passages": 5000,
    "wikipedia": 15_000,
}
_READ = {"arxiv-abstracts": 120, "conference-abstracts": 120, "pmc-abstracts": 120}  # words
_READ |= dict.fromkeys(("medquad-passages", "openstax-passages", "pmc-passages", "wikipedia"), 80)
_READ_OTHERS = 70


def asked_queries(asked: Path, development: set[str], generator: Random) -> dict[str, list[str]]:
    """Return the queries of asked.py: all wordings of titles, and some of each other kind."""
    kinds = {path.stem: [row["query"] for row in json_lines(path)] for path in (asked / "parts").glob("*.jsonl")}
    wordings = [text for name in ("titles", "bodies", "posts") for text in kinds[name]]
    others = {name: [text for text in kinds[name] if text not in development] for name in _ASKED}
    return {"asked": wordings} | {name: some(texts, _ASKED[name], generator) for name, texts in others.items()}


def queries(data: Path, left_out: set[str], generator: Random) -> dict[str, list[str]]:
    """Return queries of training text, at most 40 words long, and headings of help pages."""
    found = dict[str, list[str]]()
    for name, count in _QUERIES.items():
        texts = islice(without(shuffled(data, name), left_out), 2 * count)
        fit = (text for text in texts if len(text.split()) <= 40 and not is_for_development(text))
        found[name] = [*islice(fit, count)]
    headings = [row["query"] for row in question_rows(data, "business-help") if len(row["query"].split()) > 3]
    return {**found, "business-help": some(headings, _HEADINGS, generator)}


def passages(data: Path, left_out: set[str], generator: Random) -> dict[str, list[str]]:
    """Return passages of training text, and those of help pages below their titles and headings."""
    found = dict[str, list[str]]()
    for name, count in _HELP.items():
        drawn = some(question_rows(data, name), count, generator)
        parts = (dict.fromkeys((row["title"], row["query"], row["passage"])) for row in drawn)
        found[name] = [first_words(" ".join(part), _READ_OTHERS) for part in parts]
    for name, count in _PASSAGES.items():
        words = _READ.get(name, _READ_OTHERS)
        texts = islice(without(shuffled(data, name), left_out), count)
        found[name] = [first_words(text, words) for text in texts if len(text.split()) > 6]
    return found


def main() -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--asked", type=Path, required=True, help="folder that asked.py wrote")
    parser.add_argument("--without", type=Path, nargs="+", default=[], help="re-ranking sets that are left out")
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    data, asked, generator = options.data, options.asked, Random(0)
    left_out, facts = reserved(data, options.without), json_lines(asked / "facts-dev.jsonl")
    sentences = {text for row in facts for text in (*row["positive"], *row["negative"])}
    known = set[str]().union(*map(starts, sentences))
    texts = [*asked_queries(asked, {row["query"] for row in facts}, generator).items()]
    files = {f"queries/{name}": each for name, each in [*texts, *queries(data, left_out, generator).items()]}
    answers = (asked / "passages.txt").read_text(encoding="utf-8").splitlines()
    files["passages/asked"] = [text for text in answers if text not in sentences]
    found = passages(data, left_out | known, generator)
    files |= {f"passages/{name}": each for name, each in found.items()}
    for folder in ("queries", "passages"):
        (options.output / folder).mkdir(parents=True, exist_ok=True)
    for name, each in files.items():
        write(options.output / f"{name}.txt", dict.fromkeys(each))
        print(f"{len(each):,} {name}", flush=True)


if __name__ == "__main__":
    main()
