"""Score distillation: a small cross-encoder learns the scores of a large one on mined pairs.

The run's corpus holds the passages, and ``settings.queries`` the queries. Pairs are mined and scored once, under
the cache, and shared by all runs with the same texts. The student starts from ``student.source``, which may be the
bundle of an encoder, or is cut from the first teacher's layers.

Batches hold groups, consecutive pairs of one query. Mean squared error fits every logit. MarginMSE fits the
differences between the logits of a query's passages, so that student and teacher may differ by a constant for
each query. Encoders may teach beside a cross-encoder: their cosines show which texts are about the same, its
logits which answer.

Source of MarginMSE: Hofstaetter et al., "Improving Efficient Neural Ranking Models with Cross-Architecture
Knowledge Distillation", 2020, equation 4, here over all pairs of a group, not only one relevant and one irrelevant
passage.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
from torch import Tensor
from torch.nn import functional

from embedkit.config import setting
from embedkit.errors import ConfigError
from embedkit.evaluation.reranking import RerankingSet, average_precisions, load_lists, merged
from embedkit.evaluation.tasks import PairPool
from embedkit.modeling.cross_encoder import PairEncoder
from embedkit.modeling.initialisation import SIZES, Size
from embedkit.modeling.teacher_layers import cross_from_layers
from embedkit.modeling.torch_encoder import TorchCrossEncoder
from embedkit.progress import Progress
from embedkit.protocols import FloatArray
from embedkit.runtime.encoder import Encoder
from embedkit.runtime.tokenization import PairTokenizer
from embedkit.training.batches import GroupBatches, check_groups
from embedkit.training.config import RunConfig
from embedkit.training.corpus import Corpus, Rows, SourceConfig, read_rows
from embedkit.training.loop import RunControl, Scores
from embedkit.training.method import BatchSpec, PairTrainingModule
from embedkit.training.mining import MiningConfig, Pairs, PairTeacher, mean_scores, mine, score
from embedkit.training.recipes.stage import (
    Recipe,
    Stage,
    corpus_inputs,
    report_truncation,
    spaced_rows,
)
from embedkit.training.run_folder import TrainState
from embedkit.training.students import adjust, load_cross_encoder

logger = logging.getLogger(__name__)

_PRESET = {"optim": {"lr": 2e-4, "batch_size": 64, "epochs": 2, "warmup": 0.1}}
_SAMPLE = 300  # pairs to fit a cut student on, some 40,000 tokens

PairLoss = Literal["mse", "margin-mse", "both"]


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)  # what caches are named after has no teachers
class QuerySource(SourceConfig):
    """A source of queries."""

    teachers: tuple[str, ...] = setting((), "names of the teachers that judge its queries; default: all")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScoreDistillationConfig:
    """Settings of score distillation."""

    queries: tuple[QuerySource, ...] = setting((), "sources of the queries; the corpus holds the passages")
    mining: MiningConfig = setting(factory=MiningConfig, doc="the candidates of each query")
    group: int = setting(4, "pairs of a query in a batch; a divisor of optim.batch_size", minimum=1)
    loss: PairLoss = setting("both", "mean squared error of logits, of margins, or both")
    length: int = setting(
        192,
        "maximum length of a pair in tokens, for teachers and in training; student.positions, if set, is the "
        "student's own",
        minimum=8,
    )
    dev: tuple[str, ...] = setting((), "re-ranking sets, .jsonl with query, positive and negative, for selection")

    def sources(self, config: RunConfig) -> list[QuerySource]:
        """The sources of the queries, with paths relative to the current folder."""
        return [dataclasses.replace(source, path=config.resolve(source.path)) for source in self.queries]

    def inputs(self, queries: Corpus) -> dict[str, str]:
        """Return the digests of the queries."""
        return corpus_inputs(self.queries, queries)

    def epoch_rows(self, queries: Corpus) -> int:
        """Return the number of pairs in an epoch."""
        return len(queries) * self.group


def pair_loss(name: PairLoss, logits: Tensor, targets: Tensor) -> Tensor:
    """Return a loss of the student's logits ``(Q, G)`` with the teacher's, averaged over pairs."""
    squares = functional.mse_loss(logits, targets)
    if name == "mse":
        return squares
    margins = functional.mse_loss(_margins(logits), _margins(targets))
    return margins if name == "margin-mse" else squares + margins


def _margins(scores: Tensor) -> Tensor:
    """Differences between all scores of a query, ``(Q, G, G)``."""
    return scores[:, :, None] - scores[:, None, :]


class PairGroups(GroupBatches):
    """Batches of groups: pairs of a query, one from each part of the range of its candidates' scores."""

    def __init__(self, pairs: Pairs, tokenizer: PairTokenizer, *, batch_size: int, group: int, seed: int) -> None:
        super().__init__(len(pairs.queries), tokenizer, batch_size=batch_size, group=group, seed=seed)
        self._pairs = pairs

    def draw(self, queries: Rows, generator: np.random.Generator) -> tuple[Iterable[tuple[str, str]], FloatArray]:
        """Draw the pairs of each query's group, and their scores."""
        pairs = self._pairs
        places = _spread(pairs.scores[queries], self._group, generator)
        passages = pairs.passages.texts(np.take_along_axis(pairs.candidates[queries], places, axis=1).ravel())
        texts = np.repeat(np.array(pairs.queries.texts(queries), dtype=object), self._group).tolist()
        scores = np.take_along_axis(pairs.scores[queries], places, axis=1).ravel()
        return zip(texts, passages, strict=True), scores


def _check(config: RunConfig, settings: ScoreDistillationConfig, _: Corpus) -> Corpus:
    """Check batches, development sets and the model to start from, before teachers score; return the queries."""
    queries = Corpus.prepare(settings.sources(config), Path(config.cache))
    if settings.group > settings.mining.count:
        raise ConfigError(
            f"settings.group = {settings.group} exceeds the {settings.mining.count} candidates of a query"
        )
    check_groups(len(queries), batch_size=config.optim.batch_size, group=settings.group)
    ranking_sets(config, settings.dev)
    length = config.student.positions or settings.length
    if config.student.source is not None:
        load_cross_encoder(config, max_length=length)
    elif config.student.tokenizer is not None:
        PairEncoder.load(_origin(config))
    else:
        _origin(config)  # the first teacher, which is loaded already
    return queries


def _train(stage: Stage, settings: ScoreDistillationConfig, _: None) -> TrainState:
    """A small cross-encoder learns the scores of a large one on mined pairs.

    Raises:
        ConfigError: batches do not fit the pairs.
    """
    config = stage.config
    queries, passages = stage.data.extra, stage.data.corpus
    pairs = prepare_pairs(config, settings, queries, passages, stage.data.pair_teachers, stage.control)
    if pairs is None:
        return TrainState()
    student = _student(config, settings, pairs)
    method = PairTrainingModule(student, functools.partial(pair_loss, settings.loss), group=settings.group)
    tokenizer = PairTokenizer(student.tokenizer.json, min(student.max_length, settings.length))
    rows = spaced_rows(len(queries))
    sample = list(zip(queries.texts(rows), passages.texts(pairs.candidates[rows, 0]), strict=True))
    report_truncation(tokenizer, sample, "pairs exceed settings.length")
    batches = PairGroups(
        pairs, tokenizer, batch_size=config.optim.batch_size, group=settings.group, seed=config.seed
    )
    return stage.fit(method, batches, config.optim, ranking_evaluation(config, settings.dev, student))


def prepare_pairs(
    config: RunConfig,
    settings: ScoreDistillationConfig,
    queries: Corpus,
    passages: Corpus,
    teachers: Sequence[PairTeacher],
    control: RunControl,
) -> Pairs | None:
    """Mine and score the pairs; None if the run was stopped."""
    cache, counted = Path(config.cache), _counted(settings.sources(config), queries, teachers)
    encoder = Encoder.load(config.resolve_model(settings.mining.encoder), threads=config.threads)
    folder, candidates = mine(
        queries, passages, encoder, settings.mining, cache, seed=config.seed, show_progress=control.show_progress
    )
    every: list[FloatArray] = []
    for teacher in teachers:
        scores = score(
            *(queries, passages, candidates, teacher, folder),
            should_stop=control.should_stop,
            show_progress=control.show_progress,
        )
        if scores is None:
            return None
        every.append(scores)
    logger.info("pairs: %s queries, %s candidates each, in %s", f"{len(queries):,}", candidates.shape[1], folder)
    return Pairs(queries, passages, candidates, mean_scores(teachers, every, counted))


def _counted(
    sources: Sequence[QuerySource], queries: Corpus, teachers: Sequence[PairTeacher]
) -> npt.NDArray[np.bool_]:
    """Return whether the scores of each of T teachers count for each query, ``(T, Q) bool``."""
    known = [teacher.name for teacher in teachers]
    named = dict[str, set[str]]()
    for source in sources:
        if unknown := [name for name in source.teachers if name not in known]:
            raise ConfigError(f"{source.path}: {unknown[0]} is not among the teachers: {', '.join(known)}")
        for _, _, row in read_rows(source):
            if row is not None:
                named.setdefault(row[0], set()).update(source.teachers or known)
    texts = queries.texts(np.arange(len(queries)))
    return np.array([[name in named[text] for text in texts] for name in known])


def _missing(settings: ScoreDistillationConfig, teachers: int) -> str | None:
    """Return the error in an incomplete configuration, or None."""
    if not teachers:
        return "score-distillation needs a teacher: name a cross-encoder with --teacher or [teacher]"
    if not settings.queries:
        return "score-distillation needs queries: name their files in [[settings.queries]]"
    return None


def _student(config: RunConfig, settings: ScoreDistillationConfig, pairs: Pairs) -> PairEncoder:
    """Load the student, or cut it from the first teacher, or ``student.tokenizer``, on a sample of the pairs."""
    student = config.student
    length = student.positions or settings.length
    if student.source is not None:
        mean, spread = float(pairs.scores.mean()), float(pairs.scores.std())
        return load_cross_encoder(config, max_length=length, mean=mean, spread=spread)
    rows = np.arange(len(pairs.queries))[:: max(1, len(pairs.queries) // _SAMPLE)][:_SAMPLE]
    places = np.random.default_rng(0).integers(0, pairs.candidates.shape[1], len(rows))
    sample = list(
        zip(pairs.queries.texts(rows), pairs.passages.texts(pairs.candidates[rows, places]), strict=True)
    )
    size = SIZES[student.size]
    shape = Size(student.layers or size.layers, student.hidden or size.hidden, 1, student.intermediate_size)
    cut = cross_from_layers(
        PairEncoder.load(_origin(config)),
        shape,
        sample,
        layers=student.teacher_layers or None,
        max_length=length,
        seed=config.seed,
    )
    adjust(cut, student)
    return cut


def _origin(config: RunConfig) -> str:
    """Return the folder or hub id of the model that a student without source is cut from."""
    source = config.resolve_model(config.student.tokenizer or config.every_teacher[0].source)
    if source.endswith(".onnx"):
        raise ConfigError(
            f"a student is cut from a model folder, not from {source}: name one in student.tokenizer, or a model "
            "to start from in student.source"
        )
    return source


def ranking_sets(config: RunConfig, paths: Sequence[str]) -> list[RerankingSet]:
    """Load the re-ranking sets that measure a cross-encoder.

    Raises:
        DataError: one is missing, empty or malformed.
    """
    return [load_lists(Path(config.resolve(path)), name=Path(path).stem, split="validation") for path in paths]


def ranking_evaluation(
    config: RunConfig, paths: Sequence[str], student: PairEncoder
) -> Callable[[], Scores] | None:
    """Return the function that measures a cross-encoder's MAP on re-ranking sets, or None without any."""
    sets = ranking_sets(config, paths)
    if not sets:
        return None

    def evaluate() -> Scores:
        scorer = TorchCrossEncoder(student)
        with Progress("evaluate", None, unit="pairs", enabled=False) as bar:
            pool = PairPool(scorer, bar)
            maps = {
                ranking_set.name: float(average_precisions(pool, ranking_set.queries, merged).mean())
                for ranking_set in sets
            }
        return {"dev": float(np.mean(list(maps.values())))} | maps

    return evaluate


def _spread(scores: FloatArray, group: int, generator: np.random.Generator) -> Rows:
    """Choose ``(Q, G)`` places of candidates: one from each of G equal parts of a query's ordered scores."""
    order = np.argsort(scores, axis=1, kind="stable")
    bounds = np.linspace(0, scores.shape[1], group + 1).astype(np.int64)
    chosen = [generator.integers(low, high, len(scores)) for low, high in itertools.pairwise(bounds)]
    return np.take_along_axis(order, np.stack(chosen, axis=1), axis=1)


SCORE_DISTILLATION = Recipe(
    ScoreDistillationConfig,
    _train,
    _check,
    presets=dict.fromkeys(SIZES, _PRESET),
    batch_spec=BatchSpec(several_teachers=True, scores=True),
    paper="Hofstaetter et al., 2020",
    settings_problem=_missing,
    scores_pairs=True,
    pair_teachers=True,
)
