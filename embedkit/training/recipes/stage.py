"""One stage of a run: a method trained by the loop on the run's materials."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from embedkit.config import to_mapping
from embedkit.errors import ConfigError
from embedkit.evaluation.sts import ScoredPairs, evaluate_pairs, load_scored_pairs
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.modeling.torch_encoder import TorchEncoder
from embedkit.training import processes
from embedkit.training.batches import Batches, BatchSource, check_batches, chunk_view
from embedkit.training.checkpoint import TrainState
from embedkit.training.config import RunConfig
from embedkit.training.corpus import Corpus
from embedkit.training.distillation import Distillation
from embedkit.training.held_out import HeldOut, Split
from embedkit.training.loop import LoopConfig, Scores, train
from embedkit.training.method import Learner, Method
from embedkit.training.methods import METHODS
from embedkit.training.optim import OptimConfig
from embedkit.training.rotation import RotatedVectors
from embedkit.training.run_folder import RunFolder
from embedkit.training.teachers import TeacherVectors, load_vectors
from embedkit.training.trackers import find_trackers

__all__ = [
    "Control",
    "Materials",
    "check_stage",
    "prepare",
    "run_stage",
    "stage_batches",
    "to_device",
    "train_stage",
]

logger = logging.getLogger(__name__)

_HEAD_SAMPLE = 4096  # number of texts to fit a new linear head on
_HEAD_BATCH = 256


@dataclasses.dataclass(frozen=True)
class Control:
    """External control of a run: resume, stop, progress."""

    resume: bool = False
    should_stop: Callable[[], bool] = lambda: False
    show_progress: bool | None = None


@dataclasses.dataclass(frozen=True)
class Materials:
    """Data shared by all stages of a run."""

    corpus: Corpus
    teachers: tuple[TeacherVectors, ...]
    dev: ScoredPairs | None
    split: Split


def prepare(
    config: RunConfig, control: Control, *, teacher: bool, check: Callable[[Corpus], None] = lambda _: None
) -> Materials:
    """Load the corpus, the teachers' vectors and the development pairs.

    Args:
        config: configuration of the run.
        control: progress.
        teacher: whether any stage needs teacher vectors.
        check: raises an error if the corpus does not fit the run, before a teacher encodes it.

    Raises:
        DataError: a source is missing or malformed.
        CacheError: the teacher cache is damaged or in use.
    """
    _check_matryoshka(config, teacher=teacher)
    pairs = _dev_pairs(config)
    vectors: list[TeacherVectors] = []
    with processes.first_alone():  # the others read its results from the cache
        corpus = Corpus.prepare(config.sources, Path(config.cache), show_progress=control.show_progress)
        check(corpus)
        for named in config.every_teacher if teacher else ():
            found = dataclasses.replace(named, source=config.resolve(named.source))
            vectors.append(load_vectors(found, corpus, Path(config.cache), show_progress=control.show_progress))
    if config.matryoshka is not None:
        config.matryoshka.check(vectors[0].dimension)
        vectors = [RotatedVectors(one, len(corpus)) for one in vectors]
    return Materials(corpus, tuple(vectors), pairs, Split.of(corpus, config.dev.held_out))


def _check_matryoshka(config: RunConfig, *, teacher: bool) -> None:
    if config.matryoshka is None:
        return
    imitating = [name for name, method in METHODS.items() if method.imitates]
    if not (teacher and config.every_teacher and config.method in {*imitating, "sct-two-stage"}):
        raise ConfigError(
            "[matryoshka] rotates a teacher's vectors: it needs a teacher and a method that imitates one "
            f"({', '.join(imitating)})"
        )


def _dev_pairs(config: RunConfig) -> ScoredPairs | None:
    if config.dev.pairs is None:
        return None
    pairs = load_scored_pairs(config.resolve(config.dev.pairs), split="validation")
    if config.dev.limit is None or config.dev.limit >= len(pairs):
        return pairs
    # Independent of the run's seed, so that runs with different seeds are comparable.
    drawn = np.sort(np.random.default_rng(0).permutation(len(pairs))[: config.dev.limit])
    first, second = ([texts[row] for row in drawn] for texts in (pairs.first, pairs.second))
    return ScoredPairs(pairs.name, first, second, pairs.scores[drawn])


def check_stage(method_name: str, settings: Any, optim: OptimConfig, config: RunConfig, corpus: Corpus) -> None:
    """Check that the corpus and the views fit a stage; the arguments are those of :func:`train_stage`.

    Raises:
        ConfigError: they do not.
    """
    spec = METHODS[method_name].needs(settings)
    rows = len(Split.of(corpus, config.dev.held_out).train)
    check_batches(spec, rows, batch_size=optim.batch_size, views=config.views)


def train_stage(
    method_name: str,
    settings: Any,
    optim: OptimConfig,
    config: RunConfig,
    materials: Materials,
    encoder: SentenceEncoder,
    folder: RunFolder,
    control: Control,
) -> TrainState:
    """Train one method from ``encoder``; the result is written to ``folder.model``.

    Args:
        method_name: a key of :data:`~embedkit.training.methods.METHODS`.
        settings: an instance of the method's config class.
        optim: optimizer settings of this stage.
        config: configuration of the whole run.
        materials: the result of :func:`prepare`.
        encoder: the initial encoder; trained in place.
        folder: run folder of this stage.
        control: resume, stop, progress.

    Raises:
        ConfigError: the run lacks something that the method needs.
        TrainingError, CheckpointError, StorageError: see :func:`~embedkit.training.loop.train`.
    """
    method = _build(METHODS[method_name], encoder, settings, config.seed, materials.teachers)
    batches = stage_batches(method_name, settings, optim, config, materials, encoder)
    if isinstance(method, Distillation) and method.awaits_start:
        _start_head(method, materials)
    evaluate = _evaluation(encoder, materials)
    return run_stage(method, batches, optim, config, folder, control, evaluate)


def _start_head(method: Distillation, materials: Materials) -> None:
    """Fit a new linear head on a sample of the training text."""
    rows = np.random.default_rng(0).permutation(materials.split.train)[:_HEAD_SAMPLE]
    tokenizer = method.encoder.tokenizer
    parts = np.array_split(rows, -(-len(rows) // _HEAD_BATCH))
    views = (chunk_view(tokenizer.tokenize(materials.corpus.texts(part)), tokenizer.pad_id) for part in parts)
    method.start_head(views, torch.from_numpy(materials.teachers[0].read(rows, 0)))


def _evaluation(encoder: SentenceEncoder, materials: Materials) -> Callable[[], Scores] | None:
    """Return the function that scores a step: on the development pairs, else by cosine with the teacher."""
    pairs, held_out = materials.dev, None
    if materials.split.held_out:
        if not materials.teachers or encoder.dimension != materials.teachers[0].dimension:
            raise ConfigError(
                "dev.held_out measures the distance from a teacher's vectors, which this student does not imitate"
            )
        held_out = HeldOut(materials.corpus, materials.split.held_out, materials.teachers[0])
    if pairs is None and held_out is None:
        return None

    def evaluate() -> Scores:
        student = TorchEncoder(encoder)
        distances = {} if held_out is None else held_out.distances(student)
        dev = 1 - float(np.mean(list(distances.values()))) if pairs is None else evaluate_pairs(student, pairs)
        return {"dev": dev} | {f"held_out/{name}": distance for name, distance in distances.items()}

    return evaluate


def run_stage(
    method: Learner,
    batches: Batches,
    optim: OptimConfig,
    config: RunConfig,
    folder: RunFolder,
    control: Control,
    evaluate: Callable[[], Scores] | None,
) -> TrainState:
    """Train a method on its batches; the result is written to ``folder.model``.

    Args:
        method: moved to the run's device and trained in place.
        batches: batches made for the method.
        optim: optimizer settings of this stage.
        config: configuration of the whole run.
        folder: run folder of this stage.
        control: resume, stop, progress.
        evaluate: scores ``method.encoder`` on a development set.

    Raises:
        ConfigError: the device cannot be used.
        TrainingError, CheckpointError, StorageError: see :func:`~embedkit.training.loop.train`.
    """
    to_device(method, config.device)
    if processes.first():
        plain = to_mapping(config)
        folder.trackers = find_trackers(config.trackers, folder.path, name=folder.path.name, config=plain)
    loop = LoopConfig(
        optim=optim,
        seed=config.seed,
        dev_every=config.dev.every,
        dev_most=config.dev.most,
        patience=config.dev.patience,
        checkpoint_minutes=config.checkpoint_minutes,
        round_words=config.student.word_table == "int4",
    )
    return train(
        method,
        batches,
        loop,
        folder,
        evaluate=evaluate,
        resume=control.resume,
        should_stop=control.should_stop,
        show_progress=control.show_progress,
    )


def stage_batches(
    method_name: str,
    settings: Any,
    optim: OptimConfig,
    config: RunConfig,
    materials: Materials,
    encoder: SentenceEncoder,
) -> BatchSource:
    """Return the batches of a stage; the arguments are those of :func:`train_stage`.

    Raises:
        ConfigError: the run lacks something that the method needs.
    """
    return BatchSource(
        materials.corpus,
        encoder.tokenizer,
        spec=METHODS[method_name].needs(settings),
        batch_size=optim.batch_size,
        seed=config.seed,
        views=config.views,
        teachers=materials.teachers,
        rows=materials.split.train,
    )


def _build(
    method: type[Method],
    encoder: SentenceEncoder,
    settings: Any,
    seed: int,
    teachers: Sequence[TeacherVectors],
) -> Method:
    if problem := method.batch_spec.teacher_problem(len(teachers)):
        raise ConfigError(problem)
    arguments = method.teacher_arguments([teacher.dimension for teacher in teachers])
    return method(encoder, settings, seed=seed, **arguments)


def to_device(module: nn.Module, device: str | None) -> None:
    """Move a network to a device; if None, to the GPU if available, else to the CPU.

    Raises:
        ConfigError: the device cannot be used.
    """
    try:
        module.to(torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu")))
    except (RuntimeError, AssertionError) as error:  # torch raises an AssertionError if it was built without CUDA
        reason = str(error).strip().partition("\n")[0]
        raise ConfigError(f"device {device!r} cannot be used here: {reason}") from error
