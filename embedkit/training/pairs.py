"""Labelled queries, from which an encoder learns, in all supported file formats.

A file has a row for each pair, ``query`` and ``passage``; further columns are optional. A row may also list all
passages of its query, or a folder may hold a set in BEIR's form::

    {"query": "reset my password", "passage": "Click on ...", "clicks": 12, "negative_1": "We open at nine."}
    {"query": "reset my password", "positive": ["...", "..."], "negative": ["..."]}
    {"query": "reset my password", "passage": "Click on ...", "label": 0}
    help-centre/corpus.jsonl, queries.jsonl, qrels/train.tsv
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from embedkit.errors import DataError
from embedkit.evaluation.retrieval import JudgedQuery, RetrievalSet
from embedkit.evaluation.sources import Tables, has_tables, of_split, plain_stem, split_of
from embedkit.protocols import FloatArray
from embedkit.records import Row, read_records
from embedkit.training.corpus import FIRST_ROWS, Rows, columns_of_ids, normalise

QUERY = ("query", "question", "anchor", "text1")
PASSAGE = ("passage", "answer", "document", "positive", "text2")
WEIGHT = ("weight", "clicks")
LABEL = ("label", "relevance", "score")
"""Accepted names of each column; the first that a file has is read. ``text1`` and ``text2`` are those of a TSV."""


class Judgement(NamedTuple):
    """A passage of a query: ``weight`` is above 0 if it answers the query, and 0 if it does not."""

    query: str
    passage: str
    weight: float


@dataclass(frozen=True)
class LabelledQueries:
    """Q queries and P passages, each text once.

    Attributes:
        positives: for each query, the rows of ``passages`` that answer it; at least one.
        weights: for each query, the weights of its positives, ``float32`` above 0.
        negatives: for each query, the rows that are known not to answer it.
    """

    queries: list[str]
    passages: list[str]
    positives: list[Rows]
    weights: list[FloatArray]
    negatives: list[Rows]

    def __len__(self) -> int:
        return len(self.queries)

    @classmethod
    def of(cls, judgements: Iterable[Judgement], passages: Iterable[str] = ()) -> LabelledQueries:
        """Collect the judgements of each query; weights of a repeated pair add up, and one above 0 outweighs 0.

        ``passages`` are those that no query names, to search among. Texts are normalised as those of a corpus.
        """
        rows: dict[str, int] = {}
        found: dict[str, dict[int, float]] = defaultdict(dict)
        for judgement in judgements:
            query, passage = normalise(judgement.query), normalise(judgement.passage)
            if query and passage:
                of_query, row = found[query], rows.setdefault(passage, len(rows))
                of_query[row] = of_query.get(row, 0.0) + judgement.weight
        for passage in filter(None, map(normalise, passages)):
            rows.setdefault(passage, len(rows))
        return cls._collect(found, [*rows])

    @classmethod
    def _collect(cls, found: Mapping[str, Mapping[int, float]], passages: list[str]) -> LabelledQueries:
        answered = {query: grades for query, grades in found.items() if any(grades.values())}
        positives = [
            np.array([row for row, weight in grades.items() if weight > 0], dtype=np.int64)
            for grades in answered.values()
        ]
        weights = [
            np.array([weight for weight in grades.values() if weight > 0], dtype=np.float32)
            for grades in answered.values()
        ]
        negatives = [
            np.array([row for row, weight in grades.items() if weight <= 0], dtype=np.int64)
            for grades in answered.values()
        ]
        return cls([*answered], passages, positives, weights, negatives)

    def choose(self, rows: Iterable[int]) -> LabelledQueries:
        """Return some of the queries, with all passages."""
        chosen = [int(row) for row in rows]
        lists: list[Any] = [self.queries, self.positives, self.weights, self.negatives]
        queries, positives, weights, negatives = ([values[row] for row in chosen] for values in lists)
        return LabelledQueries(queries, self.passages, positives, weights, negatives)

    def as_retrieval(self, name: str) -> RetrievalSet:
        """Return a set to evaluate on; a passage's id is its row."""
        documents = {str(row): text for row, text in enumerate(self.passages)}
        queries = [
            JudgedQuery(query, {str(row): float(weight) for row, weight in zip(rows, weights, strict=True)})
            for query, rows, weights in zip(self.queries, self.positives, self.weights, strict=True)
        ]
        return RetrievalSet(name, documents, queries)

    def judgements(self) -> Iterator[Judgement]:
        """Yield every judgement again."""
        for query, positives, weights, negatives in zip(
            self.queries, self.positives, self.weights, self.negatives, strict=True
        ):
            for row, weight in zip(positives.tolist(), weights.tolist(), strict=True):
                yield Judgement(query, self.passages[row], weight)
            for row in negatives.tolist():
                yield Judgement(query, self.passages[row], 0.0)


def read_queries(path: str | Path, *, split: str = "train") -> LabelledQueries:
    """Read labelled queries from a file, a folder in BEIR's form, or one of the files in its ``qrels``.

    ``split`` is that of a folder, or of rows with a column ``split``. A column of labels or grades, one of
    :data:`LABEL` or :data:`WEIGHT`, marks by 0 a passage that does not answer the query; without any, all do.

    Raises:
        DataError: the source is missing or malformed, or no query has a passage that answers it.
    """
    path = Path(path)
    if path.is_file() and path.parent.name == "qrels" and has_tables(path.parent.parent):
        path, split = path.parent.parent, plain_stem(path)
    if path.is_dir():
        found = _read_folder(path, split)
    else:
        rows = of_split(text_rows(path), split)
        found = LabelledQueries.of(judgement for row in rows for judgement in _judgements(row))
    if not len(found):
        raise DataError(f"{path}: no query has a passage that answers it")
    return found


def text_rows(path: Path) -> Iterator[Row]:
    """Yield the rows of a file.

    Raises:
        DataError: it is missing or malformed, or is a table without names that holds more than a text or a pair.
    """
    records = read_records(path)
    first = list(itertools.islice(records, FIRST_ROWS))
    names = list(first[0][1]) if first and "text1" in first[0][1] else []
    ids = columns_of_ids([record for _, record in first], names[:2])
    if ids or len(names) > 2:
        what = f"{', '.join(ids)} holds ids" if ids else f"it has {len(names)} columns"
        raise DataError(f"{path}: {what}; name them in a first line, such as `query`, `passage` and `label`")
    for line, record in itertools.chain(first, records):
        yield Row(f"{path}:{line}", record)


def is_labelled(path: Path) -> bool:
    """Return whether the rows of a file have a query and a passage that answers it."""
    _, first = next(read_records(path), (0, {}))
    return bool({"query", "question"} & first.keys()) and bool({"passage", "answer"} & first.keys())


def splits(source: str | Path) -> list[str]:
    """Return the names of the splits of a folder in BEIR's form, or of a file with a column ``split``."""
    judged = Path(source) / "qrels"
    if judged.is_dir():
        return sorted(plain_stem(path) for path in judged.iterdir())
    if not Path(source).is_file():
        return []
    return sorted({split for _, record in read_records(Path(source)) if (split := split_of(record))})


def _read_folder(folder: Path, split: str) -> LabelledQueries:
    if not has_tables(folder):
        raise DataError(
            f"{folder} has no labelled queries: expected corpus.jsonl, queries.jsonl and qrels/{split}.tsv"
        )
    tables = Tables(folder, split)
    documents, queries = tables.documents(), tables.queries()
    judgements = (
        Judgement(queries[query], documents[document], max(grade, 0.0))
        for query, grades in tables.judgements().items()
        for document, grade in grades.items()
        if query in queries and document in documents
    )
    return LabelledQueries.of(judgements, documents.values())


def _judgements(row: Row) -> Iterator[Judgement]:
    """Yield the judgements in one row of a file."""
    query, weight = row.text(*QUERY), 1.0
    if any(name in row.fields for name in (*LABEL, *WEIGHT)):
        weight = row.number(*LABEL, *WEIGHT)
    if weight < 0:
        raise DataError(f"{row.place}: expected a label or weight of at least 0, found {weight:g}")
    for passage in _texts(row, next((name for name in PASSAGE if name in row.fields), PASSAGE[0])):
        yield Judgement(query, passage, weight)
    for name in row.fields:
        if name in ("negative", "negatives") or (name.startswith("negative_") and name[9:].isdecimal()):
            for passage in _texts(row, name):
                yield Judgement(query, passage, 0.0)


def _texts(row: Row, name: str) -> list[str]:
    """Return a cell that holds a text, a list of texts, or nothing."""
    value = row.fields.get(name)
    if isinstance(value, list):
        return row.texts(name)
    return [] if value in (None, "") and name.startswith("negative") else [row.text(name)]
