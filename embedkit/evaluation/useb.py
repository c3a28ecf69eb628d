"""AskUbuntu and SciDocs: in the layout of the Unsupervised Sentence Embedding Benchmark (USEB), and in MTEB's.

Source: the benchmark's published evaluators, with which SCT's Table 3 was measured. Both use titles only.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from embedkit.errors import DataError
from embedkit.evaluation.reranking import (
    LIST_RULES,
    NO_POSITIVE,
    Query,
    RankingTest,
    RerankingSet,
    Tests,
    collect_lists,
    mteb_test,
    ranking_task,
    stable,
    trec_eval,
)
from embedkit.evaluation.sources import Shelf, by_query, unique
from embedkit.evaluation.tasks import Conventions, Entry, Task
from embedkit.records import HubDataset, Row, read_lines

_SCIDOCS_TASKS = ("cite", "cocite", "coview", "coread")
_NO_TITLE = "without a title"


# AskUbuntu: dev.txt and test.txt contain query id, similar ids, 20 candidate ids and their BM25 scores.


class _Question(NamedTuple):
    place: str
    id: str
    similar: list[str]
    candidates: list[str]


def has_askubuntu(folder: Path) -> bool:
    """Whether the folder contains AskUbuntu's questions and their titles."""
    return (folder / "test.txt").is_file() and _titles_file(folder).is_file()


def load_askubuntu(folder: Path, split: str = "test") -> RerankingSet:
    """Load AskUbuntu: candidates in BM25 order, without queries that have no similar question.

    Args:
        folder: has ``text_tokenized.txt`` or ``.gz``, ``dev.txt`` and ``test.txt``.
        split: ``"dev"`` or ``"test"``.

    Raises:
        DataError: a file is missing or malformed, or a question has no title.
    """
    questions = list(_questions(folder / f"{split}.txt"))
    titles = _titles(folder, questions)
    queries = []
    for question in questions:
        if question.similar:
            candidates = [titles[each] for each in question.candidates]
            relevant = np.isin(question.candidates, question.similar)
            queries.append(Query(titles[question.id], question.candidates, candidates, relevant))
    skipped = len(questions) - len(queries)
    return RerankingSet(f"askubuntu-{split}", queries, {NO_POSITIVE: skipped} if skipped else {})


def load_askubuntu_pooled(folder: Path) -> RerankingSet:
    """Load MTEB's AskUbuntuDupQuestions from the same files: dev and test, queries with both kinds of candidates.

    Raises:
        DataError: as for :func:`load_askubuntu`.
    """
    questions = [*_questions(folder / "dev.txt"), *_questions(folder / "test.txt")]
    titles = _titles(folder, questions)

    def row(question: _Question) -> Row:
        texts = {True: list[str](), False: list[str]()}
        for each in question.candidates:
            texts[each in question.similar].append(titles[each])
        return Row(
            question.place, {"query": titles[question.id], "positive": texts[True], "negative": texts[False]}
        )

    return collect_lists("askubuntu", map(row, questions))


def _questions(path: Path) -> Iterator[_Question]:
    for place, line in read_lines(path):
        fields = line.split("\t")
        if len(fields) != 4:
            raise DataError(
                f"{place}: expected query, similar, candidates and scores between TABs, got {line:.60}"
            )
        query, similar, candidates, scores = fields[0], *(field.split() for field in fields[1:])
        if len(candidates) != len(scores) or not set(similar) <= set(candidates):
            raise DataError(
                f"{place}: expected a score for each candidate, and similar questions among the candidates"
            )
        bm25 = np.array([Row(place, {"BM25 score": score}).number("BM25 score") for score in scores])
        yield _Question(place, query, similar, [candidates[row] for row in np.argsort(-bm25, kind="stable")])


def _titles_file(folder: Path) -> Path:
    plain = folder / "text_tokenized.txt"
    return plain if plain.is_file() else folder / "text_tokenized.txt.gz"


def _titles(folder: Path, questions: list[_Question]) -> dict[str, str]:
    wanted = {each for question in questions for each in (question.id, *question.candidates)}
    lines = (line.split("\t") for _, line in read_lines(_titles_file(folder)))
    titles = {fields[0]: fields[1].strip() for fields in lines if len(fields) > 1 and fields[0] in wanted}
    if len(titles) < len(wanted):
        example = min(wanted - titles.keys())
        raise DataError(
            f"{_titles_file(folder)}: {len(wanted) - len(titles)} titles are missing, for example {example}"
        )
    return titles


# SciDocs: relevance of papers for four tasks, and the papers' titles.


def has_scidocs(folder: Path) -> bool:
    """Whether the folder contains SciDocs in USEB's form or in its authors'."""
    return (folder / "data.json").is_file() or (folder / "cite" / "test.qrel").is_file()


def load_scidocs(folder: Path) -> list[RerankingSet]:
    """Load SciDocs: one set for each of cite, co-cite, co-view and co-read.

    As in USEB, queries and candidates without a title are skipped; a relevant paper without one still counts as
    not retrieved.

    Args:
        folder: has ``data.json`` (USEB: ``corpus`` and, under ``test``, relevance by task), or
            ``TASK/test.qrel`` and ``paper_metadata_view_cite_read.json`` (the authors of SciDocs).

    Raises:
        DataError: a file is missing or malformed.
    """
    if (folder / "data.json").is_file():
        data = _read_json(folder / "data.json", "corpus", "test")
        papers, judgements = data["corpus"], data["test"]
    else:
        papers = _read_json(folder / "paper_metadata_view_cite_read.json")
        judgements = {task: _read_qrel(folder / task / "test.qrel") for task in _SCIDOCS_TASKS}
    missing = [task for task in _SCIDOCS_TASKS if task not in judgements]
    if missing:
        raise DataError(f"{folder}: expected the tasks {', '.join(_SCIDOCS_TASKS)}; missing: {', '.join(missing)}")
    titles = {paper: (fields.get("title") or "") for paper, fields in papers.items()}
    return [_scidocs_set(task, judgements[task], titles) for task in _SCIDOCS_TASKS]


def _scidocs_set(
    task: str, judgements: Mapping[str, Mapping[str, float]], titles: Mapping[str, str]
) -> RerankingSet:
    queries, skipped = [], Counter[str]()
    for paper, marks in judgements.items():
        wanted = sum(mark > 0 for mark in marks.values())
        if not wanted or not titles.get(paper):
            skipped[_NO_TITLE if wanted else NO_POSITIVE] += 1
            continue
        ids = [each for each in marks if titles.get(each)]
        relevant = np.array([marks[each] > 0 for each in ids], dtype=np.bool_)
        candidates = [titles[each].strip() for each in ids]
        queries.append(Query(titles[paper].strip(), ids, candidates, relevant, wanted - int(relevant.sum())))
    return RerankingSet(task, queries, dict(skipped))


def _read_qrel(path: Path) -> dict[str, dict[str, float]]:
    def items() -> Iterator[tuple[str, tuple[str, str], float]]:
        for place, line in read_lines(path):
            fields = line.split()
            if len(fields) != 4 or not fields[3].lstrip("-").isdecimal():
                raise DataError(f"{place}: expected query, 0, document and relevance, got {line:.80}")
            yield place, (fields[0], fields[2]), int(fields[3])

    return by_query(unique(items(), "judgement", []))


def _read_json(path: Path, *keys: str) -> dict[str, Any]:
    text = "\n".join(line for _, line in read_lines(path))
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: expected JSON: {error}") from error
    if not isinstance(data, dict) or not all(isinstance(data.get(key), dict) for key in keys):
        raise DataError(f"{path}: expected a JSON object{' of ' if keys else ''}{' and '.join(keys)}")
    return data


_ASKUBUNTU = ("askubuntu", "AskUbuntu", "askubuntu-master")
_ASKUBUNTU_MTEB = ("askubuntudupquestions-reranking", "AskUbuntuDupQuestions", "askubuntu.jsonl")
_ASKUBUNTU_HUB = HubDataset("mteb/askubuntudupquestions-reranking", "2000358ca161889fa9c082cb41daa8dcfb161a54")
_SCIDOCS = ("scidocs", "SciDocs")
_SCIDOCS_MTEB = ("scidocs-reranking", "SciDocsRR", "scidocs.jsonl")
_SCIDOCS_HUB = HubDataset("mteb/scidocs-reranking", "d3c5e1fc0b855ab6097bf1cda04dd73947d7caab")


def _askubuntu(shelf: Shelf, conventions: Conventions) -> Task:
    source = shelf.find(*_ASKUBUNTU, *_ASKUBUNTU_MTEB, hub=_ASKUBUNTU_HUB)
    tests: Tests = {"mteb": partial(mteb_test, "askubuntu", source, 361)}
    if isinstance(source, Path) and has_askubuntu(source):
        tests = {
            "useb": partial(_askubuntu_test, source, "test", 186),
            "mteb": partial(_askubuntu_pooled_test, source, 361),
        }
    return ranking_task("askubuntu", source, tests, conventions)


def _askubuntu_dev(shelf: Shelf, conventions: Conventions) -> Task:
    source = shelf.find(*_ASKUBUNTU)
    tests: Tests = {"useb": partial(_askubuntu_test, Path(str(source)), "dev", 189)}
    return ranking_task("askubuntu-dev", source, tests, conventions)


def _scidocs(shelf: Shelf, conventions: Conventions) -> Task:
    source = shelf.find(*_SCIDOCS, *_SCIDOCS_MTEB, hub=_SCIDOCS_HUB)
    tests: Tests = {"mteb": partial(mteb_test, "scidocs", source, 3978)}
    if isinstance(source, Path) and has_scidocs(source):
        tests = {"useb": partial(_scidocs_test, source)}
    return ranking_task("scidocs", source, tests, conventions)


def _askubuntu_test(folder: Path, split: str, expected: int) -> RankingTest:
    return RankingTest("useb", [load_askubuntu(folder, split)], {"map": stable}, str(folder), expected)


def _askubuntu_pooled_test(folder: Path, expected: int) -> RankingTest:
    return RankingTest("mteb", [load_askubuntu_pooled(folder)], LIST_RULES, str(folder), expected)


def _scidocs_test(folder: Path) -> RankingTest:
    return RankingTest("useb", load_scidocs(folder), {"map": trec_eval}, str(folder))


RERANKING_TASKS: dict[str, Entry] = {
    "askubuntu": Entry(
        "re-ranking of similar questions", "186 queries (useb), 361 (mteb)", _askubuntu, _ASKUBUNTU_HUB
    ),
    "askubuntu-dev": Entry("development questions of askubuntu", "189 queries (useb)", _askubuntu_dev),
    "scidocs": Entry(
        "re-ranking of related papers", "four tasks (useb), 3,978 queries (mteb)", _scidocs, _SCIDOCS_HUB
    ),
}
