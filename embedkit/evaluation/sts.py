"""Semantic textual similarity: Spearman's correlation of cosines with human scores, and its published sets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, repeat
from pathlib import Path

import numpy as np
import numpy.typing as npt

from embedkit.errors import DataError
from embedkit.evaluation.results import Part, Resampler, Result, defined
from embedkit.evaluation.sources import Source, locate, of_split, plain_stem, read_rows
from embedkit.evaluation.tasks import (
    EmbeddingCache,
    EvaluationSet,
    Pool,
    Published,
    PublishedAverage,
    RoleText,
)
from embedkit.protocols import FloatArray, PairScorer, TextEncoder
from embedkit.records import HubDataset, Row, read_lines

Float64Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class ScoredPairs(EvaluationSet):
    """Pairs of texts with human similarity scores.

    Attributes:
        first: N texts.
        second: N texts; ``second[i]`` was compared with ``first[i]``.
        scores: ``(N,) float64``, finite, on any scale: only their order matters.
        subsets: number of pairs of each subset, in their order, if the source separates them.

    Raises:
        DataError: the set is empty, the three differ in length, or a score is not finite.
    """

    first: list[str]
    second: list[str]
    scores: Float64Array
    subsets: Mapping[str, int] = field(default_factory=dict, kw_only=True)

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

    def texts(self) -> Iterator[RoleText]:
        """Yield every text to encode, including repeated ones."""
        return zip(repeat(None), chain(self.first, self.second))

    def result(self, pool: Pool) -> Result:
        """Return Spearman's correlation over all pairs, the headline of papers since SimCSE.

        With several subsets also their plain mean, the figure of the original SentEval, and the one weighted by
        size.
        """
        similarities = pool.similarities(self.first, self.second)
        measures = {"all": spearman(similarities, self.scores)}
        sizes = list(self.subsets.values())
        ends = np.cumsum(sizes)[:-1]
        figures = list(map(spearman, np.split(similarities, ends), np.split(self.scores, ends))) if sizes else []
        if len(sizes) > 1:
            measures |= {"mean": float(np.mean(figures)), "wmean": float(np.average(figures, weights=sizes))}
        return self._result(
            measures,
            {"pairs": len(self.first), **self.subsets},
            correlation(similarities, self.scores),
            parts={
                name: Part(size, defined(figure))
                for (name, size), figure in zip(self.subsets.items(), figures, strict=True)
                if len(sizes) > 1
            },
            notes=[_why_undefined(similarities, self.scores)] if np.isnan(measures["all"]) else [],
        )


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
    pool = EmbeddingCache(encoder, pairs.texts(), label=pairs.name, progress=False)
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


def _why_undefined(similarities: FloatArray, scores: Float64Array) -> str:
    why = "a similarity is not a number"
    if len(scores) < 2:
        why = "there is only one pair"
    elif np.ptp(scores) == 0:
        why = "all scores of the set are equal"
    elif np.ptp(similarities) == 0:
        why = "all similarities of the model are equal"
    return f"Spearman's correlation is undefined: {why}"


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


_LOWER_CASED = "the text is lower-cased, as in SentEval's copy"


def _note_case(pairs: ScoredPairs) -> ScoredPairs:
    """Note that no text has a capital letter, as in SentEval's copies; the published texts have many."""
    lower_cased = all(text == text.lower() for _, text in pairs.texts())
    return replace(pairs, notes=[*pairs.notes, *([_LOWER_CASED] if lower_cased else [])])


def _read_year(name: str, source: Source) -> ScoredPairs:
    """Read STS12 to STS16: a folder of ``STS.input.SUBSET.txt`` and ``STS.gs.SUBSET.txt``, or a hub data set.

    Pairs without a score in the gold file are dropped. The hub's data set does not separate the subsets.
    """
    if isinstance(source, HubDataset):
        notes = ["no mean and wmean: the source does not separate the subsets"]
        return _note_case(replace(collect_pairs(name, source.rows()), notes=notes))
    published = STS_YEARS[name]
    inputs = {subset: source / f"STS.input.{subset}.txt" for subset in published}
    subsets = [_read_subset(subset, path) for subset, path in inputs.items() if path.is_file()]
    if not subsets:
        raise DataError(f"{source}: expected files STS.input.SUBSET.txt and STS.gs.SUBSET.txt, found none")
    return _note_case(
        ScoredPairs(
            name,
            [text for each in subsets for text in each.first],
            [text for each in subsets for text in each.second],
            np.concatenate([each.scores for each in subsets]),
            subsets={each.name: len(each) for each in subsets},
            expected={"pairs": sum(published.values()), **published},
        )
    )


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
    name: Published(
        f"SemEval similarity of 20{name[3:]}",
        (f"{name.upper()}-en-test",),
        HubDataset(f"mteb/{name}-sts", _YEAR_REVISIONS[name]),
        {"pairs": sum(pairs.values())},
        _read_year,
    )
    for name, pairs in STS_YEARS.items()
}
_STSB_HUB = HubDataset("mteb/stsbenchmark-sts", "b0fddb56ed78048fa8b90373c8a3cfc37b684831")
# The hub's set has all 9,927 pairs under "test", so its figures are not comparable.
_SICK_HUB = HubDataset("mteb/sickr-sts", "20a6d6f312dd54037fe07a32d58e5e168867909d")


def _collect_cased(name: str, rows: Iterable[Row]) -> ScoredPairs:
    return _note_case(collect_pairs(name, rows))


_table = partial(Published.of_pairs, collect=collect_pairs, rows=partial(read_rows, headless=True))
_cased_table = partial(_table, collect=_collect_cased)

_STSB = ("STSBenchmark",)
_ENGLISH = {
    "stsb": _cased_table("STS benchmark, test", _STSB, _STSB_HUB, 1379, "sts-test.csv"),
    "stsb-dev": _cased_table(
        "STS benchmark, development", _STSB, _STSB_HUB, 1500, "sts-dev.csv", split="validation"
    ),
    "sickr": _table("SICK relatedness, test", ("SICK",), _SICK_HUB, 4927, "SICK_test_annotated.txt"),
    "sick-trial": _table("SICK relatedness, trial", ("SICK",), None, 500, "SICK_trial.txt"),
}

_LANGUAGES = {
    "de": "German", "es": "Spanish", "fr": "French", "it": "Italian", "nl": "Dutch", "pl": "Polish",
    "pt": "Portuguese", "ru": "Russian", "zh": "Chinese",
}  # fmt: skip
_TRANSLATED_HUB = HubDataset("mteb/stsb_multi_mt", "29afa2569dcedaaa2fe6a3dcfebab33d28b82e8c")
_TRANSLATED = {
    f"stsb-{code}{suffix}": _table(
        f"STS benchmark in {language}, {part}",
        ("stsb-multi-mt", "stsb_multi_mt"),
        _TRANSLATED_HUB,
        size,
        f"stsb-{code}-{split}.csv",
        split=split,
        configuration=code,
    )
    for code, language in _LANGUAGES.items()
    for suffix, part, split, size in (("", "test", "test", 1379), ("-dev", "development", "dev", 1500))
}

# The language pairs of the papers; the last two are from STS17's translated extension.
_STS17_PAIRS = ("ar-ar", "es-es", "en-en", "en-ar", "es-en", "en-tr", "en-de", "fr-en")
_STS17_HUB = HubDataset("mteb/sts17-crosslingual-sts", "faeb762787bd10488a50c8b5be4a3b82e411949c")
_STS17 = {
    f"sts17-{pair}": _table(
        f"STS17, {pair}",
        ("STS2017-extended", "STS17", "sts17"),
        _STS17_HUB,
        250,
        f"STS.{pair}.txt",
        f"STS.{pair[3:]}-{pair[:2]}.txt",
        configuration=pair,
    )
    for pair in _STS17_PAIRS
}

_SEVEN = {**_YEARS, "stsb": _ENGLISH["stsb"], "sickr": _ENGLISH["sickr"]}
"""The sets of the papers' average."""

STS_TASKS: dict[str, Published | PublishedAverage] = {
    "sts": PublishedAverage("STS12 to STS16, STS-B and SICK-R, and their mean", "seven sets", _SEVEN),
    **_YEARS,
    **_ENGLISH,
    "sts17": PublishedAverage(
        "similarity within and across languages, and its mean", "eight sets", _STS17, _STS17_HUB
    ),
    **_TRANSLATED,
}
