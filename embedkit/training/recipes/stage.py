"""One stage of a run: a method trained by the loop on the data that all stages share; and recipes of stages."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch

from embedkit.errors import ConfigError
from embedkit.evaluation.sts import ScoredPairs, evaluate_pairs
from embedkit.evaluation.tasks import EmbeddingCache, Task
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.modeling.torch_encoder import TorchEncoder, to_device
from embedkit.protocols import TextEncoder
from embedkit.runtime.tokenization import PairTokenizer, Tokenizer
from embedkit.training.batches import Batches, BatchSource, check_batches, chunk_view
from embedkit.training.config import RunConfig
from embedkit.training.corpus import Corpus, Rows, SourceConfig
from embedkit.training.loop import RunControl, Scores, train
from embedkit.training.method import BatchSpec, Distillation, Presets, TrainingModule
from embedkit.training.methods import METHODS
from embedkit.training.mining import PairTeacher
from embedkit.training.optim import OptimConfig
from embedkit.training.run_folder import RunFolder, TrainState
from embedkit.training.students import adjust
from embedkit.training.teachers import CachedVectors, TeacherVectors

logger = logging.getLogger(__name__)
_LARGEST_SHARE = 0.1


@dataclasses.dataclass(frozen=True)
class Split:
    """Training rows, repeated as in an epoch, and held-out rows of each source."""

    train: Rows
    held_out: Mapping[str, Rows]

    @classmethod
    def of(cls, corpus: Corpus, count: int | None) -> Split:
        """Hold out ``count`` rows of each source, at most a tenth of it; None holds out nothing.

        The choice does not depend on the seed. Of a source with translations, only these are held out: its
        distance is that from the originals' vectors. Sources with the same name are pooled in ``held_out``.

        Raises:
            ConfigError: every source has fewer than ten rows.
        """
        repeats = np.repeat([card.repeat for card in corpus.cards], [card.rows for card in corpus.cards])
        if count is None:
            return cls(np.repeat(np.arange(len(corpus)), repeats), {})
        ends = np.cumsum([card.rows for card in corpus.cards])
        drawn: dict[str, list[Rows]] = {}
        for number, (card, end) in enumerate(zip(corpus.cards, ends, strict=True)):
            rows = np.arange(end - card.rows, end)
            translations = rows[corpus.target_rows[rows] != rows]
            rows = translations if len(translations) else rows
            most = min(count, int(len(rows) * _LARGEST_SHARE))
            places = np.random.default_rng([0, number]).permutation(len(rows))[:most]
            drawn.setdefault(card.name, []).append(rows[np.sort(places)])
        held_out = {name: np.concatenate(rows) for name, rows in drawn.items() if sum(map(len, rows))}
        if not held_out:
            raise ConfigError(
                f"dev.held_out holds out at most a tenth of a source, but no source has ten rows (the corpus has "
                f"{len(corpus)}): add text, or remove dev.held_out"
            )
        kept = np.ones(len(corpus), dtype=bool)
        for rows in held_out.values():
            kept[np.isin(corpus.source_rows, corpus.source_rows[rows])] = False
        return cls(np.repeat(np.flatnonzero(kept), repeats[kept]), held_out)


class HeldOut:
    """Measures the distance from a teacher's vectors on held-out text of each source."""

    def __init__(self, corpus: Corpus, rows: Mapping[str, Rows], teacher: TeacherVectors) -> None:
        self._texts = {name: corpus.texts(of_source) for name, of_source in rows.items()}
        self._vectors = {name: teacher.read(of_source, 0) for name, of_source in rows.items()}

    def distances(self, encoder: TextEncoder) -> dict[str, float]:
        """Return the mean of 1 - cosine between student and teacher for each source, in [0, 2]."""
        return {
            name: float(1 - (encoder.encode(texts) * self._vectors[name]).sum(axis=1).mean())
            for name, texts in self._texts.items()
        }


@dataclasses.dataclass(frozen=True)
class RunData:
    """Data shared by all stages of a run.

    Attributes:
        corpus: the text.
        dev: scored pairs that select a step.
        dev_set: another set that selects a step.
        split: training and held-out rows.
        teachers: vectors of the corpus.
        pair_teachers: models that score pairs.
        extra: further data of a recipe: queries or labels.
    """

    corpus: Corpus
    dev: ScoredPairs | None
    split: Split
    teachers: tuple[TeacherVectors, ...] = ()
    pair_teachers: tuple[PairTeacher, ...] = ()
    extra: Any = None
    dev_set: Task | None = None

    def inputs(self, config: RunConfig) -> dict[str, str]:
        """Map descriptions of everything that was read to digests of its content."""
        inputs = corpus_inputs(config.corpus, self.corpus)
        if self.extra is not None:
            inputs |= config.settings.inputs(self.extra)
        inputs |= {f"the vectors of teacher {teacher.name}": teacher.fingerprint for teacher in self.teachers}
        inputs |= {f"the teacher {teacher.name}": teacher.fingerprint for teacher in self.pair_teachers}
        if self.dev is not None:
            pairs = [self.dev.first, self.dev.second, self.dev.scores.tolist()]
            content = hashlib.sha256(json.dumps(pairs).encode()).hexdigest()
            inputs[f"the development pairs {config.dev.pairs}"] = content
        if self.dev_set is not None:
            content = hashlib.sha256(json.dumps([*self.dev_set.texts()]).encode()).hexdigest()
            inputs[f"the development set {config.dev.set}"] = content
        return inputs


def corpus_inputs(sources: Sequence[SourceConfig], corpus: Corpus) -> dict[str, str]:
    """Map the sources of a corpus to digests of the texts that were kept of them."""
    inputs: dict[str, str] = {}
    for source, card in zip(sources, corpus.cards, strict=True):
        name = f"the text {source.path}"
        inputs[name] = inputs.get(name, "") + card.sha256
    return inputs


_LENGTH_SAMPLE = 2000


def spaced_rows(count: int) -> Rows:
    """Return evenly spaced ones of ``count`` rows, some thousands at most."""
    return np.unique(np.linspace(0, count - 1, min(count, _LENGTH_SAMPLE)).astype(np.int64))


def report_truncated_texts(data: RunData, tokenizer: Tokenizer) -> None:
    """Log the share of texts that student and teachers truncate, by a sample of each column."""
    rows = spaced_rows(len(data.corpus))
    texts = [text for view in range(data.corpus.views) for text in data.corpus.texts(rows, view)]
    limits = {teacher.name: teacher.max_length for teacher in data.teachers if isinstance(teacher, CachedVectors)}
    report_truncation(tokenizer, texts, "texts exceed student.max_length", limits)


def report_truncated_pairs(corpus: Corpus, tokenizer: PairTokenizer, setting: str) -> None:
    """Log the share of pairs of a corpus' two columns that exceed a setting, by a sample."""
    rows = spaced_rows(len(corpus))
    pairs = list(zip(corpus.texts(rows, 0), corpus.texts(rows, 1), strict=True))
    report_truncation(tokenizer, pairs, f"pairs exceed {setting}")


def report_truncation(
    tokenizer: Tokenizer | PairTokenizer,
    items: Sequence[Any],
    described: str,
    limits: Mapping[str, int] = MappingProxyType({}),
) -> None:
    """Log the share of a sample of texts or pairs that is truncated; ``limits`` are those of teachers, in tokens.

    A student cannot imitate its teacher on text that the student does not see.
    """
    cut = tokenizer.tokenize(items).truncated
    reading = "".join(f"; teacher {name} reads {length}" for name, length in limits.items())
    if cut:
        logger.log(
            logging.WARNING if any(length > tokenizer.max_length for length in limits.values()) else logging.INFO,
            "about %.1f %% of the %s = %d tokens and are truncated%s",
            *(100 * cut / len(items), described, tokenizer.max_length, reading),
        )


class _TwoEncoders:
    """An encoder of queries, and another one of documents."""

    def __init__(self, queries: TorchEncoder, documents: TorchEncoder) -> None:
        self.name, self.fingerprint = queries.name, queries.fingerprint
        self.dimension, self.max_length = queries.dimension, queries.max_length
        self.encode, self.encode_query = queries.encode, queries.encode_query
        self.encode_document = documents.encode_document


def score_set(encoder: TextEncoder, task: Task) -> float:
    """Return the headline of the last result of a task; NaN if it is undefined."""
    value = task.results(EmbeddingCache(encoder, task.texts(), label="evaluate", progress=False))[-1].value
    return float("nan") if value is None else value


LEAST_AGREEMENT = 0.5
"""Mean cosine of two encoders of one space; it is about 0 in unrelated spaces."""
_HEAD_SAMPLE = 4096  # number of texts to fit a new linear head on
_HEAD_BATCH = 256


@dataclasses.dataclass(frozen=True)
class Stage:
    """Everything that a stage of a run needs, apart from a method and an encoder."""

    config: RunConfig
    data: RunData
    folder: RunFolder
    control: RunControl

    def inside(self, *names: str, **changes: Any) -> Stage:
        """Return a stage whose run folder is a sub-folder of this one's, with other attributes changed."""
        return dataclasses.replace(self, folder=self.folder.stage(*names), **changes)

    def train(
        self, method_name: str, settings: Any, encoder: SentenceEncoder, optim: OptimConfig | None = None
    ) -> TrainState:
        """Train one method from ``encoder``, in place; the result is written to ``folder.model``.

        The encoder gets the dropout and the frozen words of the configuration, which its files do not record. The
        optimizer settings default to those of the run.

        Raises:
            TrainingError, CheckpointError, StorageError: see :func:`~embedkit.training.loop.train`.
        """
        kind, optim = METHODS[method_name], optim or self.config.optim
        arguments = kind.teacher_arguments([teacher.dimension for teacher in self.data.teachers])
        adjust(encoder, self.config.student)
        method = kind(encoder, settings, seed=self.config.seed, **arguments)
        batches = BatchSource(
            self.data.corpus,
            encoder.tokenizer,
            spec=kind.needs(settings),
            batch_size=optim.batch_size,
            seed=self.config.seed,
            views=self.config.views,
            teachers=self.data.teachers,
            rows=self.data.split.train,
        )
        if isinstance(method, Distillation):
            self._start_head(method)
        return self.fit(method, batches, optim, self.evaluation(encoder))

    def fit(
        self, method: TrainingModule, batches: Batches, optim: OptimConfig, evaluate: Callable[[], Scores] | None
    ) -> TrainState:
        """Train a method, moved to the run's device, on its batches; the result is written to ``folder.model``.

        ``evaluate`` scores ``method.encoder`` on a development set.

        Raises:
            ConfigError: the device cannot be used.
            TrainingError, CheckpointError, StorageError: see :func:`~embedkit.training.loop.train`.
        """
        to_device(method, self.config.device)
        config = dataclasses.replace(self.config, optim=optim)
        return train(method, batches, config, self.folder, self.control, evaluate)

    def _start_head(self, method: Distillation) -> None:
        """Fit the head to the teacher's space on a sample of the training text, unless it leads there already.

        A fitted head is worse than one that a long run has trained, even if that run's teacher was, for instance,
        rounded in another way. The embeddings therefore decide, not the model's record.
        """
        corpus, tokenizer = self.data.corpus, method.encoder.tokenizer
        rows = np.random.default_rng(0).permutation(self.data.split.train)[:_HEAD_SAMPLE]
        vectors = self.data.teachers[0].read(rows, 0)
        if self.config.student.source is not None and not method.head_is_new:
            found = TorchEncoder(method.encoder).encode(corpus.texts(rows[:_HEAD_BATCH]))
            if (found * vectors[:_HEAD_BATCH]).sum(axis=1).mean() < LEAST_AGREEMENT:
                method.renew_head(seed=self.config.seed)
        if method.awaits_start:
            parts = np.array_split(rows, -(-len(rows) // _HEAD_BATCH))
            views = (chunk_view(tokenizer.tokenize(corpus.texts(part)), tokenizer.pad_id) for part in parts)
            method.start_head(views, torch.from_numpy(vectors))

    def evaluation(
        self, encoder: SentenceEncoder, documents: TorchEncoder | None = None
    ) -> Callable[[], Scores] | None:
        """Return the function that scores a step: on the development set, else by cosine with the teacher.

        ``documents`` encodes documents, if ``encoder`` is trained for queries alone.
        """
        pairs, rows, teachers = self.data.dev, self.data.split.held_out, self.data.teachers
        dev_set = self.data.dev_set
        held_out = None
        if rows:
            held_out = HeldOut(self.data.corpus, rows, teachers[0])
        if pairs is None and held_out is None and dev_set is None:
            return None

        def evaluate() -> Scores:
            student = TorchEncoder(encoder)
            distances = {} if held_out is None else held_out.distances(student)
            if dev_set is not None:
                dev = score_set(student if documents is None else _TwoEncoders(student, documents), dev_set)
            elif pairs is not None:
                dev = evaluate_pairs(student, pairs)
            else:
                dev = 1 - float(np.mean(list(distances.values())))
            return {"dev": dev} | {f"held_out/{name}": distance for name, distance in distances.items()}

        return evaluate


def check_stage(method_name: str, settings: Any, optim: OptimConfig, config: RunConfig, corpus: Corpus) -> None:
    """Check that the corpus and the views fit a stage, before a teacher encodes the corpus.

    Raises:
        ConfigError: they do not.
    """
    spec = METHODS[method_name].needs(settings)
    rows = len(Split.of(corpus, config.dev.held_out).train)
    check_batches(spec, rows, columns=corpus.views, batch_size=optim.batch_size, views=config.views)


class Recipe(NamedTuple):
    """A way to train, by one method or by several in turn.

    Attributes:
        settings_class: dataclass of the settings, the table ``[settings]`` of a run.
        function: trains; called with the stage of the whole run, settings and initial encoder, which is None if
            ``scores_pairs``.
        check: raises a :class:`~embedkit.errors.ConfigError` if the corpus does not fit one of the stages; called
            with config, settings and corpus before a teacher encodes the corpus. Returns the recipe's own data,
            whose ``inputs`` and ``epoch_rows`` its settings have; or None.
        presets: settings for each size.
        batch_spec: the requirements of the most demanding stage.
        paper: the publication.
        paired: further presets for values of a setting, as for a method.
        settings_problem: returns the error in the settings for a number of teachers, or None.
        scores_pairs: whether it trains a cross-encoder, which it builds itself; then its settings have
            ``dev``.
        pair_teachers: whether teachers score pairs, of at most ``settings.length`` tokens.
    """

    settings_class: type[Any]
    function: Callable[[Stage, Any, Any], TrainState]
    check: Callable[[RunConfig, Any, Corpus], Any]
    presets: Presets
    batch_spec: BatchSpec
    paper: str
    paired: Presets = MappingProxyType({})
    settings_problem: Callable[[Any, int], str | None] = lambda _settings, _teachers: None
    scores_pairs: bool = False
    pair_teachers: bool = False


def one_stage(name: str) -> Recipe:
    """The recipe that trains one method."""

    def train(stage: Stage, settings: Any, encoder: SentenceEncoder) -> TrainState:
        return stage.train(name, settings, encoder)

    def check(config: RunConfig, settings: Any, corpus: Corpus) -> None:
        check_stage(name, settings, config.optim, config, corpus)

    method = METHODS[name]
    return Recipe(
        *(method.settings_class, train, check, method.presets, method.batch_spec, method.paper, method.paired),
        settings_problem=method.settings_problem,
    )
