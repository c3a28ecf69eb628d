"""Score encoders on development sets of the last stage, made of text that recipes/asked.py leaves out.

    python recipes/development.py DATA --asked OUT --encoder all-MiniLM-L6-v2.onnx \
        --cross-encoder ms-marco-MiniLM-L12-v2.onnx tiny mini.onnx runs/mini-asked

OUT is the folder that asked.py wrote. The sets, which are kept in ``OUT/development``:

- sites: sentences of questions that are near their title, and the answers of a site that is not trained on
- facts: questions of fact, and the sentences that answer by the judgement of a cross-encoder
- abstracts: sentences of abstracts, to be found in the rest
- claims: parts of such sentences in other words, to be found in the whole
- topics: questions and titles of papers, and the abstracts and titles that answer by the same judgement

Scores are nDCG@10 x 100, and those of pairs of sentences and of re-ranking from DATA. ``MODEL`` is a bundle, a
bundled name or a run. With ``--documents``, another bundle of the family embeds the documents, which shows on
which side an encoder loses.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from asked import alike, judged
from sources import (
    ABSTRACTS,
    Thread,
    is_for_development,
    json_lines,
    last_abstracts,
    lines,
    plain,
    questions_in,
    sentences,
    some,
    unseen_sites,
)
from wordings import claim, synonyms_of, wording

from embedkit import CrossEncoder, Encoder
from embedkit.atomic import atomic_file
from embedkit.errors import EmbedkitError
from embedkit.evaluation.catalogue import load_task
from embedkit.evaluation.retrieval import JudgedQuery, RetrievalSet
from embedkit.evaluation.tasks import Task, evaluate
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.modeling.torch_encoder import TorchEncoder
from embedkit.protocols import FloatArray, TextEncoder

_TITLES = {"arxiv-titles": 2000, "conference-titles": 2000, "pmc-titles": 1000}
_SENTENCES, _QUESTIONS = 1000, 120  # queries of abstracts and of claims, and of each kind of topics
_NEAREST, _MOST = 40, 20  # documents of a topic that are scored, and the most that may answer
_PAIRS = {
    "STS-B dev": "sts/STSBenchmark/sts-dev.csv",
    "SICK trial": "sts/SICK/SICK_trial.txt",
    "TrecQA dev": "rerank/trecqa-dev.jsonl",
    "SemEval dev": "rerank/semeval2016-cqa-dev.jsonl",
}


def asked_at(name: str, threads: Mapping[str, Thread], encoder: Encoder) -> RetrievalSet:
    """Return sentences of a site's questions, and its answers below their titles."""
    answers = {f"{title} {answer}": title for title, thread in threads.items() for answer in thread.answers}
    of_title: dict[str, list[str]] = {}
    for text, title in answers.items():
        of_title.setdefault(title, []).append(text)
    bodies = {title: sentences(thread.body) for title, thread in threads.items() if title in of_title}
    return _numbered(
        name, [*answers], [(text, of_title[title]) for title, text in alike(encoder, bodies, 0.62, 3)]
    )


def facts(asked: Path) -> RetrievalSet:
    """Return the questions of fact that are for development, and all their sentences."""
    rows = json_lines(asked / "facts-dev.jsonl")
    texts = dict.fromkeys(text for row in rows for text in [*row["positive"], *row["negative"]])
    return _numbered("facts", [*texts], [(row["query"], row["positive"]) for row in rows])


def abstracts(data: Path) -> RetrievalSet:
    """Return sentences of abstracts, and the rest of each."""
    generator, texts, asked = Random(0), list[str](), list[tuple[str, list[str]]]()
    for name in ABSTRACTS:
        for text in last_abstracts(data, name):
            parts = sentences(text)
            told = generator.choice(parts[1:] or parts)
            rest = " ".join(part for part in parts if part != told)
            texts.append(rest or text)
            if len(parts) > 3 and 10 <= len(told.split()) <= 40:
                asked.append((told, [rest]))
    return _numbered("abstracts", texts, some(asked, _SENTENCES, generator))


def claims(data: Path) -> RetrievalSet:
    """Return reworded parts of sentences of abstracts, and the abstracts."""
    generator, synonyms = Random(1), synonyms_of(lines(data, "wordnet-glosses"))
    texts = [text for name in ABSTRACTS for text in last_abstracts(data, name)]
    asked = [
        (claim(part, synonyms, generator), [text])
        for text in texts
        for part in sentences(text)[1:]
        if 10 <= len(part.split()) <= 40
    ]
    return _numbered("claims", texts, some(asked, _SENTENCES, generator))


def topics(data: Path, encoder: Encoder, judge: CrossEncoder) -> RetrievalSet:
    """Return questions and titles of papers, and the abstracts and titles that a cross-encoder finds to answer."""
    generator = Random(2)
    titles = {name: lines(data, name)[-2 * count :] for name, count in _TITLES.items()}
    texts = [text for name in ABSTRACTS for text in last_abstracts(data, name)]
    texts += [text for name in _TITLES for text in titles[name][::2]]
    known = {plain(text) for text in texts}
    asking = [[*questions_in(lines(data, name))] for name in (*ABSTRACTS[:2], "pmc-passages")]
    queries = [text for each in asking for text in some(each, _QUESTIONS, generator) if is_for_development(text)]
    reworded = [[wording(text, generator) for text in titles[name][1::2]] for name in _TITLES]
    queries += [text for each in reworded for text in some(each, _QUESTIONS, generator)]
    queries = [text for text in queries if plain(text) not in known]
    asked = list[tuple[str, list[str]]]()
    for query, passages, scores in judged(queries, texts, encoder, judge, _NEAREST):
        found = zip(passages, scores.tolist(), strict=True)
        right = [text for text, score in found if score > 0 and plain(query) not in plain(text)]
        if 0 < len(right) <= _MOST:
            asked.append((query, right))
    return _numbered("topics", texts, asked)


def _numbered(name: str, texts: list[str], asked: list[tuple[str, list[str]]]) -> RetrievalSet:
    """Return a set of queries, each with the texts that answer it."""
    number = {text: f"d{place}" for place, text in enumerate(dict.fromkeys(texts))}
    queries = [JudgedQuery(query, {number[text]: 1.0 for text in right}) for query, right in asked]
    return RetrievalSet(name, {key: text for text, key in number.items()}, queries)


def kept(path: Path, make: Callable[[], RetrievalSet]) -> RetrievalSet:
    """Return the set of a file, which is made if there is none."""
    if not path.exists():
        made = make()
        path.parent.mkdir(parents=True, exist_ok=True)
        row = {"documents": made.documents, "queries": [asdict(query) for query in made.queries]}
        with atomic_file(path) as temporary:
            temporary.write_text(json.dumps(row, ensure_ascii=False), encoding="utf-8")
    row = json.loads(path.read_text(encoding="utf-8"))
    return RetrievalSet(path.stem, row["documents"], [JudgedQuery(**query) for query in row["queries"]])


class Sides:
    """An encoder of queries and one of documents."""

    def __init__(self, queries: TextEncoder, documents: Encoder) -> None:
        self.name, self.dimension, self.max_length = queries.name, queries.dimension, queries.max_length
        self.fingerprint, self.encode, self.documents = queries.fingerprint, queries.encode, documents

    def encode_query(self, texts: Sequence[str], /, **_: Any) -> FloatArray:
        """Return the embeddings of queries."""
        return self.encode(texts)

    def encode_document(self, texts: Sequence[str], /, **_: Any) -> FloatArray:
        """Return the embeddings of documents."""
        return self.documents.encode_document(texts, show_progress_bar=False)


def scores(model: str, tasks: list[Task], documents: Encoder | None) -> list[float]:
    """Return the headline of each task x 100."""
    run = Path(model) / "model"
    encoder = TorchEncoder(SentenceEncoder.load(run)) if run.exists() else Encoder.load(model)
    both = Sides(encoder, documents) if documents else encoder
    return [100 * (evaluate(both, task, progress=False).results[0].value or 0.0) for task in tasks]


def main() -> None:
    """Print a table, a row for each model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("--asked", type=Path, required=True, help="folder that asked.py wrote")
    parser.add_argument("--encoder", required=True, help="bundle that finds texts: all-MiniLM-L6-v2")
    parser.add_argument("--cross-encoder", required=True, help="bundle that judges: ms-marco-MiniLM-L12-v2")
    parser.add_argument("--documents", help="bundle that embeds the documents; only sets of documents are scored")
    parser.add_argument("--threads", type=int)
    options = parser.parse_args()
    data = options.data
    documents = Encoder.load(options.documents, threads=options.threads) if options.documents else None
    encoder = Encoder.load(options.encoder, threads=options.threads)
    judge = CrossEncoder.load(options.cross_encoder, threads=options.threads)
    makers: dict[str, Callable[[], RetrievalSet]] = {
        **{name: partial(asked_at, name, threads, encoder) for name, threads in unseen_sites(data).items()},
        "facts": partial(facts, options.asked),
        "abstracts": partial(abstracts, data),
        "claims": partial(claims, data),
        "topics": partial(topics, data, encoder, judge),
    }
    retrieval = [kept(options.asked / f"development/{name}.json", make) for name, make in makers.items()]
    for each in retrieval:
        print(f"{each.name}: {len(each.queries):,} queries, {len(each.documents):,} documents")
    tasks = [Task(each.name, [each]) for each in retrieval]
    if documents is None:
        tasks += [load_task(str(data / path)) for path in _PAIRS.values()]
    print("| model |", " | ".join([*makers, *_PAIRS][: len(tasks)]), "|")
    for model in options.models:
        found = " | ".join(f"{score:.1f}" for score in scores(model, tasks, documents))
        print(f"| {model} | {found} |", flush=True)


if __name__ == "__main__":
    try:
        main()
    except EmbedkitError as error:
        raise SystemExit(f"error: {error}") from None
