"""Transfer: what a linear classifier can predict from frozen embeddings of texts, or of pairs of texts.

The sets are SentEval's and similar ones, from files. Texts are split at whitespace and joined by single spaces,
as in SentEval. They are ordered by their numbers of words and then by class, as in SentEval before it makes
folds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from embedkit.errors import DataError
from embedkit.evaluation.classifiers import (
    Examples,
    Float64Array,
    few_shot,
    folds_then_test,
    nested_folds,
    validated_test,
)
from embedkit.evaluation.pairs import FIRST, LABEL, SECOND
from embedkit.evaluation.results import Resampler, Result, build_result
from embedkit.evaluation.sources import Source, first_file, read_rows
from embedkit.evaluation.tasks import (
    Conventions,
    Pool,
    PublishedAverage,
    PublishedSet,
    RoleText,
    without_role,
)
from embedkit.protocols import FloatArray
from embedkit.records import HubDataset, read_lines


@dataclass(frozen=True)
class ClassifiedTexts:
    """One part of a set: texts, or pairs of texts, each with a class.

    Attributes:
        name: name of the part in messages.
        columns: one list of N texts, or two.
        labels: N classes, numbers from 0.

    Raises:
        DataError: the part is empty.
    """

    name: str
    columns: tuple[list[str], ...]
    labels: list[int]

    def __post_init__(self) -> None:
        if not self.labels:
            raise DataError(f"{self.name}: expected classified texts, found none")

    def examples(self, pool: Pool, features: Features) -> Examples:
        """Return features and classes."""
        embeddings = [pool.embeddings(texts) for texts in self.columns]
        return Examples(features(*embeddings), np.array(self.labels, dtype=np.int64))


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


@dataclass(frozen=True)
class Probe:
    """A set and its protocol.

    Attributes:
        parts: training, development and test part, as far as the protocol uses them.
        protocol: maps the examples of each part to N times each test example's contribution to the accuracy.
        expected: published sizes of the parts.
    """

    needs_embeddings: ClassVar[bool] = True

    name: str
    parts: Sequence[ClassifiedTexts]
    protocol: Callable[..., Float64Array]
    features: Features
    source: str
    expected: tuple[int, ...]

    def texts(self) -> Iterator[RoleText]:
        """Yield every text to encode, including repeated ones."""
        return without_role(text for part in self.parts for column in part.columns for text in column)

    def result(self, pool: Pool) -> Result:
        """Return the accuracy on the test part."""
        scores = self.protocol(*(part.examples(pool, self.features) for part in self.parts))
        sizes = tuple(len(part.labels) for part in self.parts)
        complete = sizes == self.expected
        differs = f"parts of {_listed(sizes)} texts; the published set has {_listed(self.expected)}"
        result = build_result(
            self.name,
            {"accuracy": float(scores.mean())},
            sizes={"texts" if len(self.parts[0].columns) == 1 else "pairs": sizes[-1]},
            published=None,
            source=self.source,
            notes=[] if complete else [differs],
            resampler=Resampler.of_rows(scores),
        )
        return replace(result, expected=self.expected[-1], complete=complete)


def _listed(sizes: Sequence[int]) -> str:
    return ", ".join(f"{size:,}" for size in sizes)


_TREC = ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")
_SICK = ("CONTRADICTION", "NEUTRAL", "ENTAILMENT")
_NLI = ("entailment", "neutral", "contradiction")

_Row = tuple[tuple[str, ...], int]
"""Texts and a class."""


def _load_binary(folder: Path, positive: str, negative: str) -> list[ClassifiedTexts]:
    """Load MR, CR, SUBJ or MPQA, two files with one text per line, as one part."""
    rows: list[_Row] = [
        ((line,), label) for label, file in ((1, positive), (0, negative)) for _, line in _lines(folder, file)
    ]
    return [_part(folder.name, rows)]


def _load_sst(folder: Path) -> list[ClassifiedTexts]:
    """Load SST2: ``stsa.binary.SPLIT`` (class, text) or SentEval's ``sentiment-SPLIT`` (text, TAB, class)."""
    return [_part(f"SST2 {split}", _sst_rows(folder, split)) for split in ("train", "dev", "test")]


def _load_trec(folder: Path) -> list[ClassifiedTexts]:
    """Load TREC's questions by their coarse classes: ``train_5500.label`` and ``TREC_10.label``."""
    return [
        _part(f"TREC {file}", [_trec_row(*line) for line in _lines(folder, file)])
        for file in ("train_5500.label", "TREC_10.label")
    ]


def _load_mrpc(folder: Path) -> list[ClassifiedTexts]:
    """Load MRPC's two published parts; the first may be split into ``-train`` and ``-val``."""
    if (folder / "msr_paraphrase_train.txt").is_file():
        files = [["msr_paraphrase_train.txt"], ["msr_paraphrase_test.txt"]]
    else:
        files = [["msr-para-train.tsv", "msr-para-val.tsv"], ["msr-para-test.tsv"]]
    return [
        _part(
            f"MRPC {names[0]}",
            [
                ((row.text(*FIRST), row.text(*SECOND)), _class(row.place, row.text(*LABEL), ("0", "1")))
                for name in names
                for row in read_rows(first_file(folder, name))
            ],
        )
        for names in files
    ]


def _load_sick_entailment(folder: Path) -> list[ClassifiedTexts]:
    """Load SICK's entailment judgements, as released for SemEval-2014."""
    return [
        _part(
            f"SICK {split}",
            [
                (
                    (row.text("sentence_A"), row.text("sentence_B")),
                    _class(row.place, row.text("entailment_judgment"), _SICK),
                )
                for row in read_rows(first_file(folder, f"SICK_{split}.txt"))
            ],
        )
        for split in ("train", "trial", "test_annotated")
    ]


def _load_nli(folder: Path) -> list[ClassifiedTexts]:
    """Load SNLI in SentEval's form: the line-parallel files ``s1.SPLIT``, ``s2.SPLIT`` and ``labels.SPLIT``."""
    return [_part(f"SNLI {split}", _nli_rows(folder, split)) for split in ("train", "dev", "test")]


def _load_banking(source: Source) -> list[ClassifiedTexts]:
    """Load texts with the name or number of an intent by part, unchanged and in their order."""
    rows = {
        part: source.rows(split=part) if isinstance(source, HubDataset) else read_rows(source / f"{part}.csv")
        for part in ("train", "test")
    }
    texts = {
        part: [(row.text("text"), row.identifier("category", "label")) for row in examples]
        for part, examples in rows.items()
    }
    known = {
        label: number
        for number, label in enumerate(sorted({label for examples in texts.values() for _, label in examples}))
    }
    return [
        ClassifiedTexts(part, ([text for text, _ in examples],), [known[label] for _, label in examples])
        for part, examples in texts.items()
    ]


def _lines(folder: Path, file: str) -> Iterator[tuple[str, str]]:
    return read_lines(first_file(folder, file), encoding="latin-1")


def _part(name: str, rows: list[_Row]) -> ClassifiedTexts:
    split = [(tuple(text.split() for text in texts), label) for texts, label in rows]
    split.sort(key=lambda row: (*map(len, row[0]), row[1]))
    width = len(rows[0][0]) if rows else 1
    columns = tuple([" ".join(texts[column]) for texts, _ in split] for column in range(width))
    return ClassifiedTexts(name, columns, [label for _, label in split])


def _sst_rows(folder: Path, split: str) -> list[_Row]:
    if (folder / f"sentiment-{split}").is_file():
        fields = [
            (place, *line.rpartition("\t")[::2]) for place, line in read_lines(folder / f"sentiment-{split}")
        ]
        return [((text,), _class(place, label, ("0", "1"))) for place, text, label in fields]
    path = first_file(folder, f"stsa.binary.{split}")
    fields = [(place, *line.partition(" ")[::2]) for place, line in read_lines(path)]
    return [((text,), _class(place, label, ("0", "1"))) for place, label, text in fields]


def _trec_row(place: str, line: str) -> _Row:
    """Parse a line; as in SentEval, quotes are removed from the question."""
    label, _, rest = line.replace("`", "").replace("'", "").partition(":")
    return (rest.partition(" ")[2],), _class(place, label, _TREC)


def _nli_rows(folder: Path, split: str) -> list[_Row]:
    first, second, labels = (list(_lines(folder, f"{name}.{split}")) for name in ("s1", "s2", "labels"))
    if not len(first) == len(second) == len(labels):
        raise DataError(
            f"{folder}: s1, s2 and labels of {split} have {len(first)}, {len(second)}, {len(labels)} lines"
        )
    return [
        ((a, b), _class(place, label, _NLI))
        for (_, a), (_, b), (place, label) in zip(first, second, labels, strict=True)
    ]


def _class(place: str, label: str, known: tuple[str, ...]) -> int:
    if label.strip() not in known:
        raise DataError(f"{place}: expected one of the classes {', '.join(known)}, got {label.strip()!r:.40}")
    return known.index(label.strip())


_NO_DECAY = [1e9]


@dataclass(frozen=True)
class _Set(PublishedSet):
    """A published set: its reader, from a folder or, if it has one, the hub's data set, and its protocol."""

    parts: Callable[[Any], list[ClassifiedTexts]]
    protocol: Callable[..., Float64Array]
    sizes: tuple[int, ...]
    features: Features = single

    @property
    def size(self) -> str:
        return " + ".join(f"{size:,}" for size in self.sizes) + " texts"

    def read(self, name: str, source: Source, _: Conventions, /) -> list[Probe]:
        return [Probe(name, self.parts(source), self.protocol, self.features, str(source), self.sizes)]


_SETS = {
    "mr": _Set(
        "sentiment of film reviews",
        ("MR",), None, partial(_load_binary, positive="rt-polarity.pos", negative="rt-polarity.neg"),
        nested_folds, (10662,),
    ),
    "cr": _Set(
        "sentiment of product reviews",
        ("CR",), None, partial(_load_binary, positive="custrev.pos", negative="custrev.neg"),
        nested_folds, (3775,),
    ),
    "subj": _Set(
        "subjective or objective",
        ("SUBJ",), None, partial(_load_binary, positive="subj.objective", negative="subj.subjective"),
        nested_folds, (10000,),
    ),
    "mpqa": _Set(
        "polarity of opinions",
        ("MPQA",), None, partial(_load_binary, positive="mpqa.pos", negative="mpqa.neg"),
        nested_folds, (10606,),
    ),
    "sst2": _Set(
        "sentiment of sentences of film reviews",
        ("SST2", "SST/binary"), None, _load_sst, validated_test, (6920, 872, 1821),
    ),
    "trec": _Set("types of questions", ("TREC",), None, _load_trec, folds_then_test, (5452, 500)),
    "mrpc-transfer": _Set(
        "paraphrases in news, by a classifier",
        ("mrpc", "MRPC", "MSRParaphraseCorpus"), None, _load_mrpc, folds_then_test, (4076, 1725),
        differences_and_products,
    ),
    "sick-e": _Set(
        "inference, SICK",
        ("SICK",), None, _load_sick_entailment, validated_test, (4500, 500, 4927), differences_and_products,
    ),
    "snli": _Set(
        "inference, SNLI",
        ("SNLI",), None, _load_nli, partial(validated_test, strengths=_NO_DECAY), (549367, 9842, 9824),
        pairs_differences_and_products,
    ),
}  # fmt: skip

_SEVEN = ("mr", "cr", "subj", "mpqa", "sst2", "trec", "mrpc-transfer")
"""The sets in the papers' average."""

_BANKING_HUB = HubDataset("mteb/banking77", "0fd18e25b25c072e09e0d92ab615fda904d66300")

TRANSFER_TASKS: dict[str, PublishedSet | PublishedAverage] = {
    "transfer": PublishedAverage(
        "the next seven sets, and their mean", "seven sets", {name: _SETS[name] for name in _SEVEN}
    ),
    **_SETS,
    "banking77": _Set(
        "intents of bank customers", ("banking77",), _BANKING_HUB, _load_banking, few_shot, (10003, 3080)
    ),
}
