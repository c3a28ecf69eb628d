"""A whole run: from a configuration to a folder with a trained encoder."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from embedkit.config import from_mapping, to_mapping
from embedkit.errors import ConfigError
from embedkit.training.checkpoint import TrainState
from embedkit.training.config import RunConfig
from embedkit.training.methods import METHODS
from embedkit.training.recipes import RECIPES
from embedkit.training.recipes.stage import Control, Materials, prepare, train_stage
from embedkit.training.run_folder import RunFolder
from embedkit.training.students import build_student

__all__ = ["resolve", "run"]

logger = logging.getLogger(__name__)


def resolve(mapping: Mapping[str, Any], *, source: str = "") -> RunConfig:
    """Lay the method's settings for the student's size under what the user says, and check everything.

    Raises:
        ConfigError: an unknown method or key, a wrong type or value; all problems at once.
    """
    name = mapping.get("method")
    entry = {**METHODS, **RECIPES}.get(name) if isinstance(name, str) else None
    if entry is None:
        known = ", ".join([*METHODS, *RECIPES])
        raise ConfigError(f"method is one of {known}, not {name!r}")
    presets = RECIPES[name].presets if name in RECIPES else METHODS[name].method.presets
    student = mapping.get("student")
    size = student.get("size", "tiny") if isinstance(student, Mapping) else "tiny"
    merged = _merge(presets.get(size, {}), mapping)
    config = from_mapping(RunConfig, merged, source=source)
    settings = from_mapping(entry.config, config.settings, source=f"{source} settings".strip())
    return dataclasses.replace(config, settings=to_mapping(settings))


def run(config: RunConfig, folder: str | Path, control: Control | None = None) -> TrainState:
    """Train what ``config`` describes.

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
    encoder = build_student(config)
    encoder.name = config.name or place.path.name
    place.start(to_mapping(config), resume=control.resume)
    if not place.initial.exists():
        encoder.save(place.initial)
    materials = prepare(config, control)
    if config.method in RECIPES:
        recipe = RECIPES[config.method]
        settings = from_mapping(recipe.config, config.settings)
        state = recipe.function(config, settings, materials, encoder, place, control)
    else:
        settings = from_mapping(METHODS[config.method].config, config.settings)
        state = train_stage(
            config.method, settings, config.optim, config, materials, encoder, place, control
        )
    if state.finished:
        place.finish(_card(config, encoder.name, materials, state))
    return state


def _card(config: RunConfig, name: str, materials: Materials, state: TrainState) -> dict[str, Any]:
    teacher = materials.teacher
    return {
        "name": name,
        "method": config.method,
        "base": config.student.source or f"{config.student.size}, started from {config.student.start}",
        "teacher": teacher and {"name": teacher.name, "fingerprint": teacher.fingerprint},
        "corpus": [
            {"name": card.name, "rows": card.rows, "sha256": card.sha256, "licence": card.licence}
            for card in materials.corpus.cards
        ],
        "dev": config.dev.pairs and config.resolve(config.dev.pairs),
        "metrics": {
            "dev_spearman": state.best_score,
            "best_step": state.best_step,
            "steps": state.step,
            "seconds": round(state.seconds, 1),
        },
    }


def _merge(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """``over`` laid over ``under``, table by table."""
    merged = dict(under)
    for key, value in over.items():
        below = merged.get(key)
        both = isinstance(value, Mapping) and isinstance(below, Mapping)
        merged[key] = _merge(below, value) if both and isinstance(below, Mapping) else value
    return merged
