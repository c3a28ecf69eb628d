"""Semantic textual similarity: Spearman's correlation of cosines with human scores, and its published sets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from embedkit.errors import DataError, InputError
from embedkit.evaluation.results import Evidence, Result, average, build_result
from embedkit.evaluation.sources import Shelf, Source, locate, plain_stem, read_rows
from embedkit.evaluation.tasks import Conventions, EmbeddingPool, Entry, Pool, Task, load_several
from embedkit.extras import require
from embedkit.protocols import FloatArray, PairScorer, TextEncoder
from embedkit.records import HubDataset, Row, read_lines

Float64Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class ScoredPairs:
    """Pairs of texts with human similarity scores.

    Attributes:
        name: name of the set in messages and reports.
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
    """Return Spearman's rank correlation; ties get their average rank.

    Args:
        a: ``(N,)`` numbers.
        b: ``(N,)`` numbers.

    Returns:
        The correlation in [-1, 1]; NaN where it is undefined: all values of one side are equal, there
        are fewer than two pairs, or a value is NaN.
    """
    left, right = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if len(left) < 2 or np.isnan(left).any() or np.isnan(right).any():
        return float("nan")
    x, y = _centred_ranks(left), _centred_ranks(right)
    spread = np.sqrt((x @ x) * (y @ y))
    return float(np.clip((x @ y) / spread, -1.0, 1.0)) if spread > 0 else float("nan")


def evaluate_pairs(encoder: TextEncoder, pairs: ScoredPairs) -> float:
    """Return Spearman's correlation of the encoder's cosines with the scores of ``pairs``.

    Each distinct text is encoded once, without progress output. Texts are not lower-cased.

    Returns:
        The correlation in [-1, 1] (tables print it times 100); NaN where it is undefined, see
        :func:`spearman`.
    """
    pool = EmbeddingPool(encoder, [*pairs.first, *pairs.second], label=pairs.name, progress=False)
    return spearman(pool.similarities(pairs.first, pairs.second), pairs.scores)


def evaluate_cross_encoder(scorer: PairScorer, pairs: ScoredPairs) -> float:
    """Return Spearman's correlation of a cross-encoder's scores with those of ``pairs``, each in its given order.

    Returns:
        The correlation in [-1, 1]; NaN where it is undefined, see :func:`spearman`.
    """
    return spearman(scorer.predict(list(zip(pairs.first, pairs.second, strict=True))), pairs.scores)


def _centred_ranks(values: Float64Array) -> Float64Array:
    """Return ranks from 1 with ties averaged, minus their mean."""
    _, group, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks = np.cumsum(counts) - (counts - 1) / 2
    return np.asarray(ranks[group] - (len(values) + 1) / 2, dtype=np.float64)


def correlation(predicted: FloatArray, wanted: Float64Array) -> Evidence:
    """Return the pairs behind Spearman's correlation of two columns, ``(N,)``."""
    return Evidence([len(wanted)], [lambda rows: spearman(predicted[rows], wanted[rows])])


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


def load_scored_pairs(
    source: str | Source, *, name: str | None = None, split: str = "test", revision: str | None = None
) -> ScoredPairs:
    """Load pairs of sentences with a score each.

    Files: STS-B as published (TAB; score in field 5, sentences in fields 6 and 7; no header), SICK (TAB
    with a header), TSV or CSV of ``sentence1, sentence2, score`` with or without a header, JSONL or
    Parquet with these columns. Text files may be ``.gz`` or ``.xz``. Hub: data sets with these columns.

    Args:
        source: a path, a hub data set, ``org/name`` or ``hf://org/name[@revision][:split]``.
        name: name of the set; by default that of the file or hub data set.
        split: default split of a hub id.
        revision: default revision of a hub id.

    Raises:
        DataError: missing, empty or malformed; names the file and line.
        MissingExtraError: a hub id or a Parquet file without the extra ``bench``.
    """
    found = locate(source, revision=revision)
    if isinstance(found, HubDataset):
        return collect_pairs(name or found.id, found.rows(split=split))
    return collect_pairs(name or plain_stem(found), read_rows(found, headless=True))


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

_STS17_PAIRS = ("ar-ar", "es-es", "en-en", "en-ar", "es-en", "en-tr", "en-de", "fr-en")
"""Language pairs of STS17, the last two from its translated extension: the eight of the papers."""

_STSB = {"dev": ("sts-dev.csv", "validation", 1500), "test": ("sts-test.csv", "test", 1379)}
_SICK = {"trial": ("SICK_trial.txt", 500), "test": ("SICK_test_annotated.txt", 4927)}


_STSB_NAMES = ("stsb", "stsb-dev")
_SICK_NAMES = ("sickr", "sick-trial")

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


def load_year(name: str, source: Source) -> StsSet:
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


def load_stsb(source: Source, split: str) -> StsSet:
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


def load_sick(source: Source, split: str) -> StsSet:
    """Load SICK relatedness as released for SemEval-2014, ``"trial"`` or ``"test"``.

    The hub's ``mteb/sickr-sts`` has all 9,927 pairs under ``test``, so its figures are not comparable.

    Raises:
        DataError: missing or malformed.
    """
    file, expected = _SICK[split]
    name = "sickr" if split == "test" else "sick-trial"
    pairs = load_scored_pairs(source / file if isinstance(source, Path) else source, name=name)
    return StsSet(name, [pairs], {name: expected}, str(source))


def _load_sts17(languages: str, source: Source) -> StsSet:
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


def _load_translated_stsb(language: str, source: Source, split: str) -> StsSet:
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


_CASED = (*STS_YEARS, *_STSB_NAMES)
"""Sets that SentEval lower-cases."""


@dataclass(frozen=True)
class StsTask:
    """One or more sets of scored pairs.

    Attributes:
        name: name of the task.
        sets: the sets that could be loaded.
        average_of: number of sets in a published average; None reports no average.
        missing: set -> why it could not be loaded.
    """

    needs_embeddings: ClassVar[bool] = False

    name: str
    sets: list[StsSet]
    average_of: int | None = None
    missing: dict[str, str] = field(default_factory=dict)

    def texts(self) -> Iterator[str]:
        """Yield every text to encode, including repeated ones."""
        for pairs in chain.from_iterable(each.subsets for each in self.sets):
            yield from pairs.first
            yield from pairs.second

    def results(self, pool: Pool) -> list[Result]:
        """Return a result for each set and, if the task has one, their average."""
        results = [_sts_result(pool, each) for each in self.sets]
        if self.average_of is None:
            return results
        return [*results, average(self.name, results, wanted=self.average_of, missing=self.missing)]


def _sts_result(pool: Pool, sts: StsSet) -> Result:
    """Return Spearman's correlation over all pairs, the headline of papers since SimCSE.

    With several subsets also their plain mean, the figure of the original SentEval, and the one weighted by size.
    """
    predicted = [pool.similarities(pairs.first, pairs.second) for pairs in sts.subsets]
    figures = [spearman(found, pairs.scores) for found, pairs in zip(predicted, sts.subsets, strict=True)]
    similarities, scores = np.concatenate(predicted), np.concatenate([pairs.scores for pairs in sts.subsets])
    measures = {"all": spearman(similarities, scores)}
    notes = [*sts.differences(), *sts.notes]
    if undefined := _why_undefined(similarities, scores):
        notes.append(f"Spearman's correlation is undefined: {undefined}")
    several = len(sts.subsets) > 1
    sizes = list(map(len, sts.subsets))
    if several:
        measures |= {"mean": float(np.mean(figures)), "wmean": float(np.average(figures, weights=sizes))}
    elif sts.name in STS_YEARS and sts.name in sts.expected:
        notes.append("no mean and wmean: the source does not separate the subsets")
    if sts.name in _CASED and sts.lower_cased and not sts.notes:
        notes.append("the text is lower-cased, as in SentEval's copy")
    result = build_result(
        sts.name,
        measures,
        sizes={"pairs": sts.rows},
        published=None,
        source=sts.source,
        evidence=correlation(similarities, scores),
        parts={
            pairs.name: (size, figure)
            for pairs, size, figure in zip(sts.subsets, sizes, figures, strict=True)
            if several
        },
        notes=notes,
    )
    # The sizes of subsets must match, not only their sum.
    complete = not sts.differences() if sts.expected else None
    return replace(result, expected=sum(sts.expected.values()) or None, complete=complete)


_YEARS = {
    "sts12": "a0d554a64d88156834ff5ae9920b964011b16384",
    "sts13": "7e90230a92c190f1bf69ae9002b8cea547a64cca",
    "sts14": "6031580fec1f6af667f0bd2da0a551cf4f0b2375",
    "sts15": "ae752c7c21bf194d8b67fd573edf7ae58183cbe3",
    "sts16": "4d8694f8f0e0100860b497b999b3dbed754a0513",
}
_YEAR_HUBS = {name: HubDataset(f"mteb/{name}-sts", revision) for name, revision in _YEARS.items()}
_STSB_HUB = HubDataset("mteb/stsbenchmark-sts", "b0fddb56ed78048fa8b90373c8a3cfc37b684831")
_SICK_HUB = HubDataset("mteb/sickr-sts", "20a6d6f312dd54037fe07a32d58e5e168867909d")
_STS17_HUB = HubDataset("mteb/sts17-crosslingual-sts", "faeb762787bd10488a50c8b5be4a3b82e411949c")
_TRANSLATED_HUB = HubDataset("mteb/stsb_multi_mt", "29afa2569dcedaaa2fe6a3dcfebab33d28b82e8c")
_LANGUAGES = {
    "de": "German", "es": "Spanish", "fr": "French", "it": "Italian", "nl": "Dutch", "pl": "Polish",
    "pt": "Portuguese", "ru": "Russian", "zh": "Chinese",
}  # fmt: skip


def _year(name: str, shelf: Shelf) -> StsSet:
    return load_year(name, shelf.find(f"{name.upper()}-en-test", hub=_YEAR_HUBS[name]))


def _stsb(split: str, shelf: Shelf) -> StsSet:
    return load_stsb(shelf.find("STSBenchmark", hub=_STSB_HUB), split)


def _sick(split: str, shelf: Shelf) -> StsSet:
    return load_sick(shelf.find("SICK", hub=_SICK_HUB if split == "test" else None), split)


SEVEN: dict[str, Callable[[Shelf], StsSet]] = {
    **{name: partial(_year, name) for name in STS_YEARS},
    "stsb": partial(_stsb, "test"),
    "sickr": partial(_sick, "test"),
}
"""The seven sets of the papers."""


def _sts17(languages: str, shelf: Shelf) -> StsSet:
    return _load_sts17(languages, shelf.find("STS2017-extended", "STS17", "sts17", hub=_STS17_HUB))


def _translated(language: str, split: str, shelf: Shelf) -> StsSet:
    return _load_translated_stsb(
        language, shelf.find("stsb-multi-mt", "stsb_multi_mt", hub=_TRANSLATED_HUB), split
    )


def _sts(shelf: Shelf, _: Conventions) -> Task:
    """Return a task of the seven sets, those that are available."""
    return _several("sts", SEVEN, shelf)


def _sts17_all(shelf: Shelf, _: Conventions) -> Task:
    """Return a task of the eight language pairs, those that are available."""
    return _several("sts17", {f"sts17-{pair}": partial(_sts17, pair) for pair in _STS17_PAIRS}, shelf)


def _several(name: str, loaders: Mapping[str, Callable[[Shelf], StsSet]], shelf: Shelf) -> Task:
    sets, missing = load_several(name, loaders, shelf)
    return StsTask(name, sets, average_of=len(loaders), missing=missing)


def _one(load: Callable[[Shelf], StsSet], shelf: Shelf, _: Conventions) -> Task:
    sts = load(shelf)
    return StsTask(sts.name, [sts])


STS_TASKS: dict[str, Entry] = {
    "sts": Entry("STS12 to STS16, STS-B and SICK-R, and their mean", "seven sets", _sts),
    **{
        name: Entry(
            f"SemEval similarity of 20{name[3:]}",
            f"{sum(STS_YEARS[name].values()):,} pairs",
            partial(_one, SEVEN[name]),
            _YEAR_HUBS[name],
        )
        for name in STS_YEARS
    },
    "stsb": Entry("STS benchmark, test", "1,379 pairs", partial(_one, SEVEN["stsb"]), _STSB_HUB),
    "stsb-dev": Entry(
        "STS benchmark, development", "1,500 pairs", partial(_one, partial(_stsb, "dev")), _STSB_HUB
    ),
    "sickr": Entry("SICK relatedness, test", "4,927 pairs", partial(_one, SEVEN["sickr"]), _SICK_HUB),
    "sick-trial": Entry("SICK relatedness, trial", "500 pairs", partial(_one, partial(_sick, "trial"))),
    "sts17": Entry("similarity within and across languages, and its mean", "eight sets", _sts17_all, _STS17_HUB),
    **{
        f"stsb-{code}{part}": Entry(
            f"STS benchmark in {language}, {'development' if part else 'test'}",
            "1,500 pairs" if part else "1,379 pairs",
            partial(_one, partial(_translated, code, "dev" if part else "test")),
            _TRANSLATED_HUB,
        )
        for code, language in _LANGUAGES.items()
        for part in ("", "-dev")
    },
}


_ENGLISH = (*STS_YEARS, *_STSB_NAMES, *_SICK_NAMES)


def as_senteval(task: Task) -> Task:
    """Preprocess the texts of a task; a set without any capital letter is assumed to be preprocessed already.

    Raises:
        InputError: the task is not one of SentEval's STS sets.
        MissingExtraError: sacremoses is not installed.
    """
    if not isinstance(task, StsTask) or any(each.name not in _ENGLISH for each in task.sets):
        raise InputError(f"{task.name}: SentEval's text is defined for its sets: {', '.join(('sts', *_ENGLISH))}")
    return replace(task, sets=[_prepared(each) for each in task.sets])


def _prepared(sts: StsSet) -> StsSet:
    if sts.lower_cased:
        return sts
    tokenize = require("sacremoses", extra="bench").MosesTokenizer("en").tokenize
    lower = sts.name not in _SICK_NAMES
    prepare = partial(_prepare, tokenize=partial(tokenize, escape=False, return_str=True), lower=lower)
    subsets = [
        ScoredPairs(pairs.name, [*map(prepare, pairs.first)], [*map(prepare, pairs.second)], pairs.scores)
        for pairs in sts.subsets
    ]
    done = "tokenized and lower-cased" if lower else "tokenized"
    return replace(sts, subsets=subsets, notes=[*sts.notes, f"the text was {done} as in SentEval"])


def _prepare(text: str, *, tokenize: Callable[[str], str], lower: bool) -> str:
    tokens = " ".join(tokenize(text).split())
    return tokens.lower() if lower else tokens
