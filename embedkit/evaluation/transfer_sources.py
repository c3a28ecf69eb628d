"""The sets of SentEval and similar ones, from files.

Texts are split at whitespace and joined by single spaces, as in SentEval. They are ordered by their numbers of
words and then by class, as in SentEval before it makes folds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from embedkit.errors import DataError
from embedkit.evaluation.pair_sources import FIRST, LABEL, SECOND
from embedkit.evaluation.rows import Row, read_lines, read_rows
from embedkit.evaluation.transfer import ClassifiedTexts

__all__ = [
    "load_binary",
    "load_intents",
    "load_mrpc",
    "load_nli",
    "load_sick_entailment",
    "load_sst",
    "load_trec",
]

_TREC = ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")
_SICK = ("CONTRADICTION", "NEUTRAL", "ENTAILMENT")
_NLI = ("entailment", "neutral", "contradiction")

_Row = tuple[tuple[str, ...], int]
"""Texts and a class."""


def load_binary(folder: Path, positive: str, negative: str) -> list[ClassifiedTexts]:
    """Load MR, CR, SUBJ or MPQA, two files with one text per line, as one part.

    Raises:
        DataError: a file is missing.
    """
    rows: list[_Row] = [
        ((line,), label)
        for label, file in ((1, positive), (0, negative))
        for _, line in read_lines(_there(folder / file), encoding="latin-1")
    ]
    return [_part(folder.name, rows)]


def load_sst(folder: Path) -> list[ClassifiedTexts]:
    """Load SST2: ``stsa.binary.SPLIT`` (class, space, text) or SentEval's ``sentiment-SPLIT`` (text, TAB, class).

    Raises:
        DataError: a file is missing or malformed.
    """
    return [_part(f"SST2 {split}", _sst_rows(folder, split)) for split in ("train", "dev", "test")]


def load_trec(folder: Path) -> list[ClassifiedTexts]:
    """Load TREC's questions by their coarse classes: ``train_5500.label`` and ``TREC_10.label``.

    Raises:
        DataError: a file is missing or malformed.
    """
    return [
        _part(f"TREC {file}", [_trec_row(*line) for line in read_lines(_there(folder / file), encoding="latin-1")])
        for file in ("train_5500.label", "TREC_10.label")
    ]


def load_mrpc(folder: Path) -> list[ClassifiedTexts]:
    """Load MRPC's two published parts; the first may be split into ``-train`` and ``-val``.

    Raises:
        DataError: a file is missing or malformed.
    """
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
                for row in read_rows(_there(folder / name))
            ],
        )
        for names in files
    ]


def load_sick_entailment(folder: Path) -> list[ClassifiedTexts]:
    """Load SICK's entailment judgements, as released for SemEval-2014.

    Raises:
        DataError: a file is missing or malformed.
    """
    return [
        _part(
            f"SICK {split}",
            [
                (
                    (row.text("sentence_A"), row.text("sentence_B")),
                    _class(row.place, row.text("entailment_judgment"), _SICK),
                )
                for row in read_rows(_there(folder / f"SICK_{split}.txt"))
            ],
        )
        for split in ("train", "trial", "test_annotated")
    ]


def load_nli(folder: Path) -> list[ClassifiedTexts]:
    """Load SNLI in SentEval's form: the line-parallel files ``s1.SPLIT``, ``s2.SPLIT`` and ``labels.SPLIT``.

    Raises:
        DataError: a file is missing, or they differ in length.
    """
    return [_part(f"SNLI {split}", _nli_rows(folder, split)) for split in ("train", "dev", "test")]


def load_intents(rows: Mapping[str, Iterable[Row]]) -> list[ClassifiedTexts]:
    """Collect texts with the name or number of an intent, unchanged and in their order.

    Args:
        rows: rows of each part.

    Raises:
        DataError: a row is malformed.
    """
    texts = {
        part: [(row.text("text"), row.identifier("category", "label")) for row in each]
        for part, each in rows.items()
    }
    known = {
        label: number
        for number, label in enumerate(sorted({label for each in texts.values() for _, label in each}))
    }
    return [
        ClassifiedTexts(part, ([text for text, _ in each],), [known[label] for _, label in each])
        for part, each in texts.items()
    ]


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
    path = _there(folder / f"stsa.binary.{split}")
    fields = [(place, *line.partition(" ")[::2]) for place, line in read_lines(path)]
    return [((text,), _class(place, label, ("0", "1"))) for place, label, text in fields]


def _trec_row(place: str, line: str) -> _Row:
    """Parse a line; as in SentEval, quotes are removed from the question."""
    label, _, rest = line.replace("`", "").replace("'", "").partition(":")
    return (rest.partition(" ")[2],), _class(place, label, _TREC)


def _nli_rows(folder: Path, split: str) -> list[_Row]:
    first, second, labels = (
        list(read_lines(_there(folder / f"{name}.{split}"), encoding="latin-1")) for name in ("s1", "s2", "labels")
    )
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


def _there(path: Path) -> Path:
    if not path.is_file():
        raise DataError(f"{path.parent} has no {path.name}")
    return path
