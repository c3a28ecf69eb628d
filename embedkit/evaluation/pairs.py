"""Labelled pairs and triplets: how well similarity separates matching texts from others; and published sets.

Average precision, area under the ROC curve, best accuracy and best F1 are computed from thresholds on scores. A
threshold cannot separate equal scores, so every distinct score is one step of each curve.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain, repeat
from pathlib import Path

import numpy as np
import numpy.typing as npt

from embedkit.errors import DataError
from embedkit.evaluation.results import Resampler, Result
from embedkit.evaluation.tasks import EvaluationSet, Pool, Published, RoleText
from embedkit.protocols import FloatArray
from embedkit.records import HubDataset, Row, read_lines

BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Thresholds:
    """All thresholds on scores, in descending order; items at or above a threshold are selected.

    Attributes:
        predicted: ``(T,) int64``, number of items selected at each threshold; all of them at the last.
        true_positives: ``(T,) int64``, number of positive items among them.
    """

    predicted: IntArray
    true_positives: IntArray

    @classmethod
    def of(cls, scores: FloatArray, labels: BoolArray) -> Thresholds:
        """Return the thresholds of scores ``(N,)``, higher for likelier positives, for labels ``(N,) bool``."""
        order = np.argsort(-scores, kind="stable")
        last_of_tie = np.flatnonzero(np.diff(scores[order], append=np.nan) != 0)
        return cls(last_of_tie + 1, np.cumsum(labels[order], dtype=np.int64)[last_of_tie])

    def average_precision(self) -> float:
        """scikit-learn's ``average_precision_score``: the sum of precision times the gain in recall."""
        gained = np.diff(self.true_positives, prepend=0)
        return float((self.true_positives / self.predicted) @ gained / self.true_positives[-1])

    def roc_auc(self) -> float:
        """Area under the ROC curve: how often a positive item scores above a negative one, ties counting half."""
        false = np.diff(self.predicted - self.true_positives, prepend=0)
        below = self.true_positives - np.diff(self.true_positives, prepend=0) / 2
        return float(false @ below / (self.true_positives[-1] * false.sum()))

    def best_accuracy(self) -> float:
        """The best accuracy over thresholds that do not select all items (MTEB's rule)."""
        right = 2 * self.true_positives - self.predicted + (self.predicted[-1] - self.true_positives[-1])
        return float(np.max(right[:-1], initial=0) / self.predicted[-1])

    def best_f1(self) -> float:
        """The best F1 score over thresholds that do not select all items (MTEB's rule)."""
        return float(
            np.max((2 * self.true_positives / (self.predicted + self.true_positives[-1]))[:-1], initial=0)
        )


MEASURES = {
    "auc": Thresholds.roc_auc,
    "ap": Thresholds.average_precision,
    "best_accuracy": Thresholds.best_accuracy,
    "best_f1": Thresholds.best_f1,
}
"""Measures by name."""


@dataclass(frozen=True)
class LabelledPairs(EvaluationSet):
    """Pairs of texts that match or do not.

    Attributes:
        first: N texts.
        second: N texts.
        labels: ``(N,) bool``.
        headline: a name in :data:`MEASURES`.

    Raises:
        DataError: all pairs have the same label.
    """

    first: list[str]
    second: list[str]
    labels: BoolArray
    headline: str = "ap"

    def __post_init__(self) -> None:
        true = int(self.labels.sum())
        if true in (0, len(self.labels)):
            raise DataError(
                f"{self.name}: expected pairs of both labels, found {true} of 1 and {len(self.labels) - true} of 0"
            )

    def texts(self) -> Iterator[RoleText]:
        """Yield every text to encode, including repeated ones."""
        return zip(repeat(None), chain(self.first, self.second))

    def result(self, pool: Pool) -> Result:
        """Return all measures."""
        scores = pool.similarities(self.first, self.second)
        thresholds = Thresholds.of(scores, self.labels)
        broken = sum("\N{REPLACEMENT CHARACTER}" in a + b for a, b in zip(self.first, self.second, strict=True))
        return self._result(
            {name: measure(thresholds) for name, measure in MEASURES.items()},
            {"pairs": len(self.first)},
            separation(scores, self.labels, MEASURES[self.headline]),
            headline=self.headline,
            notes=[f"{broken:,} pairs contain unreadable characters"] if broken else [],
        )


def separation(scores: FloatArray, labels: BoolArray, measure: Callable[[Thresholds], float]) -> Resampler:
    """Return the pairs behind a measure of how well scores ``(N,) float32`` separate labels ``(N,) bool``."""

    def figure(rows: IntArray) -> float:
        drawn = labels[rows]
        if drawn.all() or not drawn.any():
            return math.nan
        return measure(Thresholds.of(scores[rows], drawn))

    return Resampler([len(labels)], [figure])


FIRST = ("sentence1", "text1", "question1", "question", "sent1", "#1 String")
SECOND = ("sentence2", "text2", "question2", "sentence", "sent2", "#2 String")
LABEL = ("label", "labels", "is_duplicate", "Quality")
COLUMNS = (FIRST, SECOND, LABEL)
"""Accepted names of each column of labelled pairs."""

_LABELS = {
    "1": True, "true": True, "entailment": True, "duplicate": True,
    "0": False, "false": False, "not_entailment": False, "not_duplicate": False,
}  # fmt: skip


def collect_labelled(name: str, rows: Iterable[Row], headline: str = "ap") -> LabelledPairs:
    """Collect labelled pairs from rows of two texts and a label; a row may hold whole columns, as in MTEB 1.

    Raises:
        DataError: a row is malformed, a label is unknown, or all pairs have the same label.
    """
    first, second, labels = list[str](), list[str](), list[bool]()
    for row in _single(rows):
        first.append(row.text(*FIRST))
        second.append(row.text(*SECOND))
        labels.append(_label(row))
    return LabelledPairs(name, first, second, np.array(labels, dtype=np.bool_), headline)


def _read_headless(path: Path) -> Iterator[Row]:
    """Yield rows of the partition of Quora's questions used in papers: label, question, question, id, no header.

    The published files contain truncated characters, which are replaced.

    Raises:
        DataError: the file is missing, or a line has too few or too many fields.
    """
    for place, line in read_lines(path, errors="replace"):
        fields = line.split("\t")
        if len(fields) not in (3, 4):
            raise DataError(f"{place}: expected a label, two questions and an id between TABs, got {line:.60}")
        yield Row(place, dict(zip(("label", "question1", "question2"), fields, strict=False)))


def _single(rows: Iterable[Row]) -> Iterator[Row]:
    for row in rows:
        if not isinstance(row.value(*LABEL), list):
            yield row
            continue
        columns = {
            name: row.value(*names) for name, names in (("text1", FIRST), ("text2", SECOND), ("label", LABEL))
        }
        if len({len(column) for column in columns.values()}) != 1:
            raise DataError(f"{row.place}: expected equal numbers of first texts, second texts and labels")
        for values in zip(*columns.values(), strict=True):
            yield Row(row.place, dict(zip(columns, values, strict=True)))


def _label(row: Row) -> bool:
    value = row.value(*LABEL)
    written = str(int(value)) if isinstance(value, bool | float) and value in (0, 1) else str(value)
    if written.strip().lower() not in _LABELS:
        raise DataError(f"{row.place}: expected a label among {', '.join(_LABELS)}, got {value!r:.40}")
    return _LABELS[written.strip().lower()]


ANCHOR = ("anchor", "query")
TRIPLET_COLUMNS = (ANCHOR, ("positive",), ("negative",))
"""Accepted names of each column of triplets."""


@dataclass(frozen=True)
class Triplets(EvaluationSet):
    """Anchors with a positive and a negative each, as lists of N texts.

    Raises:
        DataError: the set is empty.
    """

    anchors: list[str]
    positives: list[str]
    negatives: list[str]

    def __post_init__(self) -> None:
        if not self.anchors:
            raise DataError(f"{self.name}: expected triplets, found none")

    def texts(self) -> Iterator[RoleText]:
        """Yield every text to encode, including repeated ones."""
        return zip(repeat(None), chain(self.anchors, self.positives, self.negatives))

    def result(self, pool: Pool) -> Result:
        """Return the share of correctly ordered triplets; ties are wrong, as in sentence-transformers."""
        near = pool.similarities(self.anchors, self.positives)
        far = pool.similarities(self.anchors, self.negatives)
        right = (near > far).astype(np.float64)
        return self._result({"accuracy": float(right.mean())}, {"triplets": len(right)}, Resampler.of_rows(right))


def collect_triplets(name: str, rows: Iterable[Row]) -> Triplets:
    """Collect triplets from rows of ``anchor, positive, negative``."""
    texts = [(row.text(*ANCHOR), row.text("positive"), row.text("negative")) for row in rows]
    return Triplets(name, *([text[column] for text in texts] for column in range(3)))


_GLUE = HubDataset("nyu-mll/glue", "bcdcba79d07bc864c1c254ccfcedcce55bcc9a8c")


_table = partial(Published.of_pairs, collect=partial(collect_labelled, headline="auc"))


def _mteb(what: str, size: int, name: str, revision: str) -> Published:
    id_ = f"{name}-pairclassification"
    return _table(
        what, (id_, name), HubDataset(f"mteb/{id_}", revision), size, *_MTEB_FILES, collect=collect_labelled
    )


_MTEB_FILES = ("test.jsonl.gz", "test.jsonl", "data/test-00000-of-00001.parquet")
_QQP = ("qqp", "QQP")
_MRPC = ("mrpc", "MRPC", "MSRParaphraseCorpus")

PAIR_TASKS: dict[str, Published] = {
    "qqp": _table("duplicate questions on Quora", _QQP, None, 10000, "test.tsv", rows=_read_headless),
    "qqp-dev": _table("development part of qqp", _QQP, None, 10000, "dev.tsv", rows=_read_headless),
    "qnli": _table(
        "does a sentence answer a question? GLUE's development part",
        ("qnli", "QNLI"), _GLUE, 5463, "dev.tsv", configuration="qnli", split="validation",
    ),
    "mrpc": _table(
        "paraphrases in news",
        _MRPC, _GLUE, 1725, "msr-para-test.tsv", "msr_paraphrase_test.txt", configuration="mrpc",
    ),
    "mrpc-dev": _table("development part of mrpc", _MRPC, None, 500, "msr-para-val.tsv"),
    "twitter-semeval": _mteb(
        "paraphrases in tweets", 16777, "twittersemeval2015", "70970daeab8776df92f5ea462b6173c0b46fd2d1"
    ),
    "twitter-url": _mteb(
        "tweets that share a link", 51534, "twitterurlcorpus", "8b6510b0b1fa4e4c4f879467980e9be563ec1cdf"
    ),
    "sprint": _mteb(
        "duplicate questions of Sprint",
        101000, "sprintduplicatequestions", "d66bd1f72af766a5cc4b0ca5e00c162f89e8cc46",
    ),
}  # fmt: skip
