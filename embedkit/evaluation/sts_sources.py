"""The published STS sets, from SentEval's files or from the hub, with their expected sizes.

Texts are used unchanged. SentEval's copies are lower-cased and tokenized, which hardly affects an uncased model.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from embedkit.errors import DataError
from embedkit.evaluation.hub import HubDataset
from embedkit.evaluation.rows import Row, read_lines
from embedkit.evaluation.sources import collect_pairs, load_scored_pairs
from embedkit.evaluation.sts import ScoredPairs

__all__ = [
    "SICK_NAMES",
    "STS17_PAIRS",
    "STSB_NAMES",
    "STS_YEARS",
    "StsSet",
    "load_sick",
    "load_sts17",
    "load_stsb",
    "load_translated_stsb",
    "load_year",
]

STS_YEARS: dict[str, dict[str, int]] = {
    "sts12": {"MSRpar": 750, "MSRvid": 750, "SMTeuroparl": 459, "surprise.OnWN": 750, "surprise.SMTnews": 399},
    "sts13": {"FNWN": 189, "headlines": 750, "OnWN": 561},
    "sts14": {
        "deft-forum": 450, "deft-news": 300, "headlines": 750, "images": 750, "OnWN": 750, "tweet-news": 750,
    },
    "sts15": {"answers-forums": 375, "answers-students": 750, "belief": 375, "headlines": 750, "images": 750},
    "sts16": {
        "answer-answer": 254, "headlines": 249, "plagiarism": 230, "postediting": 244, "question-question": 209,
    },
}  # fmt: skip
"""Number of scored pairs by year and subset. STS13 excludes SMT, whose text is not freely available."""

STS17_PAIRS = ("ar-ar", "es-es", "en-en", "en-ar", "es-en", "en-tr", "en-de", "fr-en")
"""Language pairs of STS17, the last two from its translated extension: the eight of the papers."""

_STSB = {"dev": ("sts-dev.csv", "validation", 1500), "test": ("sts-test.csv", "test", 1379)}
_SICK = {"trial": ("SICK_trial.txt", 500), "test": ("SICK_test_annotated.txt", 4927)}


STSB_NAMES = ("stsb", "stsb-dev")
SICK_NAMES = ("sickr", "sick-trial")

_STS17_SIZE = 250


@dataclass(frozen=True)
class StsSet:
    """A published set.

    Attributes:
        name: name of the task.
        subsets: its parts; a single one if the source does not separate them.
        expected: published number of scored pairs by subset, or in total under the set's own name.
        source: the folder, file or hub id of the set.
        notes: caveats for readers, one sentence each.
    """

    name: str
    subsets: list[ScoredPairs]
    expected: dict[str, int]
    source: str
    notes: list[str] = field(default_factory=list)

    @property
    def lower_cased(self) -> bool:
        """Whether no text contains a capital letter, as in SentEval's copies; the published texts contain many."""
        return not any(
            text != text.lower()
            for pairs in self.subsets
            for column in (pairs.first, pairs.second)
            for text in column
        )

    @property
    def rows(self) -> int:
        """Total number of scored pairs."""
        return sum(map(len, self.subsets))

    def differences(self) -> list[str]:
        """Return differences from the published numbers of pairs, one sentence each."""
        found = {pairs.name: len(pairs) for pairs in self.subsets}
        wrong = {name: size for name, size in self.expected.items() if found.get(name, 0) != size}
        return [
            ("" if name == self.name else f"{name}: ")
            + f"{found.get(name, 0)} scored pairs; the published set has {size}"
            for name, size in wrong.items()
        ]


def load_year(name: str, source: Path | HubDataset) -> StsSet:
    """Load STS12 to STS16: a folder of ``STS.input.SUBSET.txt`` and ``STS.gs.SUBSET.txt``, or a hub data set.

    Pairs without a score in the gold file are dropped. The hub's data set does not separate the subsets.

    Raises:
        DataError: no files are found, or a file is malformed.
    """
    expected = STS_YEARS[name]
    if isinstance(source, HubDataset):
        pairs = load_scored_pairs(source, name=name)
        return StsSet(name, [pairs], {name: sum(expected.values())}, str(source))
    inputs = {subset: source / f"STS.input.{subset}.txt" for subset in expected}
    subsets = [_read_subset(subset, path) for subset, path in inputs.items() if path.is_file()]
    if not subsets:
        raise DataError(f"{source}: expected files STS.input.SUBSET.txt and STS.gs.SUBSET.txt, found none")
    return StsSet(name, subsets, expected, str(source))


def load_stsb(source: Path | HubDataset, split: str) -> StsSet:
    """Load STS-B, ``"dev"`` or ``"test"``.

    Raises:
        DataError: missing or malformed.
    """
    file, hub_split, expected = _STSB[split]
    name = "stsb" if split == "test" else "stsb-dev"
    if isinstance(source, HubDataset):
        pairs = load_scored_pairs(source, name=name, split=hub_split)
    else:
        pairs = load_scored_pairs(source / file, name=name)
    return StsSet(name, [pairs], {name: expected}, str(source))


def load_sick(source: Path | HubDataset, split: str) -> StsSet:
    """Load SICK relatedness as released for SemEval-2014, ``"trial"`` or ``"test"``.

    The hub's ``mteb/sickr-sts`` has all 9,927 pairs under ``test``, so its figures are not comparable.

    Raises:
        DataError: missing or malformed.
    """
    file, expected = _SICK[split]
    name = "sickr" if split == "test" else "sick-trial"
    pairs = load_scored_pairs(source / file if isinstance(source, Path) else source, name=name)
    return StsSet(name, [pairs], {name: expected}, str(source))


def load_sts17(languages: str, source: Path | HubDataset) -> StsSet:
    """Load one language pair of STS17: ``STS.en-de.txt`` in a folder, or a table of the hub's data set.

    Raises:
        DataError: missing or malformed.
    """
    name = f"sts17-{languages}"
    if isinstance(source, HubDataset):
        pairs = collect_pairs(name, source.rows(configuration=languages))
    else:
        turned = "-".join(reversed(languages.split("-")))
        files = [source / f"STS.{each}.txt" for each in (languages, turned)]
        pairs = load_scored_pairs(next((file for file in files if file.is_file()), files[0]), name=name)
    return StsSet(name, [pairs], {name: _STS17_SIZE}, str(source))


def load_translated_stsb(language: str, source: Path | HubDataset, split: str) -> StsSet:
    """Load STS-B in another language, ``"dev"`` or ``"test"``: ``stsb-de-test.csv``, or a table on the hub.

    Raises:
        DataError: missing or malformed.
    """
    name = f"stsb-{language}" + ("-dev" if split == "dev" else "")
    if isinstance(source, HubDataset):
        pairs = collect_pairs(name, source.rows(configuration=language, split=split))
    else:
        pairs = load_scored_pairs(source / f"stsb-{language}-{split}.csv", name=name)
    return StsSet(name, [pairs], {name: _STSB[split][2]}, str(source))


def _read_subset(subset: str, inputs: Path) -> ScoredPairs:
    """Read pairs (s1 TAB s2; further fields are sources) and the line-parallel gold scores."""
    gold = inputs.with_name(f"STS.gs.{subset}.txt")
    texts, scores = list(read_lines(inputs)), list(read_lines(gold))
    if len(texts) != len(scores):
        raise DataError(f"{inputs} has {len(texts)} lines but {gold} has {len(scores)}")
    first, second, numbers = [], [], []
    for (place, line), (gold_place, score) in zip(texts, scores, strict=True):
        if not score.strip():
            continue
        fields = line.split("\t")
        if len(fields) < 2:
            raise DataError(f"{place}: expected two sentences with a TAB between them, got {line:.60}")
        first.append(fields[0])
        second.append(fields[1])
        numbers.append(Row(gold_place, {"score": score}).number("score"))
    return ScoredPairs(subset, first, second, np.array(numbers, dtype=np.float64))
