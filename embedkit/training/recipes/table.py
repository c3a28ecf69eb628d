"""The table of methods and recipes, as `embedkit methods` prints it."""

from __future__ import annotations

import dataclasses
from typing import Any

from embedkit.training.method import BatchSpec
from embedkit.training.methods import METHODS
from embedkit.training.recipes import RECIPES
from embedkit.training.recipes.stage import Recipe, one_stage

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
        "settings": _settings(entry.settings_class, preset.get("settings", {})),
    }


def _needs(spec: BatchSpec) -> str:
    needs = ["pairs" if spec.scores else "1 view" if spec.views == 1 else f"{spec.views} views"]
    if spec.positives:
        needs.append(f"{len(spec.positives)} positives")
    if spec.teacher:
        needs.append("teachers" if spec.several_teachers else "teacher")
    return ", ".join(needs)


def _settings(config: type[Any], preset: Any) -> dict[str, Any]:
    rows: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        made = field.default_factory
        default = field.default if made is dataclasses.MISSING else made()
        below = preset.get(field.name)
        if dataclasses.is_dataclass(default):
            rows[field.name] = _settings(type(default), below or {})
        else:
            rows[field.name] = {
                "default": default if below is None else below,
                "doc": field.metadata.get("doc", ""),
            }
    return rows
