"""Re-ranking: mean average precision (MAP) of candidates ordered by their cosine with a query.

Published figures differ in how they order candidates of equal cosine. Each convention is a :data:`Rule`:

- :func:`stable`: ties keep the original order of the candidates (USEB's AskUbuntu).
- :func:`trec_eval`: ties are ordered by descending id, and relevant documents that are not among the candidates
  count as not retrieved (USEB's SciDocs; MTEB 2 with ``cutoff=1000``).
- :func:`merged`: ties are one step of the precision-recall curve (scikit-learn, MTEB 1).

Sets are in one of MTEB's two forms, from files or from the hub: a row per query, ``query, positive[], negative[]``
(MTEB 1), or the tables of :class:`embedkit.evaluation.sources.Tables` (MTEB 2). AskUbuntu and SciDocs, of which
only titles are used, are also read in the layouts of the Unsupervised Sentence Embedding Benchmark (USEB), with
whose published evaluators SCT's Table 3 was measured.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from embedkit.errors import DataError
from embedkit.evaluation.pairs import BoolArray, Thresholds
from embedkit.evaluation.results import Part, Resampler, Result
from embedkit.evaluation.sources import (
    Source,
    Tables,
    by_query,
    folder_rows,
    has_tables,
    of_split,
    read_rows,
    unique,
)
from embedkit.evaluation.tasks import EvaluationSet, Loads, Pool, Published, RoleText
from embedkit.protocols import FloatArray
from embedkit.records import HubDataset, Row, read_lines, read_object


@dataclass(frozen=True)
class Query:
    """A query and its candidates.

    Attributes:
        ids: C distinct ids of the candidates, in their original order.
        candidates: C texts.
        relevant: ``(C,)`` bool.
        missing: number of relevant documents that are not among the candidates.
    """

    text: str
    ids: list[str]
    candidates: list[str]
    relevant: BoolArray
    missing: int = 0


Rule = Callable[[FloatArray, Query], float]
"""Computes the average precision in [0, 1] of a query's candidates from their scores ``(C,) float32``."""


@dataclass(frozen=True)
class RerankingSet(EvaluationSet):
    """Queries that each have a relevant document.

    Attributes:
        rules: scoring rule by measure; the first is the headline.
        parts: number of queries of each part, in their order; the headline is the unweighted mean of their MAPs.

    Raises:
        DataError: no query remains.
    """

    queries: list[Query]
    rules: Mapping[str, Rule] = field(kw_only=True)
    parts: Mapping[str, int] = field(default_factory=dict, kw_only=True)

    def __post_init__(self) -> None:
        if not self.queries or 0 in self.parts.values():
            skipped = "".join(f"; {count} {reason}" for reason, count in self.skipped.items())
            raise DataError(f"{self.name}: expected queries with candidates, found none{skipped}")

    def texts(self) -> Iterator[RoleText]:
        """Yield every text to encode, including repeated ones."""
        for query in self.queries:
            yield "query", query.text
            yield from (("document", text) for text in query.candidates)

    def result(self, pool: Pool) -> Result:
        """Score every query by every rule."""
        ends = np.cumsum(list(self.parts.values()), dtype=np.int64)[:-1]
        precisions = {
            measure: np.split(average_precisions(pool, self.queries, rule), ends)
            for measure, rule in self.rules.items()
        }
        first = next(iter(precisions.values()))
        return self._result(
            {m: float(np.mean([part.mean() for part in several])) for m, several in precisions.items()},
            {"queries": len(self.queries)},
            Resampler.of_sets(map(Resampler.of_rows, first)),
            parts={
                name: Part(len(values), float(values.mean()))
                for name, values in zip(self.parts, first, strict=bool(self.parts))
            },
        )


def average_precisions(pool: Pool, queries: list[Query], rule: Rule) -> npt.NDArray[np.float64]:
    """Return the average precision of each query, ``(Q,) float64``; their mean is the MAP."""
    scores = (
        pool.similarities([query.text] * len(query.candidates), query.candidates, roles=("query", "document"))
        for query in queries
    )
    return np.array([rule(row, query) for row, query in zip(scores, queries, strict=True)])


def stable(scores: FloatArray, query: Query) -> float:
    """Ties keep the order of the candidates; relevant documents outside the candidates are ignored."""
    order = np.argsort(-scores, kind="stable")
    return mean_precision(query.relevant[order], int(query.relevant.sum()))


def trec_eval(scores: FloatArray, query: Query, *, cutoff: int | None = None) -> float:
    """trec_eval's ``map``, or ``map_cut`` with a cutoff.

    Ties are ordered by descending id: among equal scores, a relevant document with a low id comes last.
    """
    order = sorted(range(len(scores)), key=lambda row: (scores[row], query.ids[row]), reverse=True)
    return mean_precision(query.relevant[order[:cutoff]], int(query.relevant.sum()) + query.missing)


def trec_eval_1000(scores: FloatArray, query: Query) -> float:
    """MTEB 2's ``map_at_1000``: :func:`trec_eval` over the top thousand candidates."""
    return trec_eval(scores, query, cutoff=1000)


def merged(scores: FloatArray, query: Query) -> float:
    """scikit-learn's ``average_precision_score``: each distinct score is one threshold."""
    return Thresholds.of(scores, query.relevant).average_precision()


def mean_precision(relevant: npt.NDArray[np.bool_ | np.float64], total: int) -> float:
    """Return the sum of the precisions at all relevant ranks, divided by ``total`` relevant documents."""
    ranks = np.flatnonzero(relevant) + 1
    return float(np.sum(np.arange(1, len(ranks) + 1) / ranks) / total)


_LIST_RULES: Mapping[str, Rule] = {"map": merged, "map_at_1000": trec_eval_1000}
_TABLE_RULES: Mapping[str, Rule] = {"map_at_1000": trec_eval_1000}

_NO_POSITIVE = "without a positive"
_NO_NEGATIVE = "without a negative"
_NO_CANDIDATE = "without candidates"


def load_mteb(source: Source, *, name: str, split: str = "test") -> RerankingSet:
    """Load a set in one of MTEB's two forms.

    Raises:
        DataError: it is malformed.
    """
    return (load_tables if has_tables(source) else load_lists)(source, name=name, split=split)


def load_lists(source: Source, *, name: str, split: str = "test") -> RerankingSet:
    """Load a set in MTEB 1's form: a file, a folder with a file for the split, or a hub data set.

    Raises:
        DataError: missing, empty or malformed; names the file and line.
    """
    if isinstance(source, HubDataset):
        return collect_lists(name, of_split(source.rows(split=split), split))
    rows = folder_rows(source, ("", "data"), split) if source.is_dir() else read_rows(source)
    return collect_lists(name, of_split(rows, split))


def load_tables(source: Source, *, name: str, split: str = "test") -> RerankingSet:
    """Load a set in MTEB 2's form: a folder or a hub data set.

    Raises:
        DataError: a table is missing, empty or malformed.
    """
    tables = Tables(source, split)
    corpus, texts, judgements = tables.documents(), tables.queries(), tables.judgements()
    queries, skipped = [], Counter[str]()
    for query_id, ids in tables.candidates(corpus, texts).items():
        wanted = {document for document, mark in judgements.get(query_id, {}).items() if mark > 0}
        if not wanted or not ids:
            skipped[_NO_CANDIDATE if wanted else _NO_POSITIVE] += 1
            continue
        marks = np.array([name in wanted for name in ids])
        candidates = [corpus[name] for name in ids]
        queries.append(Query(texts[query_id], ids, candidates, marks, len(wanted) - int(marks.sum())))
    missing = sum(query.missing for query in queries)
    total = missing + sum(int(query.relevant.sum()) for query in queries)
    if total and missing == total:
        raise DataError(
            f"{source}: none of the {total:,} relevant documents is among the candidates; give judgements and "
            "candidates the same ids"
        )
    if missing:
        tables.notes.append(f"{missing:,} of {total:,} relevant documents are not candidates, and so not found")
    return _mteb_set(name, queries, _TABLE_RULES, skipped=dict(skipped), notes=tables.notes)


def collect_lists(name: str, rows: Iterable[Row]) -> RerankingSet:
    """Collect a set from rows of ``query, positive[], negative[]``; as in MTEB, queries need at least one of each.

    Candidates get the ids that MTEB 2 assigns when it converts this form, because ids break ties.
    """
    queries, skipped = [], Counter[str]()
    for row in rows:
        text, positives, negatives = row.text("query"), row.texts("positive"), row.texts("negative")
        if not positives or not negatives:
            skipped[_NO_NEGATIVE if positives else _NO_POSITIVE] += 1
            continue
        ids = [f"apositive_{i:05d}" for i in range(len(positives))]
        ids += [f"negative_{i:05d}" for i in range(len(negatives))]
        queries.append(Query(text, ids, [*positives, *negatives], np.arange(len(ids)) < len(positives)))
    return _mteb_set(name, queries, _LIST_RULES, skipped=dict(skipped))


def _mteb_set(name: str, queries: list[Query], rules: Mapping[str, Rule], **about: Any) -> RerankingSet:
    return RerankingSet(name, queries, rules=rules, convention="mteb", **about)


_SCIDOCS_TASKS = ("cite", "cocite", "coview", "coread")
_NO_TITLE = "without a title"


# AskUbuntu by USEB: dev.txt and test.txt contain query id, similar ids, 20 candidate ids and their BM25 scores.


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

    The folder has ``text_tokenized.txt`` or ``.gz``, ``dev.txt`` and ``test.txt``.

    Raises:
        DataError: a file is missing or malformed, or a question has no title.
    """
    questions = list(_questions(folder / f"{split}.txt"))
    titles = _titles(folder, questions)
    queries = []
    for question in questions:
        if question.similar:
            candidates = [titles[candidate] for candidate in question.candidates]
            relevant = np.isin(question.candidates, question.similar)
            queries.append(Query(titles[question.id], question.candidates, candidates, relevant))
    skipped = len(questions) - len(queries)
    return RerankingSet(
        "askubuntu" if split == "test" else f"askubuntu-{split}",
        queries,
        rules={"map": stable},
        convention="useb",
        expected={"queries": _ASKUBUNTU_QUERIES[split]},
        skipped={_NO_POSITIVE: skipped} if skipped else {},
    )


def load_askubuntu_pooled(folder: Path) -> RerankingSet:
    """Load MTEB's AskUbuntuDupQuestions from the same files: dev and test, queries with both kinds of candidates.

    Raises:
        DataError: as for :func:`load_askubuntu`.
    """
    questions = [*_questions(folder / "dev.txt"), *_questions(folder / "test.txt")]
    titles = _titles(folder, questions)

    def row(question: _Question) -> Row:
        texts = {True: list[str](), False: list[str]()}
        for candidate in question.candidates:
            texts[candidate in question.similar].append(titles[candidate])
        return Row(
            question.place, {"query": titles[question.id], "positive": texts[True], "negative": texts[False]}
        )

    expected = {"queries": _ASKUBUNTU_POOLED}
    return replace(collect_lists("askubuntu", map(row, questions)), expected=expected)


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
    wanted = {name for question in questions for name in (question.id, *question.candidates)}
    lines = (line.split("\t") for _, line in read_lines(_titles_file(folder)))
    titles = {fields[0]: fields[1].strip() for fields in lines if len(fields) > 1 and fields[0] in wanted}
    if len(titles) < len(wanted):
        example = min(wanted - titles.keys())
        raise DataError(
            f"{_titles_file(folder)}: {len(wanted) - len(titles)} titles are missing, for example {example}"
        )
    return titles


# SciDocs by USEB: relevance of papers for four tasks, and the papers' titles.


def has_scidocs(folder: Path) -> bool:
    """Whether the folder contains SciDocs in USEB's form or in its authors'."""
    return (folder / "data.json").is_file() or (folder / "cite" / "test.qrel").is_file()


def load_scidocs(folder: Path) -> RerankingSet:
    """Load SciDocs: one set of four parts, cite, co-cite, co-view and co-read.

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
    skipped = Counter[str]()
    parts = {task: list(_scidocs_queries(judgements[task], titles, skipped)) for task in _SCIDOCS_TASKS}
    return RerankingSet(
        "scidocs",
        list(chain.from_iterable(parts.values())),
        rules={"map": trec_eval},
        convention="useb",
        parts={task: len(queries) for task, queries in parts.items()},
        skipped=skipped,
    )


def _scidocs_queries(
    judgements: Mapping[str, Mapping[str, float]], titles: Mapping[str, str], skipped: Counter[str]
) -> Iterator[Query]:
    for paper, marks in judgements.items():
        wanted = sum(mark > 0 for mark in marks.values())
        if not wanted or not titles.get(paper):
            skipped[_NO_TITLE if wanted else _NO_POSITIVE] += 1
            continue
        ids = [candidate for candidate in marks if titles.get(candidate)]
        relevant = np.array([marks[candidate] > 0 for candidate in ids], dtype=np.bool_)
        candidates = [titles[candidate].strip() for candidate in ids]
        yield Query(titles[paper].strip(), ids, candidates, relevant, wanted - int(relevant.sum()))


def _read_qrel(path: Path) -> dict[str, dict[str, float]]:
    def items() -> Iterator[tuple[str, tuple[str, str], float]]:
        for place, line in read_lines(path):
            fields = line.split()
            if len(fields) != 4 or not fields[3].lstrip("-").isdecimal():
                raise DataError(f"{place}: expected query, 0, document and relevance, got {line:.80}")
            yield place, (fields[0], fields[2]), int(fields[3])

    return by_query(unique(items(), "judgement", []))


def _read_json(path: Path, *keys: str) -> dict[str, Any]:
    data = read_object(path)
    if not all(isinstance(data.get(key), dict) for key in keys):
        raise DataError(f"{path}: expected a JSON object of {' and '.join(keys)}")
    return data


def _mteb(name: str, source: Source, queries: int) -> RerankingSet:
    return replace(load_mteb(source, name=name), expected={"queries": queries})


def _askubuntu(name: str, source: Source) -> Loads:
    if isinstance(source, Path) and has_askubuntu(source):
        return {"useb": partial(load_askubuntu, source), "mteb": partial(load_askubuntu_pooled, source)}
    return {"mteb": partial(_mteb, name, source, _ASKUBUNTU_POOLED)}


def _askubuntu_dev(_name: str, source: Source) -> Loads:
    return {"useb": partial(load_askubuntu, Path(str(source)), "dev")}


def _scidocs(name: str, source: Source) -> Loads:
    if isinstance(source, Path) and has_scidocs(source):
        return {"useb": partial(load_scidocs, source)}
    return {"mteb": partial(_mteb, name, source, _SCIDOCS_QUERIES)}


_ASKUBUNTU_QUERIES = {"test": 186, "dev": 189}
_ASKUBUNTU_POOLED, _SCIDOCS_QUERIES = 361, 3978
_ASKUBUNTU = ("askubuntu", "AskUbuntu", "askubuntu-master")
_ASKUBUNTU_MTEB = ("askubuntudupquestions-reranking", "AskUbuntuDupQuestions", "askubuntu.jsonl")
_ASKUBUNTU_HUB = HubDataset("mteb/askubuntudupquestions-reranking", "2000358ca161889fa9c082cb41daa8dcfb161a54")
_SCIDOCS = ("scidocs", "SciDocs", "scidocs-reranking", "SciDocsRR", "scidocs.jsonl")
_SCIDOCS_HUB = HubDataset("mteb/scidocs-reranking", "d3c5e1fc0b855ab6097bf1cda04dd73947d7caab")

RERANKING_TASKS: dict[str, Published] = {
    "askubuntu": Published(
        "re-ranking of similar questions",
        (*_ASKUBUNTU, *_ASKUBUNTU_MTEB),
        _ASKUBUNTU_HUB,
        {"queries (useb)": _ASKUBUNTU_QUERIES["test"], "queries (mteb)": _ASKUBUNTU_POOLED},
        _askubuntu,
    ),
    "askubuntu-dev": Published(
        "development questions of askubuntu",
        _ASKUBUNTU,
        None,
        {"queries (useb)": _ASKUBUNTU_QUERIES["dev"]},
        _askubuntu_dev,
    ),
    "scidocs": Published(
        "re-ranking of related papers", _SCIDOCS, _SCIDOCS_HUB, {"queries (mteb)": _SCIDOCS_QUERIES}, _scidocs
    ),
}
