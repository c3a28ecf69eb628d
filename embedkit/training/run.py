"""A run: resolved, checked and built once, then trained by its recipe into a run folder."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import logging
import os
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch

from embedkit import __version__
from embedkit.config import from_mapping, load_toml, merge, to_mapping
from embedkit.errors import ConfigError, EmbedkitError, TrainingError, did_you_mean, first_line, shown
from embedkit.evaluation.machine import processor_name
from embedkit.modeling import SPINS
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.modeling.seeding import seeded
from embedkit.modeling.sizes import SIZES, nearest_size
from embedkit.modeling.torch_encoder import to_device
from embedkit.runtime.distributions import installed_versions
from embedkit.training import processes
from embedkit.training.batches import ViewsConfig
from embedkit.training.config import RunConfig, StudentConfig
from embedkit.training.corpus import Corpus
from embedkit.training.loop import RunControl, evaluation_steps, total_steps
from embedkit.training.methods import METHODS
from embedkit.training.mining import PairTeacher, load_pair_teachers
from embedkit.training.recipes import RECIPES
from embedkit.training.recipes.score_distillation import ScoreDistillationConfig
from embedkit.training.recipes.stage import (
    Recipe,
    RunData,
    Stage,
    one_stage,
    read_texts,
    read_vectors,
    report_truncated_texts,
)
from embedkit.training.run_folder import RunFolder, TrainState
from embedkit.training.students import build_student, find_start
from embedkit.training.teacher_spaces import JoinConfig, JoinedVectors
from embedkit.training.teachers import CachedVectors, TeacherVectors

logger = logging.getLogger(__name__)
Config = TypeVar("Config")


def resolve(mapping: Mapping[str, Any], *, source: str = "") -> RunConfig:
    """Merge the method's settings for the student's size with the user's, and check everything.

    ``sct`` with a teacher becomes ``sct-distillation``, or ``sct-two-stage`` for a pre-trained student. A
    pre-trained student in a local folder gets the settings of the nearest size, unless ``student.size`` is set.

    Raises:
        ConfigError: an unknown method or key, a wrong type or value, or an unsuitable number of teachers; lists
            all problems at once.
    """
    mapping = _sized(_resolve_sct_alias(mapping))
    entry = find_method(mapping.get("method"))
    student = _table(mapping, "student")
    if entry.scores_pairs and student.get("source") is None and "start" not in student:
        mapping = {**mapping, "student": {**student, "start": "layers"}}
    merged = merge(_presets(entry, _table(mapping, "student"), _table(mapping, "settings")), mapping)
    problems: list[str] = []
    config = _read(RunConfig, merged, source, problems)
    settings = _read(entry.settings_class, merged.get("settings", {}), source, problems, prefix="settings.")
    teachers = _teacher_count(mapping)
    problem = entry.batch_spec.teacher_problem(teachers)
    if settings is not None:
        problem = problem or entry.settings_problem(settings, teachers)
    if problem:
        problems.append(problem)
    if config is not None and config.join is not None and not _reads_vectors(entry):
        problems.append(f"[join] joins the vectors of teachers, which the method {config.method} does not use")
    if config is not None:
        problems += _unused_settings(config, entry, settings)
    if config is None or problems:
        raise ConfigError(problems)
    return dataclasses.replace(config, settings=settings)


def _unused_settings(config: RunConfig, entry: Recipe, settings: Any) -> Iterator[str]:
    """Yield what is wrong with settings that have no use in a run."""
    yield from _unused_for_pairs(config, entry, settings)
    imitating = [name for name, method in METHODS.items() if method.matches_teacher_space]
    if config.dev.held_out is not None and config.method not in imitating and not entry.scores_pairs:
        yield (
            "dev.held_out measures the distance from a teacher's vectors: it needs a method that imitates them "
            f"({', '.join(imitating)})"
        )
    if config.matryoshka is not None and config.method not in {*imitating, "sct-two-stage"}:
        yield (
            "[matryoshka] rotates a teacher's vectors: it needs a method that imitates them "
            f"({', '.join(imitating)})"
        )
    teachers = config.every_teacher if _reads_vectors(entry) else ()
    prompts = [source.prompt for source in config.corpus if source.prompt is not None]
    if not teachers and any(source.translation_columns for source in config.corpus):
        yield "translation_columns need a teacher whose vectors the method imitates"
    if prompts and (len(teachers) != 1 or teachers[0].aligned):
        yield "corpus.prompt is for one teacher that encodes the texts"
    elif prompts and len(prompts) < len(config.corpus) and teachers[0].prompt is None:
        yield 'some sources have no prompt: set one for them in teacher.prompt, "" for none'


def _unused_for_pairs(config: RunConfig, entry: Recipe, settings: Any) -> Iterator[str]:
    """Yield what is wrong with settings that training on the scores of pairs does not use."""
    if not entry.batch_spec.scores:
        return
    method, student, dev = config.method, config.student, config.dev
    if any(source.repeat != 1 for source in (*config.corpus, *getattr(settings, "queries", ()))):
        yield f"repeat is not used by {method}, which reads every row once in an epoch"
    if config.views != ViewsConfig():
        yield f"[views] augments texts without labels; {method} does not use it"
    if not entry.scores_pairs:
        return
    if student.layers == 0:
        yield f"student.layers = 0 is a static encoder; a cross-encoder of {method} has at least one layer"
    if student.source is None and student.start != "layers":
        yield f'student.start = "{student.start}" is for encoders; {method} cuts its student from layers'
    is_longer = student.max_length != StudentConfig.max_length and student.positions is None
    for name, is_set, instead in (
        ("student.vocabulary_size", student.vocabulary_size is not None, ""),
        ("student.heads", student.heads is not None, ", which has heads as wide as its teacher's"),
        ("student.bag_of_words", student.bag_of_words is not None, ""),
        ("student.pooling", student.pooling != StudentConfig.pooling, ""),
        ("student.max_length", is_longer, ": set settings.length"),
        ("dev.pairs", dev.pairs is not None, ": name re-ranking sets in settings.dev"),
        ("dev.set", dev.set is not None, ": name re-ranking sets in settings.dev"),
        ("dev.held_out", dev.held_out is not None, ": name re-ranking sets in settings.dev"),
    ):
        if is_set:
            yield f"{name} is for encoders, not for the cross-encoders of {method}{instead}"


def _reads_vectors(entry: Recipe) -> bool:
    """Whether a method uses teachers' vectors of texts."""
    spec = entry.batch_spec
    return not entry.pair_teachers and (spec.teacher or spec.several_teachers)


def _resolve_sct_alias(mapping: Mapping[str, Any]) -> Mapping[str, Any]:
    """Replace ``sct`` by its distillation if there is a teacher.

    A pre-trained student goes through both stages, as in the paper; a student that starts from its teacher's word
    table gets worse in the first stage (docs/methods.md).
    """
    if mapping.get("method") != "sct" or not _teacher_count(mapping):
        return mapping
    pretrained = _table(mapping, "student").get("source") is not None
    return {**mapping, "method": "sct-two-stage" if pretrained else "sct-distillation"}


def _sized(mapping: Mapping[str, Any]) -> Mapping[str, Any]:
    """Set the size of a pre-trained student to the nearest one, which selects the method's settings."""
    student = _table(mapping, "student")
    source = student.get("source")
    if not isinstance(source, str) or "size" in student:
        return mapping
    data = mapping.get("data")
    folders = [Path(data) / source, Path(source)] if isinstance(data, str) else [Path(source)]
    for folder in folders:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            shape = json.loads((folder / "config.json").read_text(encoding="utf-8"))
            hidden = shape.get("hidden_size") or shape.get("dim")
            if isinstance(hidden, int) and hidden > 0:
                return {**mapping, "student": {**student, "size": nearest_size(hidden)}}
    return mapping


def _table(mapping: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a table of a configuration that is not yet validated."""
    table = mapping.get(name)
    return table if isinstance(table, Mapping) else {}


def find_method(name: object) -> Recipe:
    """Return the method or recipe of that name.

    Raises:
        ConfigError: it does not exist; suggests a similar name.
    """
    names = [*METHODS, *RECIPES]
    if name is None:
        raise ConfigError(f"method is missing; choose one of {', '.join(names)}")
    if name == "static":
        raise ConfigError(
            "a static encoder comes from a teacher's words, by `embedkit distill-static TEACHER -o FILE`, without "
            "text, or from training any method with --layers 0"
        )
    if isinstance(name, str) and name in names:
        return RECIPES.get(name) or one_stage(name)
    hint = did_you_mean(str(name), names, f"choose one of {', '.join(names)}")
    raise ConfigError(f"unknown method {name!r}; {hint}")


@dataclasses.dataclass(frozen=True)
class Plan:
    """Optimizer steps, of the stage that uses ``[optim]``, and at most so many evaluations."""

    steps: int
    evaluations: int


@dataclasses.dataclass(frozen=True)
class Run:
    """A run whose configuration and texts are checked.

    Attributes:
        config: a result of :func:`resolve`.
        recipe: what trains it.
        data: corpus and development pairs, and the teachers once :meth:`read_teachers` has read them.
        control: resume, stop, progress.
    """

    config: RunConfig
    recipe: Recipe
    data: RunData
    control: RunControl

    @classmethod
    def prepare(cls, config: RunConfig, control: RunControl | None = None) -> Run:
        """Find the student's start, read the texts and check them, before a model computes anything.

        Raises:
            ConfigError: the corpus does not fit the method, or the student's vocabulary is undefined.
            DataError: a source is missing or malformed.
            ModelNotFoundError: there is no model that the student starts from.
        """
        control, recipe = control or RunControl(), find_method(config.method)
        if not processes.first():
            control = dataclasses.replace(control, show_progress=False)
        if not recipe.scores_pairs:
            find_start(config)
        elif processes.count() > 1:
            raise ConfigError(f"{config.method} runs in one process, not {processes.count()}")
        data = read_texts(config, show_progress=control.show_progress)
        extra = recipe.check(config, config.settings, data.corpus)
        if not recipe.scores_pairs:
            presets = _presets(recipe, to_mapping(config.student), to_mapping(config.settings))
            published = to_mapping(from_mapping(recipe.settings_class, _table(presets, "settings")))
            _warn_of_long_queues(to_mapping(config.settings), len(data.corpus), published)
        return cls(config, recipe, dataclasses.replace(data, extra=extra), control)

    @property
    def plan(self) -> Plan:
        """The work of the run."""
        config, data, optim = self.config, self.data, self.config.optim
        rows = len(data.split.train) if data.extra is None else config.settings.epoch_rows(data.extra)
        evaluates = bool(data.dev or data.dev_set or data.split.held_out)
        if self.recipe.scores_pairs:
            evaluates = bool(config.settings.dev)
        per_epoch, total = total_steps(
            rows // optim.batch_size, accumulate=optim.accumulate, epochs=optim.epochs, steps=optim.steps
        )
        if not evaluates:
            return Plan(total, 0)
        steps = evaluation_steps(total, steps_per_epoch=per_epoch, every=config.dev.every, most=config.dev.most)
        return Plan(total, len(steps))

    def read_teachers(self, space: Path | None = None) -> Run:
        """Return the run with its teachers; vectors that are not cached are computed.

        ``space`` holds the space of an interrupted run with ``[join]``: principal components computed again may
        differ in their last bits, for instance by threads.

        Raises:
            CacheError: the teacher cache is damaged, or on a file system without locks.
        """
        config = self.config
        if self.recipe.pair_teachers:
            teachers = load_pair_teachers(config, config.settings.length)
            return dataclasses.replace(self, data=dataclasses.replace(self.data, pair_teachers=teachers))
        if self.data.teachers or not _reads_vectors(self.recipe):
            return self
        if space is not None and config.join is not None:
            config = dataclasses.replace(config, join=JoinConfig(space=str(space.absolute())))
        vectors = read_vectors(config, self.data.corpus, show_progress=self.control.show_progress)
        return dataclasses.replace(self, data=dataclasses.replace(self.data, teachers=vectors))

    def train(self, folder: RunFolder) -> TrainState:
        """Train the student; once the returned state is ``finished``, it is in ``folder.model``.

        Raises:
            EmbedkitError: some part of the run failed; the last checkpoint is kept.
        """
        folder.check_inputs(self.data.inputs(self.config))
        student, inputs = self._build_student(folder.name)
        run = self.read_teachers(folder.space if folder.is_begun and folder.space.exists() else None)
        if student is not None and processes.first():
            report_truncated_texts(run.data, student.tokenizer)
        with run._claimed(folder, student, run.data.inputs(self.config) | inputs):  # noqa: SLF001
            stage = Stage(self.config, run.data, folder, self.control)
            state = self.recipe.function(stage, self.config.settings, student)
            if state.finished and processes.first():
                folder.finish(_card(self.config, folder.name, run.data, state))
        return state

    def _build_student(self, name: str) -> tuple[SentenceEncoder | None, dict[str, str]]:
        """Return the initial encoder, None for a cross-encoder, and the digest of a pre-trained one."""
        if self.recipe.scores_pairs:
            return None, {}
        config = self.config
        encoder = build_student(config)
        encoder.name = config.name or name
        encoder.default_prompt = None  # training texts have no prompt
        _warn_of_size(config, self.recipe, encoder)
        if config.student.source is None:
            return encoder, {}
        return encoder, {f"the model {config.student.source}": encoder.fingerprint()}

    @contextlib.contextmanager
    def _claimed(
        self, folder: RunFolder, student: SentenceEncoder | None, inputs: Mapping[str, str]
    ) -> Iterator[None]:
        """Hold the run folder's lock, with configuration, environment, inputs, space and student written to it."""
        folder.check_inputs(inputs)
        with contextlib.ExitStack() as held:
            if processes.first():
                held.enter_context(folder.claimed())
                folder.start(to_mapping(self.config), _environment(), inputs, resume=self.control.resume)
                if student is not None and not folder.initial.exists():
                    folder.save(student, folder.initial)
                if self.data.teachers and isinstance(joined := self.data.teachers[0], JoinedVectors):
                    folder.save(joined.space, folder.space)
            processes.wait()
            yield


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
        return Run.prepare(config, control).train(run_folder)


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
    presets = _presets(entry, to_mapping(config.student), to_mapping(config.settings))
    published = _table(presets, "optim").get("lr", config.optim.lr) == config.optim.lr
    first, *others = entry.presets.values()
    published &= any(each != first for each in others)
    if published and config.student.source is not None and shape.hidden_size != size.hidden:
        logger.warning(
            "no settings are published for a student of %d x %d; using those of %s, %d x %d: check optim.lr and "
            "[settings], or choose another size",
            *(shape.num_hidden_layers, shape.hidden_size, config.student.size, size.layers, size.hidden),
        )


def _warn_of_long_queues(
    settings: Mapping[str, Any], rows: int, published: Mapping[str, Any], table: str = "settings"
) -> None:
    """Warn of a queue that is longer than the corpus; of a published one, which nobody chose, only say so."""
    size = settings.get("queue_size", 0)
    if size > rows:
        logger.log(
            logging.INFO if size == published.get("queue_size") else logging.WARNING,
            "%s.queue_size = %s exceeds the corpus of %s rows: the queue holds several vectors of each "
            "sentence and slows down every step; lower it or add text",
            *(table, f"{size:,}", f"{rows:,}"),
        )
    for key, value in settings.items():
        unused = key == "self_supervised" and settings.get("joint") is False
        if isinstance(value, Mapping) and not unused:
            _warn_of_long_queues(value, rows, _table(published, key), f"{table}.{key}")


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
        "teacher": _teacher_card(data.teachers or data.pair_teachers),
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


def _teacher_count(mapping: Mapping[str, Any]) -> int:
    """Return the number of teachers in a configuration that is not yet validated."""
    several = mapping.get("teachers")
    if several and mapping.get("join") is not None:
        return 1
    return len(several) if isinstance(several, list | tuple) else int(mapping.get("teacher") is not None)


def _presets(entry: Recipe, student: Mapping[str, Any], settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the presets of the student's size, updated by those paired with the chosen settings."""
    size = student.get("size", "bert-tiny")
    presets = entry.presets.get(size, {}) if isinstance(size, str) else {}
    for pair, tables in entry.paired.items():
        name, _, value = pair.partition("=")
        if settings.get(name) == value:
            presets = merge(presets, tables)
    return presets


def _read(
    cls: type[Config], mapping: object, source: str, problems: list[str], *, prefix: str = ""
) -> Config | None:
    """Return a config, or None after adding its problems to the list."""
    if not isinstance(mapping, Mapping):
        problems.append(f"{prefix.rstrip('.')} is a table, not {shown(mapping)}")
        return None
    try:
        return from_mapping(cls, mapping, source=source, prefix=prefix)
    except ConfigError as error:
        problems += error.problems
        return None


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
