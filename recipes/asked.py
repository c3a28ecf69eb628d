"""Text for the last stage of the encoders: questions in other words, and questions of fact.

    python recipes/asked.py DATA --encoder all-MiniLM-L6-v2.onnx --cross-encoder ms-marco-MiniLM-L12-v2.onnx \
        --without DATA/rerank/*.jsonl -o OUT

DATA has the folders ``questions`` and ``train``. The script writes:

- ``OUT/pairs.jsonl``: rows of ``query``, ``passage`` and ``label``, which is 0 for a passage that does not answer
- ``OUT/passages.txt``: the passages that answer a query
- ``OUT/topics.jsonl``: such rows of questions and titles of papers, and the abstracts of others that answer
- ``OUT/held.txt``: texts of many kinds, whose vectors the anchor holds
- ``OUT/facts-dev.jsonl``: a third of the questions of fact, for development: ``query``, ``positive``, ``negative``
- ``OUT/parts``: all questions of each kind; a run makes only the kinds that are missing

Texts for development and evaluation are left out: two sites and a quarter of the threads of the others, the last
abstracts of each file, and the texts of the files after ``--without``.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from sources import (
    ABSTRACTS,
    are_kept,
    first_words,
    held,
    is_for_development,
    json_lines,
    lines,
    plain,
    questions_in,
    reserved,
    sentences,
    shuffled,
    threads,
    without,
)
from wordings import claim, replace, synonyms_of, wording

from embedkit import CrossEncoder, Encoder
from embedkit.atomic import atomic_file
from embedkit.errors import EmbedkitError
from embedkit.protocols import FloatArray
from embedkit.serving.retrieval import ExactIndex

_WORDINGS = 3  # of a title, and sentences of a question
_LED = 2900  # posts at the start of their file, which begin with a title
_ABSTRACTS, _PAPERS, _READ = 2600, 4500, 120  # abstracts of a file, questions from all, words that are read
_NO_TITLE = re.compile(r"(?:We|This|In|The|These|Our|It|There|Here|Background|Objectives?|Introduction)\b")
_FACTS = {"nq-open": 10_000, "opentriviaqa": 2300, "query-wellformedness": 2000}
_SENTENCES = {"wikipedia": 200_000, "openstax": 30_000}
_NEAREST, _WRONG = 8, 4  # passages of a question that are scored, and wrong ones that are kept
_ASKED = {"arxiv-titles": 300, "conference-titles": 300, "pmc-titles": 300}
_ASKING = "arxiv-abstracts", "conference-abstracts", "pmc-passages"  # files of which questions are taken


@dataclasses.dataclass
class Question:
    """A query, the passages that answer it, and some that do not."""

    query: str
    positive: list[str]
    negative: list[str] = dataclasses.field(default_factory=list)

    def texts(self) -> list[str]:
        """Return the query and the passages that answer it."""
        return [self.query, *self.positive]

    def pairs(self) -> Iterator[dict[str, Any]]:
        """Yield a row for each passage."""
        for passages, label in ((self.positive, 1), (self.negative, 0)):
            yield from ({"query": self.query, "passage": text, "label": label} for text in passages)


def titles(data: Path, encoder: Encoder) -> Iterator[Question]:
    """Yield other wordings of titles, with the answers below their titles."""
    generator, synonyms = Random(0), synonyms_of(lines(data, "wordnet-glosses"))
    found = {title: thread.answers for title, thread in threads(data).items() if len(title.split()) > 2}
    asked = [title for title, answers in found.items() if answers for _ in range(_WORDINGS)]
    wordings = [wording(title, generator) for title in asked]
    others = [replace(text, synonyms, generator) if generator.random() < 0.7 else text for text in wordings]
    near, nearer = (cosines(encoder, list(zip(asked, texts, strict=True))) for texts in (wordings, others))
    for row, title in enumerate(asked):
        is_other = others[row] != wordings[row] and nearer[row] > 0.6
        query = others[row] if is_other else wordings[row]
        if (is_other or near[row] > 0.55) and plain(query) != plain(title):
            yield Question(query, [first_words(f"{title} {answer}") for answer in found[title]])


def bodies(data: Path, encoder: Encoder) -> Iterator[Question]:
    """Yield sentences of questions that are near their title, with the answers or the rest below it."""
    found = threads(data)
    texts = {title: sentences(thread.body) for title, thread in found.items()}
    for title, text in alike(encoder, texts, 0.62, _WORDINGS):
        below = found[title].answers or [found[title].body.replace(text, "")]
        yield Question(text, [first_words(f"{title} {passage}") for passage in below])


def posts(data: Path, encoder: Encoder) -> Iterator[Question]:
    """Yield sentences of posts that are near their title, with the rest of the post."""
    led = [sentences(text) for text in lines(data, "stackexchange-posts")[:_LED]]
    fit = [post for post in led if len(post) > 2 and post[0].endswith("?") and 4 <= len(post[0].split()) <= 20]
    found = {title: body for title, *body in fit}
    for title, text in alike(encoder, found, 0.5, 2):
        rest = (sentence for sentence in found[title] if sentence != text)
        yield Question(text, [first_words(" ".join([title, *rest]))])


def papers(data: Path) -> Iterator[Question]:
    """Yield titles of papers with their abstracts, and sentences of abstracts, as they are and reworded."""
    generator, synonyms = Random(0), synonyms_of(lines(data, "wordnet-glosses"))
    found = list[Question]()
    for name in ("conference-abstracts", "pmc-abstracts"):
        for text in lines(data, name)[:_ABSTRACTS]:
            title, *rest = parts = sentences(first_words(text, _READ))
            if rest and 5 <= len(title.split()) <= 16 and title[0].isupper() and not _NO_TITLE.match(title):
                found.append(Question(title.rstrip("."), [" ".join(rest)]))
            claims = [part for part in parts[1:] if 10 <= len(part.split()) <= 40]
            if len(claims) > 2:
                told, cited = generator.sample(claims, 2)
                found.append(Question(told, [" ".join(part for part in parts if part != told)]))
                found.append(Question(claim(cited, synonyms, generator), [" ".join(parts)]))
    generator.shuffle(found)
    yield from found[:_PAPERS]


def facts(data: Path, finder: Encoder, judge: CrossEncoder, left_out: set[str]) -> Iterator[Question]:
    """Yield questions with the sentence that answers by the judgement of a cross-encoder, and some that do not."""
    questions, texts = (
        [text for name, count in counts.items() for text in islice(without(shuffled(data, name), left_out), count)]
        for counts in (_FACTS, _SENTENCES)
    )
    texts = [text for text in texts if 7 <= len(text.split()) <= 45]
    for question, passages, scores in judged(questions, texts, finder, judge):
        best = scores.max()
        if best > 2:
            wrong = [text for text, score in zip(passages, scores, strict=True) if score < min(best - 5, -2)]
            yield Question(question, [passages[scores.argmax()]], wrong[:_WRONG])


def topics(data: Path, encoder: Encoder, judge: CrossEncoder, left_out: set[str]) -> Iterator[Question]:
    """Yield questions and titles of papers with the abstracts of others that answer, and some that do not."""
    generator = Random(0)
    texts = [first_words(text, _READ) for name in ABSTRACTS for text in lines(data, name)[:_ABSTRACTS]]
    asked = [text for name in _ASKING for text in questions_in(lines(data, name)) if not is_for_development(text)]
    asked += [wording(text, generator) for name, count in _ASKED.items() for text in lines(data, name)[:count]]
    for question, passages, scores in judged([*without(asked, left_out)], texts, encoder, judge):
        found = [*zip(passages, scores.tolist(), strict=True)]
        right = [text for text, score in found if score > 1 and plain(question) not in plain(text)]
        if right:
            yield Question(question, right, [text for text, score in found if score < -4][:_WRONG])


def judged(
    questions: list[str], texts: list[str], finder: Encoder, judge: CrossEncoder, count: int = _NEAREST
) -> Iterator[tuple[str, list[str], FloatArray]]:
    """Yield each question with the texts nearest to it and the logits of a cross-encoder."""
    vectors, queries = (finder.encode(each, show_progress_bar=False) for each in (texts, questions))
    _, near = ExactIndex(vectors).search(queries, count)
    pairs = [(question, texts[row]) for question, found in zip(questions, near, strict=True) for row in found]
    logits = judge.predict(pairs, activation_fn="identity", show_progress_bar=False).reshape(near.shape)
    for question, found, scores in zip(questions, near, logits, strict=True):
        yield question, [texts[row] for row in found], scores


def alike(encoder: Encoder, texts: Mapping[str, list[str]], least: float, most: int) -> Iterator[tuple[str, str]]:
    """Yield titles and those of their sentences that ask the same in other words, the nearest first."""
    pairs = [
        (title, text)
        for title, listed in texts.items()
        for text in listed
        if 5 <= len(text.split()) <= 30 and plain(title) not in plain(text)
    ]
    near, taken = cosines(encoder, pairs), Counter[str]()
    for row in np.argsort(-near, kind="stable").tolist():
        title = pairs[row][0]
        if least < near[row] < 0.92 and taken[title] < most:
            taken[title] += 1
            yield pairs[row]


def cosines(encoder: Encoder, pairs: list[tuple[str, str]]) -> FloatArray:
    """Return the cosine of each pair of texts, ``(N,) float32``."""
    place = {text: row for row, text in enumerate(dict.fromkeys(chain.from_iterable(pairs)))}
    vectors = encoder.encode(list(place), show_progress_bar=False)
    first, second = (vectors[[place[pair[side]] for pair in pairs]] for side in (0, 1))
    return np.asarray((first * second).sum(axis=1), dtype=np.float32)


def write(path: Path, rows: Iterable[str | dict[str, Any]]) -> None:
    """Write a file of lines, texts or JSON, whole or not at all."""
    texts = (row if isinstance(row, str) else json.dumps(row, ensure_ascii=False) for row in rows)
    with atomic_file(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.writelines(f"{text}\n" for text in texts)


def part(path: Path, made: Iterator[Question], left_out: set[str]) -> list[Question]:
    """Return the questions of a file; if there is none yet, make it of those without a text that is left out."""
    if not path.exists():
        kept = (each for each in made if are_kept(each.texts(), left_out))
        write(path, map(dataclasses.asdict, kept))
    found = [Question(**row) for row in json_lines(path)]
    print(f"{len(found):,} {path.stem}", flush=True)
    return found


def main() -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--encoder", required=True, help="bundle that judges wordings: all-MiniLM-L6-v2")
    parser.add_argument(
        "--cross-encoder", required=True, help="bundle that judges answers: ms-marco-MiniLM-L12-v2"
    )
    parser.add_argument(
        "--finder", default="tiny", help="bundle that finds sentences near a question: %(default)s"
    )
    parser.add_argument("--without", type=Path, nargs="+", default=[], help="re-ranking sets that are left out")
    parser.add_argument("--threads", type=int)
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    data, output = options.data, options.output
    encoder, finder = (Encoder.load(name, threads=options.threads) for name in (options.encoder, options.finder))
    judge = CrossEncoder.load(options.cross_encoder, threads=options.threads)
    left_out = reserved(data, options.without)
    kinds = {
        "titles": titles(data, encoder),
        "bodies": bodies(data, encoder),
        "posts": posts(data, encoder),
        "papers": papers(data),
        "facts": facts(data, finder, judge, left_out),
    }
    (output / "parts").mkdir(parents=True, exist_ok=True)
    write(output / "held.txt", held(data, left_out))
    parts = {name: part(output / f"parts/{name}.jsonl", made, left_out) for name, made in kinds.items()}
    dev = [fact for fact in parts["facts"] if is_for_development(fact.query)]
    known = {text for fact in dev for text in fact.texts()}
    rows = [each for found in parts.values() for each in found if known.isdisjoint(each.texts())]
    write(output / "facts-dev.jsonl", map(dataclasses.asdict, dev))
    write(output / "passages.txt", dict.fromkeys(text for each in rows for text in each.positive))
    write(output / "pairs.jsonl", (row for each in rows for row in each.pairs()))
    others = part(output / "parts/topics.jsonl", topics(data, encoder, judge, left_out), left_out)
    write(output / "topics.jsonl", (row for each in others for row in each.pairs()))


if __name__ == "__main__":
    try:
        main()
    except EmbedkitError as error:
        raise SystemExit(f"error: {error}") from None
