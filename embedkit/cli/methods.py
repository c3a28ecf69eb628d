"""`embedkit methods`: training methods with their papers and settings."""

from __future__ import annotations

import argparse
import json
from typing import Any

from embedkit.errors import ConfigError, did_you_mean

HELP = "list training methods and recipes with their settings"
EXAMPLES = """
embedkit methods
embedkit methods sct-distillation --size bert-mini
"""

# Tables of the configuration that presets may set, besides the method's own settings.
_TABLES = ("student", "optim", "dev")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help="show the settings of one method")
    parser.add_argument(
        "--size",
        default="bert-tiny",
        choices=["bert-tiny", "bert-mini", "bert-small"],
        help="size for which defaults are shown",
    )


def run(arguments: argparse.Namespace) -> None:
    """Print the table, or one method's settings."""
    from embedkit.training.resolve import build_table

    table = build_table(arguments.size)
    if arguments.name is not None:
        if arguments.name not in table:
            hint = did_you_mean(arguments.name, table, f"expected one of {', '.join(table)}")
            raise ConfigError(f"unknown method {arguments.name!r}; {hint}")
        table = {arguments.name: table[arguments.name]}
    if arguments.json:
        print(json.dumps(table))
    elif arguments.name is None:
        for name, row in table.items():
            print(f"{name:<18} {row['kind']:<7} {row['needs']:<24} {row['idea']} ({row['paper']})")
    else:
        _print_settings(arguments.name, table[arguments.name])


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
