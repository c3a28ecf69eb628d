"""`embedkit methods`: what can be trained, from which paper, with which settings."""

from __future__ import annotations

import argparse
import dataclasses
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from embedkit.training.method import BatchSpec
    from embedkit.training.methods import MethodEntry
    from embedkit.training.recipes import RecipeEntry

__all__ = ["EXAMPLES", "HELP", "configure", "run"]

HELP = "list training methods and recipes with their settings"
EXAMPLES = """
embedkit methods
embedkit methods sct-distillation --size mini
"""

# Tables of the configuration, beside the method's own settings, that presets speak of.
_TABLES = ("student", "optim", "dev")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("name", nargs="?", help="show the settings of one method")
    parser.add_argument("--size", default="tiny", choices=["tiny", "mini", "small"], help="for the defaults")


def run(arguments: argparse.Namespace) -> None:
    """Print the table, or one method's settings."""
    from embedkit.training.recipes.run import find_method

    table = _table(arguments.size)
    if arguments.name is not None:
        find_method(arguments.name)
        table = {arguments.name: table[arguments.name]}
    if arguments.json:
        print(json.dumps(table))
    elif arguments.name is None:
        for name, row in table.items():
            print(f"{name:<18} {row['kind']:<7} {row['needs']:<24} {row['idea']} ({row['paper']})")
    else:
        _print_settings(arguments.name, table[arguments.name])


def _table(size: str) -> dict[str, dict[str, Any]]:
    from embedkit.training.methods import METHODS
    from embedkit.training.recipes import RECIPES

    methods = {name: _row("method", entry, entry.method.__doc__, size) for name, entry in METHODS.items()}
    recipes = {name: _row("recipe", entry, entry.function.__doc__, size) for name, entry in RECIPES.items()}
    return {**methods, **recipes}


def _row(kind: str, entry: MethodEntry | RecipeEntry, doc: str | None, size: str) -> dict[str, Any]:
    preset, spec = entry.presets.get(size, {}), entry.batch_spec
    return {
        "kind": kind,
        "paper": entry.paper,
        "needs": _needs(spec),
        "idea": (doc or "").strip().partition("\n")[0].rstrip("."),
        **{table: dict(preset.get(table, {})) for table in _TABLES},
        "settings": _settings(entry.config, preset.get("settings", {})),
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


def _print_settings(name: str, row: dict[str, Any]) -> None:
    print(f"{name}: {row['idea']} ({row['paper']}); needs {row['needs']}")
    for key, value in ((f"{table}.{key}", value) for table in _TABLES for key, value in row[table].items()):
        print(f"  {key:<42} {value}")
    _print_rows(row["settings"], "settings.")


def _print_rows(rows: dict[str, Any], prefix: str) -> None:
    settings = {key: value for key, value in rows.items() if "default" in value and "doc" in value}
    for key, value in settings.items():
        print(f"  {prefix + key:<42} {value['default']!s:<10} {value['doc']}")
    for key, value in rows.items():
        if key not in settings:
            _print_rows(value, f"{prefix}{key}.")
