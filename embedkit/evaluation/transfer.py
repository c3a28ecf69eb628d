"""Transfer: what a linear classifier can predict from frozen embeddings of texts, or of pairs of texts.

The sets are SentEval's and similar ones, from files. Texts are split at whitespace and joined by single spaces,
as in SentEval. They are ordered by their numbers of words and then by class, as in SentEval before it makes
folds.

SentEval (Conneau and Kiela, 2018, arXiv:1803.05449) has two classifiers: a linear layer trained by Adam, and
scikit-learn's logistic regression (its setting ``usepytorch=False``), whose optimum does not depend on batches or
an initial state. This is the second, run to convergence. Folds, seeds, regularisation strengths and
their selection follow its ``tools/validation.py``.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain, repeat
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from embedkit.errors import DataError
from embedkit.evaluation.pairs import FIRST, LABEL, SECOND
from embedkit.evaluation.results import Resampler, Result
from embedkit.evaluation.sources import Source, first_file, read_rows
from embedkit.evaluation.tasks import EvaluationSet, Pool, Published, PublishedAverage, RoleText
from embedkit.extras import require
from embedkit.protocols import FloatArray
from embedkit.records import HubDataset, read_lines

IntArray = npt.NDArray[np.int64]
Float64Array = npt.NDArray[np.float64]

_SEED = 1111
_FOLDS = 10
_STRENGTHS = [2.0**power for power in range(-2, 4)]
"""C, the inverse of weight decay, for nested folds and for a development set."""
_FOLD_STRENGTHS = [2.0**power for power in range(-1, 6)]
"""C, for folds of the training set."""
_MOST_ITERATIONS = 1000

_SHOTS, _EXPERIMENTS, _SHOT_SEED, _SHOT_ITERATIONS = 8, 10, 42, 100

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Examples:
    """Features ``(N, F) float32`` and classes ``(N,) int64``."""

    features: FloatArray
    labels: IntArray

    def of(self, rows: IntArray) -> Examples:
        """Return the examples at ``rows``."""
        return Examples(self.features[rows], self.labels[rows])


def nested_folds(examples: Examples) -> Float64Array:
    """SentEval's protocol for MR, CR, SUBJ and MPQA: ten folds, each with a strength selected by ten inner folds.

    Returns:
        ``(N,) float64``: N times the contribution of each example, tested once, to the mean fold accuracy.

    Raises:
        DataError: a class has too few examples for ten folds.
        MissingExtraError: scikit-learn is not installed.
    """
    scores = np.zeros(len(examples.labels))
    for number, (train, test) in enumerate(_folds(examples), start=1):
        inner = examples.of(train)
        strength = _best(_STRENGTHS, [(inner.of(a), inner.of(b)) for a, b in _folds(inner)])
        _LOG.info("fold %d of %d: C = %g", number, _FOLDS, strength)
        correct = _correct(inner, examples.of(test), strength)
        scores[test] = correct * (len(scores) / (_FOLDS * len(test)))
    return scores


def folds_then_test(train: Examples, test: Examples) -> Float64Array:
    """SentEval's protocol for TREC and MRPC: the strength is selected by ten folds of the training set.

    Returns:
        ``(N,) float64``: 1 for each correctly classified test example, else 0.
    """
    return _correct(train, test, _best(_FOLD_STRENGTHS, [(train.of(a), train.of(b)) for a, b in _folds(train)]))


def validated_test(
    train: Examples, dev: Examples, test: Examples, *, strengths: Sequence[float] = ()
) -> Float64Array:
    """SentEval's protocol for SST2 and SICK-E: the strength is selected on a development set.

    ``strengths`` replaces the usual candidates for C; a single one needs no selection (SNLI).

    Returns:
        ``(N,) float64``: 1 for each correctly classified test example, else 0.
    """
    wanted = strengths or _STRENGTHS
    return _correct(train, test, wanted[0] if len(wanted) == 1 else _best(wanted, [(train, dev)]))


def few_shot(train: Examples, test: Examples) -> Float64Array:
    """MTEB's protocol: ten times, train on eight examples of each class.

    Returns:
        ``(N,) float64``: the share of the ten classifiers that classify each test example correctly.
    """
    rows = list(range(len(train.labels)))
    scores = np.zeros(len(test.labels))
    for _ in range(_EXPERIMENTS):
        # As in MTEB: the seed is the same each time, and each shuffle continues from the previous order.
        np.random.RandomState(_SHOT_SEED).shuffle(rows)
        chosen = train.of(np.array(_first_of_each(rows, train.labels), dtype=np.int64))
        scores += _correct(chosen, test, 1.0, iterations=_SHOT_ITERATIONS)
    return scores / _EXPERIMENTS


def _first_of_each(rows: Sequence[int], labels: IntArray) -> list[int]:
    """Return the first rows of each class, in their order."""
    taken: dict[int, int] = {}
    chosen = []
    for row in rows:
        label = int(labels[row])
        taken[label] = taken.get(label, 0) + 1
        if taken[label] <= _SHOTS:
            chosen.append(row)
    return chosen


def _best(strengths: Sequence[float], parts: Sequence[tuple[Examples, Examples]]) -> float:
    """Return the first strength with the best mean accuracy, in percent with two digits, as SentEval compares."""
    accuracies = [
        float(np.mean([_correct(train, dev, strength).mean() for train, dev in parts])) for strength in strengths
    ]
    return strengths[int(np.argmax([round(100 * accuracy, 2) for accuracy in accuracies]))]


def _correct(
    train: Examples, test: Examples, strength: float, *, iterations: int = _MOST_ITERATIONS
) -> Float64Array:
    """Train a classifier; return 1 for each correctly classified test example, else 0."""
    model = _sklearn("linear_model").LogisticRegression(C=strength, max_iter=iterations)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", _sklearn("exceptions").ConvergenceWarning)  # MTEB stops early on purpose
        model.fit(train.features, train.labels)
    return np.asarray(model.predict(test.features) == test.labels, dtype=np.float64)


def _folds(examples: Examples) -> list[tuple[IntArray, IntArray]]:
    """Return the training and test rows of ten stratified folds."""
    fewest = int(np.unique(examples.labels, return_counts=True)[1].min())
    if fewest < _FOLDS:
        raise DataError(f"expected at least {_FOLDS} examples of each class, one for each fold, found {fewest}")
    splitter = _sklearn("model_selection").StratifiedKFold(n_splits=_FOLDS, shuffle=True, random_state=_SEED)
    return list(splitter.split(examples.features, examples.labels))


@cache
def _sklearn(module: str) -> Any:
    return require(f"sklearn.{module}", extra="bench")


Features = Callable[..., FloatArray]
"""Maps the embeddings of each column, ``(N, D) float32``, to the classifier's input."""


def single(u: FloatArray, /) -> FloatArray:
    """Return the embedding itself, ``(N, D)``."""
    return u


def differences_and_products(u: FloatArray, v: FloatArray, /) -> FloatArray:
    """``[|u - v|, u * v]``, ``(N, 2D)``: SentEval's MRPC and SICK-E."""
    return np.concatenate([np.abs(u - v), u * v], axis=1)


def pairs_differences_and_products(u: FloatArray, v: FloatArray, /) -> FloatArray:
    """``[u, v, u * v, |u - v|]``, ``(N, 4D)``: SentEval's SNLI."""
    return np.concatenate([u, v, u * v, np.abs(u - v)], axis=1)


_OTHERS = ("in the training part", "in the development part")
"""Units of the sizes of the parts before the test part."""


@dataclass(frozen=True)
class Probe(EvaluationSet):
    """Texts, or pairs of texts, each with a class that a classifier predicts from their embeddings.

    Attributes:
        columns: one list of N texts, or two.
        labels: ``(N,) int64``, classes as numbers from 0.
        parts: number of texts of each part that the protocol uses, in their order, the test part last.
        protocol: maps the examples of each part to T times each test example's contribution to the accuracy.
        features: maps the embeddings of each column to the classifier's input.

    Raises:
        DataError: a part is empty.
    """

    needs_embeddings: ClassVar[bool] = True

    columns: tuple[list[str], ...]
    labels: IntArray
    parts: Mapping[str, int]
    protocol: Callable[..., Float64Array]
    features: Features

    def __post_init__(self) -> None:
        for part, size in self.parts.items():
            if not size:
                raise DataError(f"{self.name}: expected classified texts in the part {part}, found none")

    def texts(self) -> Iterator[RoleText]:
        """Yield every text to encode, including repeated ones."""
        return zip(repeat(None), chain(*self.columns))

    def result(self, pool: Pool) -> Result:
        """Return the accuracy on the test part."""
        features = self.features(*(pool.embeddings(texts) for texts in self.columns))
        ends = np.cumsum(list(self.parts.values()))[:-1]
        parts = map(Examples, np.split(features, ends), np.split(self.labels, ends))
        scores = self.protocol(*parts)
        unit = "texts" if len(self.columns) == 1 else "pairs"
        *others, size = self.parts.values()
        sizes = {unit: size, **dict(zip(_OTHERS, others, strict=False))}
        return self._result({"accuracy": float(scores.mean())}, sizes, Resampler.of_rows(scores))


_TREC = ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")
_SICK = ("CONTRADICTION", "NEUTRAL", "ENTAILMENT")
_NLI = ("entailment", "neutral", "contradiction")

_Row = tuple[tuple[str, ...], int]
"""Texts and a class."""

_Parts = dict[str, list[_Row]]
"""Training, development and test part, as far as a protocol uses them."""


def _read_binary(folder: Path, positive: str, negative: str) -> _Parts:
    """Read MR, CR, SUBJ or MPQA, two files with one text per line, as one part."""
    files = ((1, positive), (0, negative))
    return {"test": [((line,), label) for label, file in files for _, line in _lines(folder, file)]}


def _read_sst(folder: Path) -> _Parts:
    """Read SST2: ``stsa.binary.SPLIT`` (class, text) or SentEval's ``sentiment-SPLIT`` (text, TAB, class)."""
    parts: _Parts = {}
    for split in ("train", "dev", "test"):
        if (folder / f"sentiment-{split}").is_file():
            lines = read_lines(folder / f"sentiment-{split}")
            fields = [(place, *line.rpartition("\t")[::2]) for place, line in lines]
        else:
            lines = read_lines(first_file(folder, f"stsa.binary.{split}"))
            fields = [(place, *line.partition(" ")[::-2]) for place, line in lines]
        parts[split] = [((text,), _class(place, label, ("0", "1"))) for place, text, label in fields]
    return parts


def _read_trec(folder: Path) -> _Parts:
    """Read TREC's questions by their coarse classes."""
    files = {"train": "train_5500.label", "test": "TREC_10.label"}
    return {part: [_trec_row(*line) for line in _lines(folder, file)] for part, file in files.items()}


def _read_mrpc(folder: Path) -> _Parts:
    """Read MRPC's two published parts; the first may be split into ``-train`` and ``-val``."""
    files = {"train": ["msr-para-train.tsv", "msr-para-val.tsv"], "test": ["msr-para-test.tsv"]}
    if (folder / "msr_paraphrase_train.txt").is_file():
        files = {"train": ["msr_paraphrase_train.txt"], "test": ["msr_paraphrase_test.txt"]}
    return {
        part: [
            ((row.text(*FIRST), row.text(*SECOND)), _class(row.place, row.text(*LABEL), ("0", "1")))
            for name in names
            for row in read_rows(first_file(folder, name))
        ]
        for part, names in files.items()
    }


def _read_sick_entailment(folder: Path) -> _Parts:
    """Read SICK's entailment judgements, as released for SemEval-2014."""
    files = {"train": "SICK_train.txt", "dev": "SICK_trial.txt", "test": "SICK_test_annotated.txt"}
    return {
        part: [
            (
                (row.text("sentence_A"), row.text("sentence_B")),
                _class(row.place, row.text("entailment_judgment"), _SICK),
            )
            for row in read_rows(first_file(folder, file))
        ]
        for part, file in files.items()
    }


def _read_nli(folder: Path) -> _Parts:
    """Read SNLI in SentEval's form: the line-parallel files ``s1.SPLIT``, ``s2.SPLIT`` and ``labels.SPLIT``."""
    parts: _Parts = {}
    for split in ("train", "dev", "test"):
        first, second, labels = (list(_lines(folder, f"{name}.{split}")) for name in ("s1", "s2", "labels"))
        if not len(first) == len(second) == len(labels):
            raise DataError(
                f"{folder}: s1, s2 and labels of {split} have {len(first)}, {len(second)}, {len(labels)} lines"
            )
        parts[split] = [
            ((a, b), _class(place, label, _NLI))
            for (_, a), (_, b), (place, label) in zip(first, second, labels, strict=True)
        ]
    return parts


def _read_banking(source: Source) -> _Parts:
    """Read texts with the name or number of an intent."""
    texts = {
        part: [
            (row.text("text"), row.identifier("category", "label"))
            for row in (
                source.rows(split=part) if isinstance(source, HubDataset) else read_rows(source / f"{part}.csv")
            )
        ]
        for part in ("train", "test")
    }
    labels = sorted({label for rows in texts.values() for _, label in rows})
    known = {label: number for number, label in enumerate(labels)}
    return {part: [((text,), known[label]) for text, label in rows] for part, rows in texts.items()}


def _lines(folder: Path, file: str) -> Iterator[tuple[str, str]]:
    return read_lines(first_file(folder, file), encoding="latin-1")


def _as_in_senteval(rows: list[_Row]) -> list[_Row]:
    """Return rows with single spaces between words, ordered by their numbers of words and then by class."""
    split = [(tuple(text.split() for text in texts), label) for texts, label in rows]
    split.sort(key=lambda row: (*map(len, row[0]), row[1]))
    return [(tuple(map(" ".join, texts)), label) for texts, label in split]


def _trec_row(place: str, line: str) -> _Row:
    """Parse a line; as in SentEval, quotes are removed from the question."""
    label, _, rest = line.replace("`", "").replace("'", "").partition(":")
    return (rest.partition(" ")[2],), _class(place, label, _TREC)


def _class(place: str, label: str, known: tuple[str, ...]) -> int:
    if label.strip() not in known:
        raise DataError(f"{place}: expected one of the classes {', '.join(known)}, got {label.strip()!r:.40}")
    return known.index(label.strip())


_NO_DECAY = [1e9]


def _probe(
    what: str,
    folders: tuple[str, ...],
    hub: HubDataset | None,
    read: Callable[[Any], _Parts],
    protocol: Callable[..., Float64Array],
    sizes: tuple[int, ...],
    features: Features = single,
    order: Callable[[list[_Row]], list[_Row]] = _as_in_senteval,
) -> Published:
    """Return a set: its reader, from a folder or the hub's data set, its protocol, and the sizes of its parts."""

    def load(name: str, source: Source) -> Probe:
        parts = {part: order(rows) for part, rows in read(source).items()}
        texts, labels = zip(*chain(*parts.values()), strict=True) if any(parts.values()) else ((), ())
        columns = tuple(list(column) for column in zip(*texts, strict=True))
        labelled = np.array(labels, dtype=np.int64)
        return Probe(
            name, columns, labelled, {part: len(rows) for part, rows in parts.items()}, protocol, features
        )

    unit = "texts" if features is single else "pairs"
    expected = {unit: sizes[-1], **dict(zip(_OTHERS, sizes[:-1], strict=False))}
    return Published(what, folders, hub, expected, load)


_SETS = {
    "mr": _probe(
        "sentiment of film reviews",
        ("MR",), None, partial(_read_binary, positive="rt-polarity.pos", negative="rt-polarity.neg"),
        nested_folds, (10662,),
    ),
    "cr": _probe(
        "sentiment of product reviews",
        ("CR",), None, partial(_read_binary, positive="custrev.pos", negative="custrev.neg"),
        nested_folds, (3775,),
    ),
    "subj": _probe(
        "subjective or objective",
        ("SUBJ",), None, partial(_read_binary, positive="subj.objective", negative="subj.subjective"),
        nested_folds, (10000,),
    ),
    "mpqa": _probe(
        "polarity of opinions",
        ("MPQA",), None, partial(_read_binary, positive="mpqa.pos", negative="mpqa.neg"),
        nested_folds, (10606,),
    ),
    "sst2": _probe(
        "sentiment of sentences of film reviews",
        ("SST2", "SST/binary"), None, _read_sst, validated_test, (6920, 872, 1821),
    ),
    "trec": _probe("types of questions", ("TREC",), None, _read_trec, folds_then_test, (5452, 500)),
    "mrpc-transfer": _probe(
        "paraphrases in news, by a classifier",
        ("mrpc", "MRPC", "MSRParaphraseCorpus"), None, _read_mrpc, folds_then_test, (4076, 1725),
        differences_and_products,
    ),
    "sick-e": _probe(
        "inference, SICK",
        ("SICK",), None, _read_sick_entailment, validated_test, (4500, 500, 4927), differences_and_products,
    ),
    "snli": _probe(
        "inference, SNLI",
        ("SNLI",), None, _read_nli, partial(validated_test, strengths=_NO_DECAY), (549367, 9842, 9824),
        pairs_differences_and_products,
    ),
}  # fmt: skip

_SEVEN = ("mr", "cr", "subj", "mpqa", "sst2", "trec", "mrpc-transfer")
"""The sets in the papers' average."""

_BANKING_HUB = HubDataset("mteb/banking77", "0fd18e25b25c072e09e0d92ab615fda904d66300")

TRANSFER_TASKS: dict[str, Published | PublishedAverage] = {
    "transfer": PublishedAverage(
        "the next seven sets, and their mean", "seven sets", {name: _SETS[name] for name in _SEVEN}
    ),
    **_SETS,
    "banking77": _probe(
        "intents of bank customers",
        ("banking77",),
        _BANKING_HUB,
        _read_banking,
        few_shot,
        (10003, 3080),
        order=lambda rows: rows,
    ),
}
