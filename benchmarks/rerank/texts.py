"""Queries and passages for a re-ranker's training, and development sets of other text.

    python benchmarks/rerank/texts.py --data DIR -o TEXT

Reads the training text under DIR/train, never evaluation sets. Writes ``TEXT/queries/*.txt`` and
``TEXT/passages/*.txt``, one text a line, for recipes/reranker-pairs.toml, and ``TEXT/development/retrieval/*``,
retrieval sets for ``run.py --data TEXT/development --search encoder --candidates 50 --results development``.

Development passages are whole files that training does not read, or the ends of files, which are in document
order. Their queries are titles, or sentences that are taken out of the passage, as claims are; each has one
relevant passage. Queries for training that occur in a development passage are dropped, which takes some minutes.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from embedkit.records import read_lines

PASSAGES = {
    "openstax-passages": 25_000,
    "medquad-passages": 18_000,
    "pmc-passages": 40_000,
    "pmc-abstracts": 4_000,
    "conference-abstracts": 12_000,
    "craft-oastm-passages": 7_000,
    "stackexchange-posts": 7_000,
    "software-docs-bsd-mit-apache": 8_000,
    "python-docs": 4_000,
    "owasp-cheatsheets": 1_500,
    "d2l-book": 1_500,
    "fomc-minutes": 3_000,
    "digitalgov": 5_000,
    "factbook": 2_500,
    "foldoc": 5_000,
    "wikipedia": 16_000,
}
"""Passages of each file, at random."""
QUERIES = {
    "nq-open": 7_200,
    "query-wellformedness": 5_000,
    "openstax-questions": 4_300,
    "medquad-questions": 4_000,
    "opentriviaqa": 4_000,
    "stackexchange-titles": 4_000,
    "stackoverflow-titles": 2_500,
    "conference-titles": 3_000,
    "pmc-titles": 3_000,
    "abstract-sentences": 9_000,
    "pmc-sentences": 7_000,
    "wikipedia": 3_000,
    "openstax-glossary": 2_000,
    "icd10cm-terms": 1_000,
}
"""Queries of each file, at random; of a glossary, the terms."""
HELD_OUT = {"pmc-abstracts": 900, "stackexchange-posts": 2_500}
"""Passages at the end of a file that are for development, as all of arxiv-abstracts and openstax-biology-2018."""
MOST_WORDS = 40  # of a query

_SENTENCE = re.compile(r"(?<=[.?!]) +(?=[A-Z])")
Item = tuple[str, str, str]
"""Kind, query and relevant passage."""


def main() -> None:
    """Write training text and development set."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, type=Path, help="folder that contains train/")
    parser.add_argument("-o", "--output", required=True, type=Path)
    arguments = parser.parse_args()
    files = Files(arguments.data / "train")
    sets = development(files)
    held_out = "\n".join(text for items, others in sets for text in [*(item[2] for item in items), *others])
    held_out += "\n".join(query for items, _ in sets for _, query, _ in items)
    write(arguments.output / "passages", {name: files.sample(name, count) for name, count in PASSAGES.items()})
    queries = {name: [text for text in asked(files, name) if text not in held_out] for name in QUERIES}
    write(arguments.output / "queries", queries)
    for items, others in sets:
        for kind in dict.fromkeys(kind for kind, _, _ in items):
            write_retrieval(arguments.output / "development" / "retrieval" / kind, kind, items, others)


class Files:
    """The files of a folder, without their ends that are held out."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def all(self, name: str) -> list[str]:
        """Return every text of a file."""
        return [line for _, line in read_lines(self._folder / f"{name}.txt.xz")]

    def end(self, name: str) -> list[str]:
        """Return the texts that are held out."""
        return self.all(name)[-HELD_OUT[name] :]

    def sample(self, name: str, count: int) -> list[str]:
        """Return at most ``count`` texts that are not held out, at random."""
        texts = self.all(name)
        texts = texts[: len(texts) - HELD_OUT.get(name, 0)]
        return [texts[row] for row in np.random.default_rng(0).permutation(len(texts))[:count]]


def asked(files: Files, name: str) -> Iterator[str]:
    """Yield the queries of a file."""
    for text in files.sample(name, QUERIES[name]):
        query = text.split(": ")[0] if name == "openstax-glossary" else text
        if len(query.split()) <= MOST_WORDS:
            yield query


def development(files: Files) -> list[tuple[list[Item], list[str]]]:
    """Return the queries of each search, and its other passages."""
    searches = []
    for label, texts, titles, counts in (
        ("arxiv", files.all("arxiv-abstracts"), files.all("arxiv-titles"), (150, 200)),
        ("medicine", files.end("pmc-abstracts"), files.all("pmc-titles"), (100, 250)),
        ("support", files.end("stackexchange-posts"), files.all("stackexchange-titles"), (150, 0)),
        ("textbook", files.all("openstax-biology-2018"), [], (0, 100)),
    ):
        generator = np.random.default_rng(1)
        split = [untitled(text, set(titles)) for text in dict.fromkeys(texts)]
        generator.shuffle(split)
        items: list[Item] = []
        others: list[str] = []
        for title, text in map(tuple, split):
            claim = taken_out(text, generator)
            if title and sum(kind.endswith("titles") for kind, _, _ in items) < counts[0]:
                items.append((f"{label}-titles", title, text))
            elif claim and sum(kind.endswith("claims") for kind, _, _ in items) < counts[1]:
                items.append((f"{label}-claims", *claim))
            else:
                others.append(text)
        searches.append((items, others))
    return searches


def untitled(text: str, titles: set[str]) -> tuple[str, str]:
    """Return the title that a text begins with, or "", and the rest."""
    for end in re.finditer(r"[.?!] ", text[:300]):
        for title in (text[: end.start()], text[: end.start() + 1]):
            if title in titles:
                return title, text[end.end() :]
    return "", text


def taken_out(text: str, generator: np.random.Generator) -> tuple[str, str] | None:
    """Return a sentence of a text and the text without it; None if it has too few."""
    sentences = _SENTENCE.split(text)
    fitting = [place for place, one in enumerate(sentences) if place and 8 <= len(one.split()) <= 30]
    if len(sentences) < 5 or not fitting:
        return None
    place = int(generator.choice(fitting))
    return sentences[place], " ".join(sentences[:place] + sentences[place + 1 :])


def write_retrieval(folder: Path, kind: str, items: Sequence[Item], others: Sequence[str]) -> None:
    """Write the queries of a kind, and all passages of the search, in BEIR's form."""
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    passages = [passage for _, _, passage in items] + list(others)
    rows = [row for row, (own, _, _) in enumerate(items) if own == kind]
    documents = ({"_id": str(number), "title": "", "text": text} for number, text in enumerate(passages))
    write_json(folder / "corpus.jsonl", documents)
    write_json(folder / "queries.jsonl", ({"_id": f"q{row}", "text": items[row][1]} for row in rows))
    judged = "".join(f"q{row}\t{row}\t1\n" for row in rows)
    (folder / "qrels" / "test.tsv").write_text(f"query-id\tcorpus-id\tscore\n{judged}", encoding="utf-8")


def write_json(path: Path, records: Iterable[Mapping[str, str]]) -> None:
    """Write one record a line."""
    path.write_text("".join(json.dumps(one, ensure_ascii=False) + "\n" for one in records), encoding="utf-8")


def write(folder: Path, files: dict[str, list[str]]) -> None:
    """Write files of one text a line."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, texts in files.items():
        (folder / f"{name}.txt").write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")


if __name__ == "__main__":
    main()
