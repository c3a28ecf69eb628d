"""Contrastive training: an encoder learns from labelled queries and from graded pairs, among the documents.

The corpus is the documents, among which negatives are mined: the passages nearest to a query by the vectors of the
start, without those that may answer it. A passage whose cosine exceeds a share of the best positive's is left out
(Moreira et al., "NV-Retriever", 2024).
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from embedkit.config import setting
from embedkit.errors import ConfigError
from embedkit.evaluation.sts import ScoredPairs, load_scored_pairs
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.modeling.initialisation import SIZES
from embedkit.modeling.torch_encoder import TorchEncoder
from embedkit.protocols import FloatArray
from embedkit.runtime.encoder import Encoder
from embedkit.runtime.find import find_bundle, find_model
from embedkit.runtime.options import Role, with_prompt
from embedkit.runtime.tokenization import Tokens
from embedkit.training import processes
from embedkit.training.batches import Batches, check_count, chunk_view
from embedkit.training.config import RunConfig
from embedkit.training.corpus import Corpus, Rows
from embedkit.training.method import Batch, BatchSpec, View
from embedkit.training.methods.contrastive import Contrastive, ListLoss
from embedkit.training.mining import PairTeacher, nearest_negatives
from embedkit.training.pairs import Judgement, LabelledQueries, read_queries, text_rows
from embedkit.training.recipes.stage import Recipe, Stage, report_truncation, spaced_rows
from embedkit.training.run_folder import TrainState

_NEIGHBOURS = 3  # of the batch size: the nearest that a batch of neighbours is drawn from
_PRESET = {
    "optim": {
        "lr": 5e-4,
        "batch_size": 32,
        "epochs": 5,
        "warmup": 0.1,
        "correct_bias": True,
        "epsilon": 1e-8,
    },
    "student": {"dropout": 0.0},
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ContrastiveConfig:
    """Settings of contrastive training."""

    pairs: tuple[str, ...] = setting(
        (), "labelled queries: files with query and passage, or folders in BEIR's form, split train"
    )
    graded: tuple[str, ...] = setting((), "files of two sentences and a score, trained by CoSENT")
    loss: ListLoss = setting("info-nce", "margin-mse and kl fit the scores of the teacher, a cross-encoder")
    temperature: float = setting(0.05, "temperature of cosines", above=0)
    anchor: float = setting(0.3, "weight of the squared distance from the vectors of the start", minimum=0)
    texts: int = setting(0, "number of further texts in a batch that are only held by the anchor", minimum=0)
    general: str | None = setting(None, "file of these texts; default: the documents")
    origin: str | None = setting(None, "bundle whose vectors hold the texts in general; default: the start")
    negatives: int = setting(1, "number of a query's own negatives in a batch, given ones first", minimum=0)
    depth: int = setting(20, "number of a query's nearest passages that negatives are drawn from", minimum=1)
    margin: float = setting(
        0.95, "passages whose cosine exceeds this share of the best positive's are not negatives", above=0
    )
    neighbours: float = setting(
        0.0, "share of the batches that are a query and others from those nearest to it", minimum=0, maximum=1
    )
    freeze_documents: bool = setting(False, "train queries against the vectors of the start for documents")
    candidates: int = setting(8, "margin-mse and kl: negatives of a query that the teacher scores", minimum=1)
    length: int = setting(256, "margin-mse and kl: maximum length of a pair in tokens", minimum=8)

    def inputs(self, labels: Labels) -> dict[str, str]:
        """Return the digest of the labels."""
        content = [] if labels.queries is None else [*labels.queries.judgements()]
        graded = labels.graded
        pairs = [] if graded is None else [graded.first, graded.second, graded.scores.tolist()]
        read = json.dumps([content, pairs, *labels.general])
        return {"the labels": hashlib.sha256(read.encode()).hexdigest()}

    def epoch_rows(self, labels: Labels) -> int:
        """Return the number of queries in an epoch, or of graded pairs without any; twice with both."""
        counts = [len(rows) for rows in (labels.queries, labels.graded) if rows is not None]
        return len(counts) * counts[0]


@dataclasses.dataclass(frozen=True)
class Labels:
    """The labels of a run, labelled queries among all passages, graded pairs, or both; and general texts."""

    queries: LabelledQueries | None
    graded: ScoredPairs | None
    general: Sequence[str] = ()


@dataclasses.dataclass(frozen=True)
class _Start:
    """The vectors of the encoder that training starts from, by the runtime if it is a bundle, with its prompts."""

    config: RunConfig
    encoder: SentenceEncoder

    def __call__(self, texts: Sequence[str], role: Role = "document") -> FloatArray:
        source = self.config.student.source
        bundle = None if source is None else find_bundle(self.config.resolve_model(source))
        if bundle is None:
            return TorchEncoder(self.encoder).encode_ids(tokenize(self.encoder, texts, role).ids)
        runtime = Encoder.load(bundle, threads=self.config.threads)
        encode = runtime.encode_query if role == "query" else runtime.encode_document
        return np.asarray(encode(list(texts), show_progress_bar=False), dtype=np.float32)


def tokenize(encoder: SentenceEncoder, texts: Sequence[str], role: Role) -> Tokens:
    """Tokenize texts after the model's prompt for queries or documents, as in a search."""
    name = with_prompt({}, role, encoder.prompts)["prompt_name"]
    return encoder.tokenizer.tokenize(list(texts), prompt=encoder.prompts[name] if name else "")


class QueryBatches(Batches):
    """Batches of queries, of one positive and some negatives of each, and of further texts.

    A passage is in a batch once. The label of a query and a passage is 1 for the positive that was drawn, in
    proportion to its weight; NaN for its other positives, and for those of other queries that may answer it by the
    vectors of the start; else 0. ``scored``, a matrix for each query, replaces labels by a cross-encoder's scores.
    ``others`` are the further texts and the vectors that hold them, by default the passages.

    Raises:
        ConfigError: there are fewer queries than ``batch_size``.
    """

    def __init__(
        self,
        labelled: LabelledQueries,
        encoder: SentenceEncoder,
        settings: ContrastiveConfig,
        vectors: tuple[FloatArray, FloatArray],
        *,
        batch_size: int,
        seed: int,
        scored: Sequence[dict[int, float]] | None = None,
        others: tuple[Sequence[str], FloatArray] | None = None,
    ) -> None:
        super().__init__(len(labelled), batch_size=batch_size, seed=seed)
        self._others = others or (labelled.passages, vectors[1])
        self._labelled, self._encoder, self._settings = labelled, encoder, settings
        self._vectors, self._scored, self._draws = vectors, scored, seed
        mined = nearest_negatives(
            *vectors, labelled.positives, depth=settings.depth, margin=settings.margin, known=labelled.negatives
        )
        given = [len(rows) > 0 for rows in labelled.negatives]
        self._negatives = [
            labelled.negatives[row] if is_given else mined[row] for row, is_given in enumerate(given)
        ]
        queries, passages = vectors
        if settings.neighbours:
            centres = queries + np.stack([passages[rows].mean(axis=0) for rows in labelled.positives])
            self._directions = centres / np.linalg.norm(centres, axis=1, keepdims=True)
        self._limits = [
            settings.margin * float((passages[rows] @ queries[row]).max())
            for row, rows in enumerate(labelled.positives)
        ]

    def rows(self, step: int) -> Rows:
        """Return the queries of a batch: in turn, or the first of these and others from those nearest to it."""
        rows = super().rows(step)
        generator = np.random.default_rng([self._draws, 2, step])
        if generator.random() >= self._settings.neighbours:
            return rows
        distances = -(self._directions @ self._directions[rows[0]])
        distances[rows[0]] = -np.inf
        nearest = np.argsort(distances, kind="stable")[1 : _NEIGHBOURS * len(rows)]
        return np.array([rows[0], *generator.choice(nearest, len(rows) - 1, replace=False)])

    def batch(self, step: int) -> Batch:
        """Return the batch of a step, counted from 0."""
        rows = self.rows(step)
        generator = np.random.default_rng([self._draws, 1, step])
        if self._scored is None:
            drawn = [self._draw(row, generator) for row in rows]
        else:
            drawn = [list(self._scored[row]) for row in rows]
        passages = np.array(list(dict.fromkeys(row for listed in drawn for row in listed)), dtype=np.int64)
        if self._scored is None:
            labels = self._labels(rows, [listed[0] for listed in drawn], passages)
        else:
            labels = np.array([[self._scored[row].get(p, np.nan) for p in passages.tolist()] for row in rows])
        others = generator.integers(0, len(self._others[0]), self._settings.texts)
        return self._make(rows, passages, others, labels.astype(np.float32))

    def _draw(self, row: int, generator: np.random.Generator) -> list[int]:
        """Draw one positive and some negatives of a query."""
        weights = self._labelled.weights[row].astype(np.float64)
        positive = generator.choice(self._labelled.positives[row], p=weights / weights.sum())
        count = min(self._settings.negatives, len(self._negatives[row]))
        negatives = generator.permutation(self._negatives[row])[:count]
        return [int(positive), *negatives.tolist()]

    def _labels(self, rows: Rows, positives: list[int], passages: Rows) -> npt.NDArray[np.floating[Any]]:
        queries, documents = self._vectors
        labels = np.zeros((len(rows), len(passages)), dtype=np.float32)
        cosines = queries[rows] @ documents[passages].T
        for place, (row, positive) in enumerate(zip(rows.tolist(), positives, strict=True)):
            unknown = cosines[place] > self._limits[row]
            unknown &= ~np.isin(passages, self._labelled.negatives[row])
            labels[place, unknown | np.isin(passages, self._labelled.positives[row])] = np.nan
            labels[place, passages == positive] = 1
        return labels

    def _make(self, rows: Rows, passages: Rows, others: Rows, labels: FloatArray) -> Batch:
        labelled, (queries, documents), (further, held) = self._labelled, self._vectors, self._others
        texts: list[tuple[list[str], Role, FloatArray]]
        texts = [
            ([labelled.queries[row] for row in rows], "query", queries[rows]),
            ([labelled.passages[row] for row in passages], "document", documents[passages]),
        ]
        if len(others):
            texts.append(([further[row] for row in others], "document", held[others]))
        views = [_view(self._encoder, listed, role) for listed, role, _ in texts]
        if self._settings.freeze_documents:
            del views[1:]
            del texts[2:]
        teacher = tuple(torch.from_numpy(np.ascontiguousarray(vectors)) for _, _, vectors in texts)
        return Batch(tuple(views), (teacher,), torch.from_numpy(labels))


class GradedBatches(Batches):
    """Batches of graded pairs of sentences, with the vectors of the start."""

    def __init__(
        self, pairs: ScoredPairs, encoder: SentenceEncoder, start: _Start, *, batch_size: int, seed: int
    ) -> None:
        super().__init__(len(pairs), batch_size=batch_size, seed=seed)
        self._pairs, self._encoder = pairs, encoder
        self._vectors = start(pairs.first), start(pairs.second)

    def batch(self, step: int) -> Batch:
        """Return the batch of a step, counted from 0."""
        rows = self.rows(step)
        sides = ([texts[row] for row in rows] for texts in (self._pairs.first, self._pairs.second))
        views = tuple(_view(self._encoder, texts, "document") for texts in sides)
        teacher = tuple(torch.from_numpy(vectors[rows]) for vectors in self._vectors)
        return Batch(views, (teacher,), torch.from_numpy(self._pairs.scores[rows].astype(np.float32)))


class _Alternating(Batches):
    """Batches of two kinds in turn."""

    def __init__(self, first: Batches, second: Batches) -> None:  # not Batches.__init__: the two have rows
        self.steps_per_epoch = 2 * first.steps_per_epoch
        self.on_gpu = False
        self._kinds = first, second

    def batch(self, step: int) -> Batch:
        """Return the batch of a step, counted from 0."""
        return self._kinds[step % 2].batch(step // 2)


def _view(encoder: SentenceEncoder, texts: Sequence[str], role: Role) -> View:
    return chunk_view(tokenize(encoder, texts, role), encoder.tokenizer.pad_id)


def _labelled(config: RunConfig, settings: ContrastiveConfig, corpus: Corpus) -> LabelledQueries | None:
    """Read the labelled queries of all files, and of a corpus of pairs, among all documents."""
    found = [read_queries(config.resolve(path)) for path in settings.pairs]
    if corpus.views == 2:
        rows = zip(corpus.stream(0), corpus.stream(1), strict=True)
        found.append(LabelledQueries.of(Judgement(query, passage, 1.0) for query, passage in rows))
    judgements = (judgement for queries in found for judgement in queries.judgements())
    passages = (passage for queries in found for passage in queries.passages)
    return LabelledQueries.of(judgements, [*passages, *corpus.stream(corpus.views - 1)]) if found else None


def _graded(config: RunConfig, settings: ContrastiveConfig) -> ScoredPairs | None:
    """Read the graded pairs of all files, as ranks within each, because files differ in their scales."""
    if not settings.graded:
        return None
    sets = [load_scored_pairs(config.resolve(path), split="train") for path in settings.graded]
    scores = [np.searchsorted(np.unique(each.scores), each.scores) / len(np.unique(each.scores)) for each in sets]
    first, second = ([text for each in sets for text in getattr(each, side)] for side in ("first", "second"))
    return ScoredPairs("graded", first, second, np.concatenate(scores))


def _check(config: RunConfig, settings: ContrastiveConfig, corpus: Corpus) -> Labels:
    """Return the labels; check that there are any, and that they fill a batch."""
    found = () if settings.general is None else text_rows(Path(config.resolve(settings.general)))
    general = [row.text("text") for row in found]
    labels = Labels(_labelled(config, settings, corpus), _graded(config, settings), general)
    if labels.queries is None and labels.graded is None:
        raise ConfigError(f"{config.method} learns from labels: name files in settings.pairs or settings.graded")
    if config.student.source is None:
        raise ConfigError(f"{config.method} continues the training of an encoder: name it in student.source")
    if processes.count() > 1:
        raise ConfigError(f"{config.method} runs in one process, not {processes.count()}")
    for rows in (labels.queries, labels.graded):
        if rows is not None:
            check_count(len(rows), config.optim.batch_size)
    return labels


def _problem(settings: ContrastiveConfig, teachers: int) -> str | None:
    """Return the error in the settings or in the number of teachers, or None."""
    if settings.general is not None and not settings.texts:
        return "settings.general names texts, but settings.texts = 0 puts none into a batch: raise it"
    if settings.origin is not None and settings.general is None:
        return "settings.origin embeds general texts: name them in settings.general"
    if settings.loss != "info-nce" and not teachers:
        return f"settings.loss = {settings.loss} needs a cross-encoder: name it with --teacher"
    if settings.loss == "info-nce" and teachers:
        return "settings.loss = info-nce uses no teacher: remove it, or set margin-mse or kl"
    return None


def _train(stage: Stage, settings: ContrastiveConfig, encoder: SentenceEncoder) -> TrainState:
    """An encoder learns from labelled queries and graded pairs, held near the vectors it starts from."""
    config, labels = stage.config, stage.data.extra
    start = _Start(config, encoder)
    made: dict[str, Any] = {"batch_size": config.optim.batch_size, "seed": config.seed}
    kinds: list[Batches] = []
    if (labelled := labels.queries) is not None:
        passages = [labelled.passages[row] for row in spaced_rows(len(labelled.passages))]
        report_truncation(encoder.tokenizer, passages, "passages exceed student.max_length")
        vectors = start(labelled.queries, "query"), start(labelled.passages)
        (teacher,) = stage.data.pair_teachers or (None,)
        scored = None if teacher is None else _scored(teacher, settings, labelled, vectors)
        others = _general(config, settings, labels.general, start) if labels.general else None
        kinds.append(QueryBatches(labelled, encoder, settings, vectors, scored=scored, others=others, **made))
    if labels.graded is not None:
        kinds.append(GradedBatches(labels.graded, encoder, start, **made))
    encoder.prompts |= config.student.prompts  # from here on: the vectors of the start are those of its own
    learner = Contrastive(
        encoder,
        loss=settings.loss,
        temperature=settings.temperature,
        anchor=settings.anchor,
        frozen=settings.freeze_documents,
    )
    batches = kinds[0] if len(kinds) == 1 else _Alternating(*kinds)
    documents = TorchEncoder(copy.deepcopy(encoder)) if settings.freeze_documents else None
    return stage.fit(learner, batches, config.optim, stage.evaluation(encoder, documents))


def _general(
    config: RunConfig, settings: ContrastiveConfig, texts: Sequence[str], start: _Start
) -> tuple[Sequence[str], FloatArray]:
    """Return general texts with the vectors that hold them."""
    if settings.origin is None:
        return texts, start(texts)
    origin = Encoder.load(find_model(config.resolve_model(settings.origin)), threads=config.threads)
    return texts, np.asarray(origin.encode_document(list(texts), show_progress_bar=False), dtype=np.float32)


def _scored(
    teacher: PairTeacher,
    settings: ContrastiveConfig,
    labelled: LabelledQueries,
    vectors: tuple[FloatArray, FloatArray],
) -> list[dict[int, float]]:
    """Return a cross-encoder's score of each query's best positive, and of the passages nearest to it."""
    nearest = nearest_negatives(
        *vectors, [rows[:0] for rows in labelled.positives], depth=settings.candidates, margin=np.inf
    )
    lists = [
        list(dict.fromkeys([int(rows[np.argmax(weights)]), *others.tolist()]))
        for rows, weights, others in zip(labelled.positives, labelled.weights, nearest, strict=True)
    ]
    pairs = [
        (query, labelled.passages[row])
        for query, listed in zip(labelled.queries, lists, strict=True)
        for row in listed
    ]
    scores = iter(teacher.scores(pairs).tolist())
    return [{row: next(scores) for row in listed} for listed in lists]


CONTRASTIVE = Recipe(
    ContrastiveConfig,
    _train,
    _check,
    presets=dict.fromkeys(SIZES, _PRESET),
    batch_spec=BatchSpec(scores=True),
    paper="van den Oord et al., 2018",
    settings_problem=_problem,
    pair_teachers=True,
)
