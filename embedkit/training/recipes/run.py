"""A whole run: from a configuration to a folder with a trained encoder."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch

from embedkit.config import from_mapping, to_mapping
from embedkit.errors import ConfigError
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.training import processes
from embedkit.training.checkpoint import TrainState
from embedkit.training.config import RunConfig
from embedkit.training.environment import environment
from embedkit.training.methods import METHODS, MethodEntry
from embedkit.training.recipes import RECIPES, RecipeEntry
from embedkit.training.recipes.stage import Control, Materials, prepare, train_stage
from embedkit.training.run_folder import RunFolder
from embedkit.training.students import build_student
from embedkit.training.teachers import TeacherVectors
from embedkit.training.trackers import find_trackers

__all__ = ["find_method", "resolve", "run"]

Config = TypeVar("Config")


def resolve(mapping: Mapping[str, Any], *, source: str = "") -> RunConfig:
    """Lay the method's settings for the student's size under what the user says, and check everything.

    Raises:
        ConfigError: an unknown method or key, a wrong type or value, no teacher where one is needed, several
            where one is taken; all problems at once.
    """
    entry = find_method(mapping.get("method"))
    merged = _merge(_presets(entry, mapping.get("student"), mapping.get("settings")), mapping)
    problems: list[str] = []
    config = _read(RunConfig, merged, source, problems)
    settings = _read(entry.config, merged.get("settings", {}), f"{source} settings".strip(), problems)
    if problem := entry.batch_spec.teacher_problem(_teacher_count(mapping)):
        problems.append(problem)
    if config is None or problems:
        raise ConfigError(problems)
    return dataclasses.replace(config, settings=to_mapping(settings))


def find_method(name: object) -> MethodEntry | RecipeEntry:
    """The method or recipe of that name.

    Raises:
        ConfigError: there is none; suggests one with a similar name.
    """
    table: dict[str, MethodEntry | RecipeEntry] = {**METHODS, **RECIPES}
    if name is None:
        raise ConfigError(f"method is missing: one of {', '.join(table)}")
    if isinstance(name, str) and name in table:
        return table[name]
    near = difflib.get_close_matches(str(name), table, n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(table)}"
    raise ConfigError(f"there is no method {name!r}; {hint}")


def run(config: RunConfig, folder: str | Path, control: Control | None = None) -> TrainState:
    """Train what ``config`` describes, together with the other processes where torchrun started several.

    Args:
        config: from :func:`resolve`.
        folder: the run folder; see :class:`~embedkit.training.run_folder.RunFolder`.
        control: resume, stop, progress.

    Returns:
        the final state; the encoder is in ``folder/model`` once ``finished``.

    Raises:
        EmbedkitError: whatever part of the run cannot go on; the last checkpoint stays.
    """
    control, place = control or Control(), RunFolder(folder)
    with processes.group(config.device), _threads(config.threads):
        place.check(to_mapping(config), resume=control.resume)
        # What is missing is told before anything costs.
        find_trackers(config.trackers, place.path, name="", config={})
        processes.wait()  # a run that has just been started would be refused
        encoder = build_student(config)
        encoder.name = config.name or place.path.name
        if processes.first():
            _start(config, place, encoder, resume=control.resume)
        else:
            control = dataclasses.replace(control, show_progress=False)
        entry = find_method(config.method)
        spec = entry.batch_spec
        materials = prepare(config, control, teacher=spec.teacher or spec.several_teachers)
        settings = from_mapping(entry.config, config.settings)
        if isinstance(entry, RecipeEntry):
            state = entry.function(config, settings, materials, encoder, place, control)
        else:
            state = train_stage(config.method, settings, config.optim, config, materials, encoder, place, control)
        if state.finished and processes.first():
            place.finish(_card(config, encoder.name, materials, state))
    return state


def _start(config: RunConfig, place: RunFolder, encoder: SentenceEncoder, *, resume: bool) -> None:
    """Write what a run begins with, unless it is there already."""
    place.start(to_mapping(config), environment(), resume=resume)
    if not place.initial.exists():
        encoder.save(place.initial)


@contextlib.contextmanager
def _threads(count: int | None) -> Iterator[None]:
    """Torch with so many threads; the count belongs to the process, so it is put back."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _card(config: RunConfig, name: str, materials: Materials, state: TrainState) -> dict[str, Any]:
    return {
        "name": name,
        "method": config.method,
        "base": config.student.source or f"{config.student.size}, started from {config.student.start}",
        "teacher": _teacher_card(materials.teachers),
        "corpus": [
            {"name": card.name, "rows": card.rows, "sha256": card.sha256, "licence": card.licence}
            for card in materials.corpus.cards
        ],
        "dev": config.dev.pairs and config.resolve(config.dev.pairs),
        "dev_pairs": materials.dev and len(materials.dev),
        "metrics": {
            "dev_spearman": state.best_score,
            "best_step": state.best_step,
            "steps": state.step,
            "seconds": round(state.seconds, 1),
        },
    }


def _teacher_card(teachers: Sequence[TeacherVectors]) -> dict[str, Any] | None:
    """Name and fingerprint; of several teachers together, and of each."""
    cards = [{"name": teacher.name, "fingerprint": teacher.fingerprint} for teacher in teachers]
    if len(cards) < 2:
        return cards[0] if cards else None
    joined = hashlib.sha256(" ".join(card["fingerprint"] for card in cards).encode()).hexdigest()
    return {"name": ", ".join(card["name"] for card in cards), "fingerprint": joined, "teachers": cards}


def _teacher_count(mapping: Mapping[str, Any]) -> int:
    """How many teachers a configuration names, before it is known to be well formed."""
    several = mapping.get("teachers")
    return len(several) if isinstance(several, list | tuple) else int(mapping.get("teacher") is not None)


def _presets(entry: MethodEntry | RecipeEntry, student: object, settings: object) -> Mapping[str, Any]:
    """The tables of the student's size, and over them those that are paired with a setting chosen."""
    size = student.get("size", "tiny") if isinstance(student, Mapping) else "tiny"
    presets = entry.presets.get(size, {}) if isinstance(size, str) else {}
    chosen = settings if isinstance(settings, Mapping) else {}
    for pair, tables in entry.paired.items():
        name, _, value = pair.partition("=")
        if chosen.get(name) == value:
            presets = _merge(presets, tables)
    return presets


def _read(cls: type[Config], mapping: object, source: str, problems: list[str]) -> Config | None:
    """A config, or None and its problems added to those before."""
    try:
        return from_mapping(cls, mapping, source=source) if isinstance(mapping, Mapping) else None
    except ConfigError as error:
        problems += error.problems
        return None


def _merge(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """``over`` laid over ``under``, table by table."""
    merged = dict(under)
    for key, value in over.items():
        below = merged.get(key)
        both = isinstance(value, Mapping) and isinstance(below, Mapping)
        merged[key] = _merge(below, value) if both and isinstance(below, Mapping) else value
    return merged
