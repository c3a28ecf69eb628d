"""A run: its data read and checked, its student built, then trained by its recipe into a run folder."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import logging
import os
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from embedkit import __version__
from embedkit.config import load_toml, to_mapping
from embedkit.errors import ConfigError, EmbedkitError, TrainingError, first_line
from embedkit.evaluation.catalogue import load_task
from embedkit.evaluation.speed.plan import processor_name
from embedkit.evaluation.sts import ScoredPairs, load_scored_pairs
from embedkit.evaluation.tasks import Task
from embedkit.extras import installed_versions
from embedkit.modeling import SPINS
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.modeling.initialisation import SIZES
from embedkit.modeling.pretrained import seeded
from embedkit.modeling.torch_encoder import to_device
from embedkit.training import processes
from embedkit.training.config import RunConfig
from embedkit.training.corpus import Corpus
from embedkit.training.loop import RunControl, evaluation_steps, total_steps
from embedkit.training.mining import PairTeacher, load_pair_teachers
from embedkit.training.pairs import is_labelled, read_queries
from embedkit.training.recipes.score_distillation import ScoreDistillationConfig
from embedkit.training.recipes.stage import (
    Recipe,
    RunData,
    Split,
    Stage,
    report_truncated_texts,
)
from embedkit.training.resolve import find_method, presets_of, reads_vectors, resolve, table_of
from embedkit.training.run_folder import RunFolder, TrainState
from embedkit.training.students import build_student, find_start, kept_teacher
from embedkit.training.teacher_spaces import JoinConfig, JoinedVectors, RotatedVectors
from embedkit.training.teachers import CachedVectors, TeacherVectors, load_vectors

__all__ = ["find_method", "planned", "prepare", "read_teachers", "resolve", "run", "training_text"]

logger = logging.getLogger(__name__)


def run(config: RunConfig, folder: str | Path, control: RunControl | None = None) -> TrainState:
    """Train the model described by ``config``, together with the other processes if started by torchrun.

    Once the returned state is ``finished``, the encoder is in ``folder/model``.

    Raises:
        EmbedkitError: some part of the run failed; the last checkpoint is kept.
    """
    control, run_folder = control or RunControl(), RunFolder(folder)
    with processes.group(config.device), _threads(config.threads), seeded(config.seed), _out_of_memory_named():
        run_folder.check(to_mapping(config), resume=control.resume)
        _require_permission(config, control)
        to_device(torch.nn.Identity(), config.device)  # before any expensive work
        processes.wait()  # before any process writes, which check() would reject
        if not processes.first():
            control = dataclasses.replace(control, show_progress=False)
        data = prepare(config, show_progress=control.show_progress)
        return _train(Stage(config, data, run_folder, control))


def prepare(config: RunConfig, *, show_progress: bool | None = None) -> RunData:
    """Find the student's start, read the texts and check them, before a model computes anything.

    Raises:
        ConfigError: the corpus does not fit the method, or the student's vocabulary is undefined.
        DataError: a source is missing or malformed.
        ModelNotFoundError: there is no model that the student starts from.
    """
    recipe = find_method(config.method)
    if not recipe.scores_pairs:
        find_start(config)
    elif processes.count() > 1:
        raise ConfigError(f"{config.method} runs in one process, not {processes.count()}")
    pairs, dev_set = _dev_pairs(config), _dev_set(config)
    with processes.first_alone():  # the others read its results from the cache
        corpus = Corpus.prepare(config.sources, Path(config.cache), show_progress=show_progress)
    split = Split.of(corpus, config.dev.held_out)
    extra = recipe.check(config, config.settings, corpus)
    _report_long_queues(to_mapping(config.settings), len(corpus))
    return RunData(corpus, pairs, split, extra=extra, dev_set=dev_set)


def planned(config: RunConfig, data: RunData) -> tuple[int, int]:
    """Return the optimizer steps of the stage that uses ``[optim]``, and how often it is evaluated at most."""
    optim, evaluates = config.optim, bool(data.dev or data.dev_set or data.split.held_out)
    rows = len(data.split.train) if data.extra is None else config.settings.epoch_rows(data.extra)
    if find_method(config.method).scores_pairs:
        evaluates = bool(config.settings.dev)
    per_epoch, total = total_steps(
        rows // optim.batch_size, accumulate=optim.accumulate, epochs=optim.epochs, steps=optim.steps
    )
    steps = evaluation_steps(total, steps_per_epoch=per_epoch, every=config.dev.every, most=config.dev.most)
    return total, len(steps) if evaluates else 0


def read_teachers(
    config: RunConfig, data: RunData, *, space: Path | None = None, show_progress: bool | None = None
) -> RunData:
    """Return the data with its teachers; vectors that are not cached are computed.

    ``space`` is the file of the space of an interrupted run with ``[join]``, if there is one: principal components
    computed again may differ in their last bits, for instance by threads.

    Raises:
        CacheError: the teacher cache is damaged, or on a file system without locks.
    """
    recipe, corpus = find_method(config.method), data.corpus
    if recipe.pair_teachers:
        return dataclasses.replace(data, pair_teachers=load_pair_teachers(config, config.settings.length))
    if not reads_vectors(recipe):
        return data
    vectors = list[TeacherVectors]()
    with processes.first_alone():  # the others read its results from the cache
        for named in config.every_teacher:
            teacher = dataclasses.replace(named, source=config.resolve_model(named.source))
            vectors.append(load_vectors(teacher, corpus, Path(config.cache), show_progress=show_progress))
    if (join := config.join) is not None:
        if space is not None and space.exists():
            join = JoinConfig(space=str(space.absolute()))
        place = join.space and config.resolve(join.space)
        vectors = [JoinedVectors(vectors, dataclasses.replace(join, space=place), len(corpus))]
    if config.matryoshka is not None:
        config.matryoshka.check(vectors[0].dimension)
        vectors = [RotatedVectors(one, len(corpus)) for one in vectors]
    return dataclasses.replace(data, teachers=tuple(vectors))


def _train(stage: Stage) -> TrainState:
    """Build the student, read the teachers, claim the run folder, and train by the recipe."""
    config, folder, recipe, student = stage.config, stage.folder, find_method(stage.config.method), None
    folder.check_inputs(stage.data.inputs(config))  # before anything is computed
    if not recipe.scores_pairs:  # those build their cross-encoder themselves
        student = build_student(config)
        student.name = config.name or folder.name
        student.default_prompt = None  # training texts have no prompt
        _warn_of_size(config, recipe, student)
    space = folder.space if folder.is_begun else None
    data = read_teachers(config, stage.data, space=space, show_progress=stage.control.show_progress)
    inputs = data.inputs(config)
    if student is not None and config.student.source is not None:
        inputs[f"the model {config.student.source}"] = student.fingerprint()
    if student is not None and processes.first():
        report_truncated_texts(data, student.tokenizer)
    folder.check_inputs(inputs)
    with folder.claimed() if processes.first() else contextlib.nullcontext():
        if processes.first():
            folder.start(to_mapping(config), _environment(), inputs, resume=stage.control.resume)
            if student is not None and not folder.initial.exists():
                folder.save(student, folder.initial)
            if data.teachers and isinstance(joined := data.teachers[0], JoinedVectors):
                folder.save(joined.space, folder.space)
        processes.wait()
        state = recipe.function(dataclasses.replace(stage, data=data), config.settings, student)
        if state.finished and processes.first():
            folder.finish(_card(config, folder.name, data, state))
    return state


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


def _dev_set(config: RunConfig) -> Task | None:
    """Load the development set: labelled queries, or whatever `embedkit evaluate` reads."""
    if config.dev.set is None:
        return None
    path = Path(config.resolve(config.dev.set))
    if path.is_file() and path.suffix != ".tsv" and is_labelled(path):
        return Task(path.stem, [read_queries(path, split="dev").as_retrieval(path.stem)])
    return load_task(str(path) if path.exists() else config.dev.set, split="dev")


def _require_permission(config: RunConfig, control: RunControl) -> None:
    """Refuse code that comes with a model unless the caller allows it: recipes and run folders are shared."""
    named = [teacher.source for teacher in config.every_teacher if teacher.trust_remote_code]
    if named and not control.trust_remote_code:
        raise ConfigError(
            f"the configuration asks to run Python code that comes with {', '.join(named)}: read that code, and "
            "repeat the command with --trust-remote-code (RunControl(trust_remote_code=True)) to allow it"
        )


def _warn_of_size(config: RunConfig, entry: Recipe, encoder: SentenceEncoder) -> None:
    """Warn if a pre-trained student trains at the rate that was published for another shape."""
    size, shape = SIZES[config.student.size], encoder.backbone.config
    presets = presets_of(entry, to_mapping(config.student), to_mapping(config.settings))
    published = table_of(presets, "optim").get("lr", config.optim.lr) == config.optim.lr
    first, *others = entry.presets.values()
    published &= any(each != first for each in others)
    if published and config.student.source is not None and shape.hidden_size != size.hidden:
        logger.warning(
            "no settings are published for a student of %d x %d; using those of %s, %d x %d: check optim.lr and "
            "[settings], or choose another size",
            *(shape.num_hidden_layers, shape.hidden_size, config.student.size, size.layers, size.hidden),
        )


def _report_long_queues(settings: Mapping[str, Any], rows: int, table: str = "settings") -> None:
    """Report a queue that is longer than the corpus, as a published one often is."""
    if (size := settings.get("queue_size", 0)) > rows:
        logger.info(
            "%s.queue_size = %s exceeds the corpus of %s rows: the queue holds several vectors of each "
            "sentence and slows down every step; lower it or add text",
            *(table, f"{size:,}", f"{rows:,}"),
        )
    for key, value in settings.items():
        unused = key == "self_supervised" and settings.get("joint") is False
        if isinstance(value, Mapping) and not unused:
            _report_long_queues(value, rows, f"{table}.{key}")


@contextlib.contextmanager
def _out_of_memory_named() -> Iterator[None]:
    """Turn the failure to allocate memory, for which torch has several exceptions, into a TrainingError."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, EmbedkitError) or not (isinstance(error, MemoryError) or "allocate" in str(error)):
            raise
        raise TrainingError(
            f"not enough memory; lower optim.batch_size or the sizes of student and method: {first_line(error)}"
        ) from error


@contextlib.contextmanager
def _threads(count: int | None) -> Iterator[None]:
    """Set the number of torch threads, which is global to the process, and restore it afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    if (count or before) > 1 and processes.first():
        spinning = "spin while they wait: set OMP_WAIT_POLICY=PASSIVE if other processes are busy"
        logger.info("%d threads, which %s", count or before, spinning if SPINS else "sleep while they wait")
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _card(config: RunConfig, name: str, data: RunData, state: TrainState) -> dict[str, Any]:
    return {
        "name": config.name or name,
        "method": config.method,
        "base": config.student.base,
        "teacher": _teacher_card(data.teachers or data.pair_teachers) or kept_teacher(config),
        "corpus": [
            {
                "name": card.name,
                "rows": card.rows,
                "sha256": card.sha256,
                "licence": card.licence,
                **({"repeat": card.repeat} if card.repeat != 1 else {}),
            }
            for card in data.corpus.cards
        ],
        "dev": config.dev.pairs and config.resolve(config.dev.pairs),
        "dev_pairs": data.dev and len(data.dev),
        "metrics": {
            config.measure: state.best_score,
            "best_step": state.best_step,
            "steps": state.step,
            "seconds": round(state.seconds, 1),
        },
    }


def _teacher_card(teachers: Sequence[TeacherVectors | PairTeacher]) -> dict[str, Any] | None:
    """Return name and fingerprint, and those of the teacher's teacher; of several, all together and each."""
    if len(teachers) == 1 and isinstance(teachers[0], JoinedVectors):
        parts = _teacher_card(teachers[0].parts)
        return {"name": teachers[0].name, "fingerprint": teachers[0].fingerprint, "joined": parts}
    cards: list[dict[str, Any]] = [
        {"name": teacher.name, "fingerprint": teacher.fingerprint}
        | ({"teacher": dict(teacher.teacher)} if isinstance(teacher, CachedVectors) and teacher.teacher else {})
        for teacher in teachers
    ]
    if len(cards) < 2:
        return cards[0] if cards else None
    joined = hashlib.sha256(" ".join(card["fingerprint"] for card in cards).encode()).hexdigest()
    return {"name": ", ".join(card["name"] for card in cards), "fingerprint": joined, "teachers": cards}


def training_text(run: str | Path) -> list[str]:
    """Return the distinct rows of a run's corpus, and its queries, from the cache or else prepared again.

    Raises:
        ConfigError: it has no configuration, or a damaged one.
        DataError: a source of text is missing or malformed.
    """
    config = resolve(load_toml(RunFolder(run).config))
    corpora = [Corpus.prepare(config.sources, Path(config.cache))]
    if isinstance(config.settings, ScoreDistillationConfig):
        corpora.append(Corpus.prepare(config.settings.sources(config), Path(config.cache)))
    return [
        text
        for corpus in corpora
        for view in range(corpus.views)
        for text in corpus.texts(range(len(corpus)), view)
    ]


_PACKAGES = ("torch", "transformers", "tokenizers", "numpy", "onnx", "onnxruntime")


def _environment() -> dict[str, Any]:
    """Return everything except the configuration that affects a run's results and speed."""
    return {
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "processor": processor_name(),
        "processors": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "cuda": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "packages": {"embedkit": __version__, **installed_versions(_PACKAGES)},
    }
