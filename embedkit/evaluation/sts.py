"""Semantic textual similarity: Spearman's correlation of cosines with human scores, and its published sets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from embedkit.errors import DataError
from embedkit.evaluation.results import Resampler, Result, build_result
from embedkit.evaluation.sources import Source, locate, of_split, plain_stem, read_rows
from embedkit.evaluation.tasks import (
    Conventions,
    EmbeddingCache,
    Pool,
    PublishedAverage,
    PublishedSet,
    RoleText,
    without_role,
)
from embedkit.protocols import FloatArray, PairScorer, TextEncoder
from embedkit.records import HubDataset, Row, read_lines

Float64Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class ScoredPairs:
    """Pairs of texts with human similarity scores.

    Attributes:
        first: N texts.
        second: N texts; ``second[i]`` was compared with ``first[i]``.
        scores: ``(N,) float64``, finite, on any scale: only their order matters.

    Raises:
        DataError: the set is empty, the three differ in length, or a score is not finite.
    """

    name: str
    first: list[str]
    second: list[str]
    scores: Float64Array

    def __post_init__(self) -> None:
        if not len(self.first) == len(self.second) == len(self.scores):
            raise DataError(
                f"{self.name}: expected equal numbers of first texts, second texts and scores, "
                f"got {len(self.first)}, {len(self.second)} and {len(self.scores)}"
            )
        if not self.first:
            raise DataError(f"{self.name}: expected scored pairs, found none")
        if not np.isfinite(self.scores).all():
            raise DataError(f"{self.name}: a score is not a finite number")

    def __len__(self) -> int:
        return len(self.first)


def spearman(a: npt.ArrayLike, b: npt.ArrayLike) -> float:
    """Return Spearman's rank correlation of two columns ``(N,)``, in [-1, 1]; ties get their average rank.

    It is NaN where it is undefined: all values of one side are equal, there are fewer than two pairs, or a value
    is NaN.
    """
    left, right = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if len(left) < 2 or np.isnan(left).any() or np.isnan(right).any():
        return float("nan")
    x, y = _centred_ranks(left), _centred_ranks(right)
    spread = np.sqrt((x @ x) * (y @ y))
    return float(np.clip((x @ y) / spread, -1.0, 1.0)) if spread > 0 else float("nan")


def evaluate_pairs(encoder: TextEncoder, pairs: ScoredPairs) -> float:
    """Return Spearman's correlation of the encoder's cosines with the scores of ``pairs``.

    Each distinct text is encoded once, without progress output. Texts are not lower-cased. See :func:`spearman`
    for undefined correlations; tables print 100 times the result.
    """
    pool = EmbeddingCache(encoder, without_role([*pairs.first, *pairs.second]), label=pairs.name, progress=False)
    return spearman(pool.similarities(pairs.first, pairs.second), pairs.scores)


def evaluate_cross_encoder(scorer: PairScorer, pairs: ScoredPairs) -> float:
    """Return :func:`spearman` of a cross-encoder's scores with those of ``pairs``, each in its given order."""
    return spearman(scorer.predict(list(zip(pairs.first, pairs.second, strict=True))), pairs.scores)


def _centred_ranks(values: Float64Array) -> Float64Array:
    """Return ranks from 1 with ties averaged, minus their mean."""
    _, group, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks = np.cumsum(counts) - (counts - 1) / 2
    return np.asarray(ranks[group] - (len(values) + 1) / 2, dtype=np.float64)


def correlation(predicted: FloatArray, wanted: Float64Array) -> Resampler:
    """Return the pairs behind Spearman's correlation of two columns, ``(N,)``."""
    return Resampler([len(wanted)], [lambda rows: spearman(predicted[rows], wanted[rows])])


def _why_undefined(similarities: npt.NDArray[np.float32], scores: Float64Array) -> str:
    if len(scores) < 2:
        return "there is only one pair"
    if np.ptp(scores) == 0:
        return "all scores of the set are equal"
    return "all similarities of the model are equal" if np.ptp(similarities) == 0 else ""


FIRST = ("sentence1", "sentence_A")
SECOND = ("sentence2", "sentence_B")
SCORE = ("score", "relatedness_score", "similarity_score")
COLUMNS = (FIRST, SECOND, SCORE)
"""Accepted names of each column of scored pairs."""


def load_scored_pairs(source: str | Source, *, name: str | None = None, split: str = "test") -> ScoredPairs:
    """Load pairs of sentences with a score each.

    Files: STS-B as published (TAB; score in field 5, sentences in fields 6 and 7; no header), SICK (TAB
    with a header), TSV or CSV of ``sentence1, sentence2, score`` with or without a header, JSONL or
    Parquet with these columns. Text files may be ``.gz`` or ``.xz``. Hub: data sets with these columns.

    Args:
        source: a path, a hub data set, ``org/name`` or ``hf://org/name[@revision][:split]``.
        name: name of the set; by default that of the file or hub data set.
        split: split of a hub id that names none, and of a file with a column ``split``.

    Raises:
        DataError: missing, empty or malformed; names the file and line.
        MissingExtraError: a hub id or a Parquet file without the extra ``bench``.
    """
    place = locate(source)
    if isinstance(place, HubDataset):
        return collect_pairs(name or place.id, of_split(place.rows(split=split), split))
    return collect_pairs(name or plain_stem(place), of_split(read_rows(place, headless=True), split))


def collect_pairs(name: str, rows: Iterable[Row]) -> ScoredPairs:
    """Collect scored pairs from rows with two sentences and a score under their usual names."""
    triples = [(row.text(*FIRST), row.text(*SECOND), row.number(*SCORE)) for row in rows]
    scores = np.array([score for _, _, score in triples], dtype=np.float64)
    return ScoredPairs(name, [first for first, _, _ in triples], [second for _, second, _ in triples], scores)


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

_YEAR_REVISIONS = {
    "sts12": "a0d554a64d88156834ff5ae9920b964011b16384",
    "sts13": "7e90230a92c190f1bf69ae9002b8cea547a64cca",
    "sts14": "6031580fec1f6af667f0bd2da0a551cf4f0b2375",
    "sts15": "ae752c7c21bf194d8b67fd573edf7ae58183cbe3",
    "sts16": "4d8694f8f0e0100860b497b999b3dbed754a0513",
}


_CASED = (*STS_YEARS, "stsb", "stsb-dev")
"""Sets that SentEval lower-cases."""


@dataclass(frozen=True)
class StsSet:
    """A published or custom set of scored pairs.

    Attributes:
        subsets: its parts; a single one if the source does not separate them.
        expected: published number of scored pairs by subset, or in total under the set's own name.
        source: the folder, file or hub id of the set.
        notes: caveats for readers, one sentence each.
    """

    needs_embeddings: ClassVar[bool] = False

    name: str
    subsets: list[ScoredPairs]
    expected: dict[str, int]
    source: str
    notes: list[str] = field(default_factory=list)

    @property
    def lower_cased(self) -> bool:
        """Whether no text contains a capital letter, as in SentEval's copies; the published texts contain many."""
        return all(text == text.lower() for _, text in self.texts())

    def texts(self) -> Iterator[RoleText]:
        """Yield every text to encode, including repeated ones."""
        for pairs in self.subsets:
            yield from without_role(chain(pairs.first, pairs.second))

    def differences(self) -> list[str]:
        """Return differences from the published numbers of pairs, one sentence each."""
        sizes = {pairs.name: len(pairs) for pairs in self.subsets}
        return [
            ("" if name == self.name else f"{name}: ")
            + f"{sizes.get(name, 0)} scored pairs; the published set has {size}"
            for name, size in self.expected.items()
            if sizes.get(name, 0) != size
        ]

    def result(self, pool: Pool) -> Result:
        """Return Spearman's correlation over all pairs, the headline of papers since SimCSE.

        With several subsets also their plain mean, the figure of the original SentEval, and the one weighted by
        size.
        """
        predicted = [pool.similarities(pairs.first, pairs.second) for pairs in self.subsets]
        figures = [spearman(part, pairs.scores) for part, pairs in zip(predicted, self.subsets, strict=True)]
        similarities = np.concatenate(predicted)
        scores = np.concatenate([pairs.scores for pairs in self.subsets])
        measures = {"all": spearman(similarities, scores)}
        sizes = list(map(len, self.subsets))
        if several := len(self.subsets) > 1:
            measures |= {"mean": float(np.mean(figures)), "wmean": float(np.average(figures, weights=sizes))}
        result = build_result(
            self.name,
            measures,
            sizes={"pairs": sum(sizes)},
            published=None,
            source=self.source,
            resampler=correlation(similarities, scores),
            parts={
                pairs.name: (size, figure)
                for pairs, size, figure in zip(self.subsets, sizes, figures, strict=True)
                if several
            },
            notes=self._caveats(similarities, scores),
        )
        # The sizes of subsets must match, not only their sum.
        complete = not self.differences() if self.expected else None
        return replace(result, expected=sum(self.expected.values()) or None, complete=complete)

    def _caveats(self, similarities: FloatArray, scores: Float64Array) -> list[str]:
        notes = [*self.differences(), *self.notes]
        if undefined := _why_undefined(similarities, scores):
            notes.append(f"Spearman's correlation is undefined: {undefined}")
        if len(self.subsets) == 1 and self.name in STS_YEARS and self.name in self.expected:
            notes.append("no mean and wmean: the source does not separate the subsets")
        if self.name in _CASED and self.lower_cased and not self.notes:
            notes.append("the text is lower-cased, as in SentEval's copy")
        return notes


@dataclass(frozen=True)
class _Table(PublishedSet):
    """A published set in one table: its number of pairs, its file names, and its place in the hub's data set."""

    pairs: int
    files: tuple[str, ...]
    split: str = "test"
    configuration: str | None = None

    @property
    def size(self) -> str:
        return f"{self.pairs:,} pairs"

    def read(self, name: str, source: Source, _: Conventions, /) -> list[StsSet]:
        if isinstance(source, HubDataset):
            pairs = collect_pairs(name, source.rows(configuration=self.configuration, split=self.split))
        else:
            files = [source / file for file in self.files]
            pairs = load_scored_pairs(next(filter(Path.is_file, files), files[0]), name=name)
        return [StsSet(name, [pairs], {name: self.pairs}, str(source))]


@dataclass(frozen=True)
class _Year(PublishedSet):
    """STS12 to STS16: a folder of ``STS.input.SUBSET.txt`` and ``STS.gs.SUBSET.txt``, or a hub data set.

    Pairs without a score in the gold file are dropped. The hub's data set does not separate the subsets.
    """

    pairs: dict[str, int]

    @property
    def size(self) -> str:
        return f"{sum(self.pairs.values()):,} pairs"

    def read(self, name: str, source: Source, _: Conventions, /) -> list[StsSet]:
        if isinstance(source, HubDataset):
            expected = {name: sum(self.pairs.values())}
            return [StsSet(name, [collect_pairs(name, source.rows())], expected, str(source))]
        inputs = {subset: source / f"STS.input.{subset}.txt" for subset in self.pairs}
        subsets = [_read_subset(subset, path) for subset, path in inputs.items() if path.is_file()]
        if not subsets:
            raise DataError(f"{source}: expected files STS.input.SUBSET.txt and STS.gs.SUBSET.txt, found none")
        return [StsSet(name, subsets, self.pairs, str(source))]


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


_YEARS = {
    name: _Year(
        f"SemEval similarity of 20{name[3:]}",
        (f"{name.upper()}-en-test",),
        HubDataset(f"mteb/{name}-sts", _YEAR_REVISIONS[name]),
        pairs,
    )
    for name, pairs in STS_YEARS.items()
}
_STSB_HUB = HubDataset("mteb/stsbenchmark-sts", "b0fddb56ed78048fa8b90373c8a3cfc37b684831")
# The hub's set has all 9,927 pairs under "test", so its figures are not comparable.
_SICK_HUB = HubDataset("mteb/sickr-sts", "20a6d6f312dd54037fe07a32d58e5e168867909d")
_ENGLISH = {
    "stsb": _Table("STS benchmark, test", ("STSBenchmark",), _STSB_HUB, 1379, ("sts-test.csv",)),
    "stsb-dev": _Table(
        "STS benchmark, development", ("STSBenchmark",), _STSB_HUB, 1500, ("sts-dev.csv",), "validation"
    ),
    "sickr": _Table("SICK relatedness, test", ("SICK",), _SICK_HUB, 4927, ("SICK_test_annotated.txt",)),
    "sick-trial": _Table("SICK relatedness, trial", ("SICK",), None, 500, ("SICK_trial.txt",)),
}

_LANGUAGES = {
    "de": "German", "es": "Spanish", "fr": "French", "it": "Italian", "nl": "Dutch", "pl": "Polish",
    "pt": "Portuguese", "ru": "Russian", "zh": "Chinese",
}  # fmt: skip
_TRANSLATED_HUB = HubDataset("mteb/stsb_multi_mt", "29afa2569dcedaaa2fe6a3dcfebab33d28b82e8c")
_TRANSLATED = {
    f"stsb-{code}{suffix}": _Table(
        f"STS benchmark in {language}, {part}",
        ("stsb-multi-mt", "stsb_multi_mt"),
        _TRANSLATED_HUB,
        size,
        (f"stsb-{code}-{split}.csv",),
        split,
        code,
    )
    for code, language in _LANGUAGES.items()
    for suffix, part, split, size in (("", "test", "test", 1379), ("-dev", "development", "dev", 1500))
}

# The language pairs of the papers; the last two are from STS17's translated extension.
_STS17_PAIRS = ("ar-ar", "es-es", "en-en", "en-ar", "es-en", "en-tr", "en-de", "fr-en")
_STS17_HUB = HubDataset("mteb/sts17-crosslingual-sts", "faeb762787bd10488a50c8b5be4a3b82e411949c")
_STS17 = {
    f"sts17-{pair}": _Table(
        f"STS17, {pair}",
        ("STS2017-extended", "STS17", "sts17"),
        _STS17_HUB,
        250,
        (f"STS.{pair}.txt", f"STS.{pair[3:]}-{pair[:2]}.txt"),
        configuration=pair,
    )
    for pair in _STS17_PAIRS
}

_SEVEN = {**_YEARS, "stsb": _ENGLISH["stsb"], "sickr": _ENGLISH["sickr"]}
"""The sets of the papers' average."""

STS_TASKS: dict[str, PublishedSet | PublishedAverage] = {
    "sts": PublishedAverage("STS12 to STS16, STS-B and SICK-R, and their mean", "seven sets", _SEVEN),
    **_YEARS,
    **_ENGLISH,
    "sts17": PublishedAverage(
        "similarity within and across languages, and its mean", "eight sets", _STS17, _STS17_HUB
    ),
    **_TRANSLATED,
}
