"""Methods and recipes by name, with their presets, and a configuration resolved by one of them."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from embedkit.config import from_mapping, merge
from embedkit.errors import ConfigError, did_you_mean, shown
from embedkit.modeling.initialisation import nearest_size
from embedkit.training.batches import ViewsConfig
from embedkit.training.config import RunConfig, StudentConfig
from embedkit.training.method import BatchSpec
from embedkit.training.methods import METHODS
from embedkit.training.recipes import RECIPES
from embedkit.training.recipes.stage import Recipe, one_stage

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
    student = table_of(mapping, "student")
    if entry.scores_pairs and student.get("source") is None and "start" not in student:
        mapping = {**mapping, "student": {**student, "start": "layers"}}
    merged = merge(presets_of(entry, table_of(mapping, "student"), table_of(mapping, "settings")), mapping)
    problems: list[str] = []
    config = _read(RunConfig, merged, source, problems)
    settings = _read(entry.settings_class, merged.get("settings", {}), source, problems, prefix="settings.")
    teachers = _teacher_count(mapping)
    problem = entry.batch_spec.teacher_problem(teachers)
    if settings is not None:
        problem = problem or entry.settings_problem(settings, teachers)
    if problem:
        problems.append(problem)
    if config is not None and config.join is not None and not reads_vectors(entry):
        problems.append(f"[join] joins the vectors of teachers, which the method {config.method} does not use")
    if config is not None:
        problems += _unused_settings(config, entry, settings)
    if config is None or problems:
        raise ConfigError(problems)
    return dataclasses.replace(config, settings=settings)


def _unused_settings(config: RunConfig, entry: Recipe, settings: Any) -> Iterator[str]:
    """Yield the errors in settings that have no use in a run."""
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
    if config.student.prompts and config.method != "contrastive":
        yield f"student.prompts are trained by contrastive, not by {config.method}, which knows no queries"
    teachers = config.every_teacher if reads_vectors(entry) else ()
    prompts = [source.prompt for source in config.corpus if source.prompt is not None]
    if not teachers and any(source.translation_columns for source in config.corpus):
        yield "translation_columns need a teacher whose vectors the method imitates"
    if prompts and (len(teachers) != 1 or teachers[0].aligned):
        yield "corpus.prompt is for one teacher that encodes the texts"
    elif prompts and len(prompts) < len(config.corpus) and teachers[0].prompt is None:
        yield 'some sources have no prompt: set one for them in teacher.prompt, "" for none'


def _unused_for_pairs(config: RunConfig, entry: Recipe, settings: Any) -> Iterator[str]:
    """Yield the errors in settings that training on the scores of pairs does not use."""
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


def reads_vectors(entry: Recipe) -> bool:
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
    pretrained = table_of(mapping, "student").get("source") is not None
    return {**mapping, "method": "sct-two-stage" if pretrained else "sct-distillation"}


def _sized(mapping: Mapping[str, Any]) -> Mapping[str, Any]:
    """Set the size of a pre-trained student to the nearest one, which selects the method's settings."""
    student = table_of(mapping, "student")
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


def table_of(mapping: Mapping[str, Any], name: str) -> Mapping[str, Any]:
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
        raise ConfigError(
            f"method is missing; name a recipe, or a method of `embedkit methods`: {', '.join(names)}"
        )
    if name == "static":
        raise ConfigError(
            "a static encoder comes from a teacher's words, by `embedkit distill-static TEACHER -o FILE`, without "
            "text, or from training any method with --layers 0"
        )
    if isinstance(name, str) and name in names:
        return RECIPES.get(name) or one_stage(name)
    hint = did_you_mean(str(name), names, f"choose one of {', '.join(names)}")
    raise ConfigError(f"unknown method {name!r}; {hint}")


def _teacher_count(mapping: Mapping[str, Any]) -> int:
    """Return the number of teachers in a configuration that is not yet validated."""
    several = mapping.get("teachers")
    if several and mapping.get("join") is not None:
        return 1
    return len(several) if isinstance(several, list | tuple) else int(mapping.get("teacher") is not None)


def presets_of(entry: Recipe, student: Mapping[str, Any], settings: Mapping[str, Any]) -> Mapping[str, Any]:
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


# Tables of the configuration that presets set, apart from the method's own settings.
_TABLES = ("student", "optim", "dev")


def build_table(size: str) -> dict[str, dict[str, Any]]:
    """Return kind, paper, needs, idea and the documented defaults for a size, by name of method or recipe."""
    methods = {name: _row("method", one_stage(name), method.__doc__, size) for name, method in METHODS.items()}
    recipes = {name: _row("recipe", entry, entry.function.__doc__, size) for name, entry in RECIPES.items()}
    return {**methods, **recipes}


def _row(kind: str, entry: Recipe, doc: str | None, size: str) -> dict[str, Any]:
    preset, spec = entry.presets.get(size, {}), entry.batch_spec
    return {
        "kind": kind,
        "paper": entry.paper,
        "needs": _needs(spec),
        "idea": (doc or "").strip().partition("\n")[0].rstrip("."),
        **{table: dict(preset.get(table, {})) for table in _TABLES},
        "settings": _defaults(entry.settings_class, preset.get("settings", {})),
    }


def _needs(spec: BatchSpec) -> str:
    needs = ["pairs" if spec.scores else "1 view" if spec.views == 1 else f"{spec.views} views"]
    if spec.positives:
        needs.append(f"{len(spec.positives)} positives")
    if spec.teacher:
        needs.append("teachers" if spec.several_teachers else "teacher")
    return ", ".join(needs)


def _defaults(config: type[Any], preset: Any) -> dict[str, Any]:
    rows: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        made = field.default_factory
        default = field.default if made is dataclasses.MISSING else made()
        below = preset.get(field.name)
        if dataclasses.is_dataclass(default):
            rows[field.name] = _defaults(type(default), below or {})
        else:
            rows[field.name] = {
                "default": default if below is None else below,
                "doc": field.metadata.get("doc", ""),
            }
    return rows
