"""Labelled pairs: a cross-encoder learns from queries and passages with judgements of relevance.

The corpus has two views, the query and the passage of each pair, and a column of labels: 0 and 1, or grades.
Binary cross-entropy fits each score to its label. The listwise loss compares the passages of one query: it is the
cross-entropy of their softmax with their labels, divided by the labels' sum.

Source of the listwise loss: Zhuang et al., "RankT5: Fine-Tuning T5 for Text Ranking with Ranking Losses", SIGIR
2023, equation 5.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import logging
import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Self

import numpy as np
from torch import Tensor
from torch.nn import functional

from embedkit.config import setting
from embedkit.errors import ConfigError, DataError
from embedkit.modeling.initialisation import SIZES
from embedkit.protocols import FloatArray
from embedkit.records import Record
from embedkit.runtime.tokenization import PairTokenizer
from embedkit.training.batches import GroupBatches, PairBatchSource, check_count, check_groups
from embedkit.training.config import RunConfig
from embedkit.training.corpus import Corpus, Rows, SourceConfig, read_rows, row_hash
from embedkit.training.method import BatchSpec, PairTrainingModule
from embedkit.training.recipes.score_distillation import ranking_evaluation, ranking_sets
from embedkit.training.recipes.stage import Recipe, Stage, report_truncated_pairs
from embedkit.training.run_folder import TrainState
from embedkit.training.students import load_cross_encoder

logger = logging.getLogger(__name__)

_PRESET: Mapping[str, Mapping[str, Any]] = {
    "optim": {"lr": 2e-5, "batch_size": 32, "epochs": 2, "warmup": 0.1},
    "dev": {"every": 200},
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelledPairsConfig:
    """Settings of training on labelled pairs."""

    label: str = setting("label", "column of the labels: 0 and 1, or grades, of which the largest counts as 1")
    loss: Literal["bce", "listwise"] = setting(
        "bce", "binary cross-entropy of each pair, or cross-entropy over the passages of a query"
    )
    group: int = setting(8, "listwise: pairs of a query in a batch; a divisor of optim.batch_size", minimum=2)
    length: int = setting(256, "maximum length of a pair in tokens, including special tokens", minimum=8)
    dev: tuple[str, ...] = setting((), "re-ranking sets, .jsonl with query, positive and negative, for selection")

    def inputs(self, labels: Labels) -> dict[str, str]:
        """Return the digest of the labels."""
        return {f"the labels in {self.label}": hashlib.sha256(labels.values.tobytes()).hexdigest()}

    def epoch_rows(self, labels: Labels) -> int:
        """Return the number of pairs in an epoch."""
        return len(labels.values) if self.loss == "bce" else self.group * len(labels.compared)


@dataclasses.dataclass(frozen=True)
class Labels:
    """The label of each pair of a corpus.

    Attributes:
        values: ``(N,) float32`` in [0, 1], divided by the largest label.
        disputed: number of pairs that occur with different labels; their value is the mean.
    """

    corpus: Corpus
    values: FloatArray
    disputed: int

    @classmethod
    def read(cls, sources: Sequence[SourceConfig], column: str, corpus: Corpus) -> Self:
        """Read the labels of a corpus from the sources that it was prepared from, relative to the current folder.

        Raises:
            DataError: the column is missing, a label is not a number of at least 0, all labels are equal, or they
            are the classes of natural language inference.
        """
        hashes, values, keys = array("Q"), array("f"), set[str]()
        for source in sources:
            for line, record, row in read_rows(source):
                if row is not None:  # other rows need no label
                    hashes.append(row_hash(row))
                    values.append(_label(record, column, f"{source.path}:{line}"))
                    keys = keys or {*record}
        labels = np.frombuffer(values, dtype=np.float32)
        _check_meaning(labels, column, keys)
        _, first, pair = np.unique(np.frombuffer(hashes, dtype=np.uint64), return_index=True, return_inverse=True)
        means = np.bincount(pair, weights=labels) / np.bincount(pair)
        disputed = np.unique(pair[labels != labels[first[pair]]])
        in_order = means[np.argsort(first)]
        if len(in_order) != len(corpus):
            raise DataError(f"{corpus.folder} holds {len(corpus):,} pairs, but {len(in_order):,} were read")
        scaled = (in_order / max(1.0, float(labels.max()))).astype(np.float32)
        return cls(corpus, scaled, len(disputed))

    @functools.cached_property
    def compared(self) -> list[Rows]:
        """The rows of each query whose passages have different labels."""
        by_query: dict[str, list[int]] = {}
        for row, query in enumerate(self.corpus.texts(np.arange(len(self.corpus)), 0)):
            by_query.setdefault(query, []).append(row)
        groups = (np.array(rows, dtype=np.int64) for rows in by_query.values())
        return [rows for rows in groups if np.ptp(self.values[rows]) > 0]


def _label(record: Record, column: str, place: str) -> float:
    if column not in record:
        raise DataError(f"{place}: there is no column {column}; name that of the labels in settings.label")
    value = record[column]
    try:
        label = float(value)
    except (TypeError, ValueError):
        label = math.nan
    if not (math.isfinite(label) and label >= 0):
        raise DataError(f"{place}: expected a label of at least 0 in the column {column}, found {value!r}")
    return label


def _check_meaning(labels: FloatArray, column: str, keys: set[str]) -> None:
    """Check that labels are grades that differ."""
    found = np.unique(labels)
    if len(found) < 2:
        raise DataError(
            f"all labels in {column} are {found[0]:g}, from which a re-ranker learns one score for every pair: "
            "add pairs of the other kind, such as passages that do not answer the query, with the label 0"
        )
    if {"premise", "hypothesis"} <= keys and set(found.tolist()) == {0.0, 1.0, 2.0}:
        raise DataError(
            f"the labels in {column} are the classes of natural language inference (0 entailment, 1 neutral, 2 "
            "contradiction), not grades: write 1 for entailment and 0 for the others, and name that column"
        )


def listwise_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the cross-entropy of the passages' softmax with their labels, averaged over queries.

    Args:
        logits: ``(Q, G)``.
        labels: ``(Q, G)``, at least 0, and above 0 for at least one passage of each query.
    """
    shares = labels / labels.sum(dim=1, keepdim=True)
    return -(shares * functional.log_softmax(logits, dim=1)).sum(dim=1).mean()


class QueryGroups(GroupBatches):
    """Batches of groups: a query's best passage, or one of several, and others of the same query at random.

    A query with fewer passages than a group repeats them. Queries whose passages all have the same label are left
    out.
    """

    def __init__(
        self, labels: Labels, tokenizer: PairTokenizer, *, batch_size: int, group: int, seed: int
    ) -> None:
        super().__init__(len(labels.compared), tokenizer, batch_size=batch_size, group=group, seed=seed)
        self._labels = labels

    def draw(self, queries: Rows, generator: np.random.Generator) -> tuple[Iterable[tuple[str, str]], FloatArray]:
        """Draw the pairs of each query's group, and their labels."""
        labels = self._labels
        rows = np.concatenate([self._draw(labels.compared[query], generator) for query in queries])
        pairs = zip(labels.corpus.texts(rows, 0), labels.corpus.texts(rows, 1), strict=True)
        return pairs, labels.values[rows]

    def _draw(self, rows: Rows, generator: np.random.Generator) -> Rows:
        labels = self._labels.values[rows]
        best = generator.choice(rows[labels == labels.max()])
        others = generator.permutation(rows[rows != best])
        return np.concatenate([[best], np.resize(others, self._group - 1)])


def _check(config: RunConfig, settings: LabelledPairsConfig, corpus: Corpus) -> Labels:
    """Check that there are labelled pairs and a model to start from; return the labels."""
    if corpus.views != 2:
        raise ConfigError(
            f"{config.method} learns from pairs: name the columns of query and passage with --view-columns"
        )
    if config.student.source is None:
        raise ConfigError(
            f"{config.method} continues from a model: name a cross-encoder or an encoder with --student"
        )
    ranking_sets(config, settings.dev)
    load_cross_encoder(config, max_length=settings.length)
    labels = Labels.read(config.sources, settings.label, corpus)
    batch_size = config.optim.batch_size
    if settings.loss == "listwise":
        if not labels.compared:
            raise ConfigError(
                "no query has passages with different labels for the listwise loss to compare: set settings.loss "
                "= bce"
            )
        check_groups(len(labels.compared), batch_size=batch_size, group=settings.group)
    else:
        check_count(len(corpus), batch_size)
    return labels


def _train(stage: Stage, settings: LabelledPairsConfig, _: None) -> TrainState:
    """A cross-encoder learns from labelled pairs of queries and passages."""
    config, labels = stage.config, stage.data.extra
    student = load_cross_encoder(config, max_length=settings.length)
    if labels.disputed:
        logger.warning(
            "%s pairs occur with different labels in %s: their mean is used",
            *(f"{labels.disputed:,}", settings.label),
        )
    report_truncated_pairs(labels.corpus, student.tokenizer, "settings.length")
    made: dict[str, Any] = {"batch_size": config.optim.batch_size, "seed": config.seed}
    evaluate = ranking_evaluation(config, settings.dev, student)
    if settings.loss == "bce":
        pairs = PairBatchSource(labels.corpus, student.tokenizer, scores=labels.values, both_orders=False, **made)
        learner = PairTrainingModule(student, functional.binary_cross_entropy_with_logits)
        return stage.fit(learner, pairs, config.optim, evaluate)
    groups = QueryGroups(labels, student.tokenizer, group=settings.group, **made)
    return stage.fit(
        PairTrainingModule(student, listwise_loss, group=settings.group), groups, config.optim, evaluate
    )


LABELLED_PAIRS = Recipe(
    LabelledPairsConfig,
    _train,
    _check,
    presets=dict.fromkeys(SIZES, _PRESET),
    batch_spec=BatchSpec(scores=True),
    paper="Zhuang et al., SIGIR 2023",
    scores_pairs=True,
)
