"""The data of an adaptation: documents, labelled queries, queries without labels, and graded pairs."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from embedkit.atomic import expanded
from embedkit.errors import DataError, InputError
from embedkit.evaluation.sources import folder_rows, has_tables, split_of
from embedkit.evaluation.sts import FIRST, SCORE, SECOND, ScoredPairs, load_scored_pairs
from embedkit.records import Row, read_records
from embedkit.runtime.arguments import check_iterable, check_path
from embedkit.runtime.encoder import Encoder
from embedkit.serving.retrieval.collection import Collection
from embedkit.serving.retrieval.documents import below, heading_of
from embedkit.serving.retrieval.splitting import is_text_source, split_documents
from embedkit.serving.retrieval.store.protocol import MANIFEST
from embedkit.training.corpus import normalise
from embedkit.training.pairs import PASSAGE, QUERY, Judgement, LabelledQueries, read_queries, splits, text_rows

Sources = Sequence[str | os.PathLike[str]]

_HELD_OUT = 0.2  # share of the labels
_FEW = 150  # labels, of which a fifth decides nothing
_FOLDS = 4
_MOST_HELD_OUT = 500
_FEWEST_TITLES = 20
_FEWEST_WORDS = 4
_SENTENCE = re.compile(r"(?<=[.!?]) ")
_TEXT = ("text", "content", "body", "passage", "sentence")
_TRAINED = (None, "train")  # splits
_SEED = 7  # of the held-out data, which are the same for all seeds of a run


@dataclass(frozen=True, kw_only=True)
class Files:
    """The files and folders that an adaptation is given, see :func:`embedkit.adaptation.adapt`."""

    documents: Sources = ()
    pairs: Sources = ()
    queries: Sources = ()
    graded: Sources = ()

    def __post_init__(self) -> None:
        for name in ("documents", "pairs", "queries", "graded"):
            given = getattr(self, name)
            listed = [given] if isinstance(given, (str, os.PathLike)) else check_iterable(given, name)
            object.__setattr__(self, name, tuple(check_path(path, name) for path in listed))
        if not (self.documents or self.pairs or self.queries or self.graded):
            raise InputError("there is nothing to adapt to: give documents, pairs, queries or graded pairs")


@dataclass(frozen=True, kw_only=True)
class Data:
    """The content of the files, divided into training data and held-out data.

    Attributes:
        documents: passages that the encoder does not truncate, below their titles and headings, each once.
        titles: titles and headings, with the passages below them.
        labelled: labelled queries to train on, among all passages; None without any.
        held_out: labelled queries to measure on, or else titles or first sentences; None without any, and where
            labels are so few that :meth:`folds` divides them.
        queries: texts of people without labels.
        graded: pairs to train on; None without any.
        held_out_graded: pairs to measure on.
        found: a sentence for each source.
    """

    documents: list[str]
    titles: LabelledQueries | None
    labelled: LabelledQueries | None
    held_out: LabelledQueries | None
    queries: list[str]
    graded: ScoredPairs | None
    held_out_graded: ScoredPairs | None
    found: list[str]

    @property
    def texts(self) -> list[str]:
        """Passages: the documents, else those with labels."""
        return self.documents or (self.labelled.passages if self.labelled is not None else [])

    def folds(self) -> list[Data]:
        """Return parts that train on some of few labelled queries and hold out the others, or nothing."""
        if self.held_out is not None or self.labelled is None:
            return []
        rows = np.random.default_rng(_SEED).permutation(len(self.labelled))
        parts = [self.labelled.choose(np.sort(part)) for part in np.array_split(rows, _FOLDS)]
        others = [self.labelled.choose(np.setdiff1d(rows, part)) for part in np.array_split(rows, _FOLDS)]
        return [replace(self, labelled=o, held_out=p) for o, p in zip(others, parts, strict=True)]


def read(files: Files, encoder: Encoder) -> Data:
    """Read all files, and hold out a part.

    Of labelled queries a fifth is held out, or their split ``dev`` if they have one; without labels a fifth
    of the titles. The choice does not depend on the seed of the run.

    Raises:
        DataError: a file is missing or malformed, or holds nothing of its kind.
    """
    found = _Found(encoder)
    for source in files.documents:
        found.add(expanded(source))
    for source in files.pairs:
        found.add_pairs(expanded(source))
    for source in files.queries:
        found.add_queries(expanded(source))
    for source in files.graded:
        found.add_graded(expanded(source))
    return found.divided()


@dataclass
class _Found:
    encoder: Encoder
    documents: dict[str, tuple[str, str]] = field(default_factory=dict)  # with title and heading
    titles: list[Judgement] = field(default_factory=list)
    labelled: list[LabelledQueries] = field(default_factory=list)
    held_out: list[LabelledQueries] = field(default_factory=list)
    queries: dict[str, None] = field(default_factory=dict)
    graded: list[ScoredPairs] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    def add(self, source: Path) -> None:
        """Add a source by its content: documents, labelled queries or graded pairs."""
        if source.is_dir() and (source / MANIFEST).is_file():
            collection = Collection.open(source)
            documents, _ = collection.sample(len(collection))
            self._add_documents(source, ({"text": each.text, **(each.metadata or {})} for each in documents))
        elif source.is_dir() and has_tables(source):
            self._add_documents(source, map(_document, folder_rows(source, ("corpus",), "train")))
            if "train" in splits(source):
                self.add_pairs(source)
        elif source.is_dir():
            self._add_documents(source, split_documents(source, self.encoder))
        else:
            self._add_file(source)

    def _add_file(self, source: Path) -> None:
        if source.suffix != ".txt" and is_text_source(source):
            self._add_documents(source, split_documents(source, self.encoder))
            return
        rows = read_records(source)
        first = next(rows, None)
        if first is None:
            raise DataError(f"{source} holds no text")
        columns = set(first[1])
        if columns & set(QUERY) and columns & set(PASSAGE):
            self.add_pairs(source)
        elif columns & set(FIRST) and columns & set(SECOND) and columns & set(SCORE):
            self.add_graded(source)
        else:
            records = itertools.chain([first], rows)
            trained = ((n, record) for n, record in records if split_of(record) in _TRAINED)
            self._add_documents(source, (_document(Row(f"{source}:{n}", record)) for n, record in trained))

    def add_pairs(self, source: Path) -> None:
        """Add labelled queries; their split ``dev`` is held out."""
        labelled = read_queries(source)
        self.labelled.append(labelled)
        self.lines.append(f"{source}: {len(labelled):,} labelled queries, {len(labelled.passages):,} passages")
        if "dev" in splits(source):
            self.held_out.append(read_queries(source, split="dev"))
            self.lines[-1] += f"; {len(self.held_out[-1]):,} queries of its split dev are held out"

    def add_queries(self, source: Path) -> None:
        """Add queries without labels: a text a line, or records with a query or text."""
        before = len(self.queries)
        for row in text_rows(source):
            text = normalise(row.text(*QUERY, "text"))
            if text and split_of(row.fields) in _TRAINED:
                self.queries[text] = None
        self.lines.append(f"{source}: {len(self.queries) - before:,} queries without labels")

    def add_graded(self, source: Path) -> None:
        """Add graded pairs."""
        self.graded.append(load_scored_pairs(source, split="train"))
        self.lines.append(f"{source}: {len(self.graded[-1]):,} graded pairs")

    def _add_documents(self, source: Path, records: Iterable[dict[str, Any]]) -> None:
        before = len(self.documents)
        texts, above = [], []
        for record in records:
            text, title, heading = normalise(record["text"]), _title(record), normalise(heading_of(record))
            if title and title != text:
                self.titles.append(Judgement(title, text, 1.0))
            texts.append(text or title)
            above.append((title, heading))
        windows = self.encoder.windows(texts, role="document", headings=[heading for _, heading in above])
        for text, titles, spans in zip(texts, above, windows, strict=True):
            for start, end in spans:
                self.documents.setdefault(normalise(text[start:end]), titles)
        self.lines.append(f"{source}: {len(self.documents) - before:,} passages")

    def divided(self) -> Data:
        """Return everything, divided into training data and held-out data."""
        known = {passage for part in [*self.labelled, *self.held_out] for passage in part.passages}
        documents = self._below_headings(alone=known)
        labelled, held_out = self._labels(documents)
        titles = LabelledQueries.of(self.titles) if self.titles else None
        if labelled is None and titles is not None and len(titles) >= _FEWEST_TITLES:
            titles, held_out = _divide(titles)
            documents = self._below_headings(held_out=set(held_out.queries))
        elif labelled is None and not self.graded:
            documents, held_out = _without_beginnings(documents)
        graded = _joined(self.graded)
        held_out_graded = None
        if graded is not None:
            rows = np.random.default_rng(_SEED).permutation(len(graded))
            count = min(_MOST_HELD_OUT, max(2, round(_HELD_OUT * len(graded))))
            held_out_graded, graded = _chosen(graded, rows[:count]), _chosen(graded, rows[count:])
        return Data(
            documents=documents,
            titles=titles,
            labelled=labelled,
            held_out=held_out,
            queries=[*self.queries],
            graded=graded,
            held_out_graded=held_out_graded,
            found=self.lines,
        )

    def _below_headings(self, *, alone: Container[str] = (), held_out: Container[str] = ()) -> list[str]:
        """Return the documents below their headings, as a collection embeds them.

        Those that are labelled ``alone`` stay so, and none is below a title that is ``held_out``.
        """
        found = dict[str, None]()
        for text, (title, heading) in self.documents.items():
            is_below = text not in alone and title not in held_out
            found[normalise(below(heading, text)) if is_below else text] = None
        return [*filter(None, found)]

    def _labels(self, documents: Sequence[str]) -> tuple[LabelledQueries | None, LabelledQueries | None]:
        if not self.labelled:
            return None, None
        labelled = _merged(self.labelled, documents)
        if not self.held_out:
            if len(labelled) < _FOLDS:
                raise DataError(f"{len(labelled)} labelled queries are too few: expected at least {_FOLDS}")
            return (labelled, None) if len(labelled) < _FEW else _divide(labelled)
        held_out = _merged(self.held_out, documents)
        known = set(held_out.queries)
        return labelled.choose(row for row, query in enumerate(labelled.queries) if query not in known), held_out


def _merged(parts: Sequence[LabelledQueries], passages: Iterable[str]) -> LabelledQueries:
    judgements = (judgement for part in parts for judgement in part.judgements())
    known = (passage for part in parts for passage in part.passages)
    return LabelledQueries.of(judgements, [*known, *passages])


def _divide(labelled: LabelledQueries) -> tuple[LabelledQueries, LabelledQueries]:
    """Hold out a part of the queries."""
    count = min(_MOST_HELD_OUT, round(_HELD_OUT * len(labelled)))
    rows = np.random.default_rng(_SEED).permutation(len(labelled))
    return labelled.choose(np.sort(rows[count:])), labelled.choose(np.sort(rows[:count]))


def _without_beginnings(documents: Sequence[str]) -> tuple[list[str], LabelledQueries | None]:
    """Take the first sentence off a fifth of the documents; it is the query that has to find the rest."""
    kept, found = [*documents], list[Judgement]()
    rows = np.random.default_rng(_SEED).permutation(len(documents))[: round(_HELD_OUT * len(documents))]
    for row in rows[:_MOST_HELD_OUT].tolist():
        parts = _SENTENCE.split(documents[row], maxsplit=1)
        if len(parts) == 2 and all(part.count(" ") >= _FEWEST_WORDS for part in parts):
            found.append(Judgement(parts[0], parts[1], 1.0))
            kept[row] = parts[1]
    return (kept, LabelledQueries.of(found, kept)) if len(found) >= _FEWEST_TITLES else ([*documents], None)


def _joined(parts: Sequence[ScoredPairs]) -> ScoredPairs | None:
    """Join graded pairs, each file's scores as shares of their range."""
    if not parts:
        return None
    first, second = ([text for part in parts for text in getattr(part, side)] for side in ("first", "second"))
    scores = [(part.scores - part.scores.min()) / (np.ptp(part.scores) or 1.0) for part in parts]
    return ScoredPairs("graded pairs", first, second, np.concatenate(scores))


def _chosen(pairs: ScoredPairs, rows: Iterable[int]) -> ScoredPairs:
    rows = [int(row) for row in rows]
    first, second = ([texts[row] for row in rows] for texts in (pairs.first, pairs.second))
    return ScoredPairs(pairs.name, first, second, pairs.scores[rows])


def _document(row: Row) -> dict[str, Any]:
    return {**row.fields, "text": row.text(*_TEXT)}


def _title(record: dict[str, Any]) -> str:
    """Return the title of a record, or the innermost heading above a passage."""
    value = record.get("title") or str(record.get("section") or "").rpartition(" > ")[2]
    return normalise(value) if isinstance(value, str) else ""


def sample(documents: Sequence[str], most: int) -> list[str]:
    """Return at most so many documents, in their order."""
    rows = np.random.default_rng([_SEED, 1]).permutation(len(documents))[:most]
    return [documents[row] for row in np.sort(rows)]


def spans(documents: Sequence[str], *, each: int = 8) -> Iterator[str]:
    """Yield random spans of 4 to 16 words of documents, ``each`` of a document: as short as queries."""
    generator = np.random.default_rng([_SEED, 2])
    for document in documents:
        words = document.split(" ")
        for _ in range(each):
            length = int(generator.integers(4, 17))
            start = int(generator.integers(0, max(1, len(words) - length + 1)))
            yield " ".join(words[start : start + length])
