"""docs/training.md and docs/methods.md name every setting and every method."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from embedkit.training.batches import ViewsConfig
from embedkit.training.config import DevConfig, RunConfig, StudentConfig
from embedkit.training.corpus import SourceConfig
from embedkit.training.methods import METHODS
from embedkit.training.optim import OptimConfig
from embedkit.training.recipes import RECIPES
from embedkit.training.teacher_spaces import JoinConfig, MatryoshkaConfig
from embedkit.training.teachers import TeacherConfig

DOCS = Path(__file__).parents[2] / "docs"
TABLES = {
    "At the top": RunConfig,
    "`[student]`": StudentConfig,
    "`[[corpus]]`": SourceConfig,
    "`[views]`": ViewsConfig,
    "`[teacher]`": TeacherConfig,
    "`[optim]`": OptimConfig,
    "`[dev]`": DevConfig,
    "`[join]`": JoinConfig,
    "`[matryoshka]`": MatryoshkaConfig,
}
WITH_TABLES_OF_THEIR_OWN = {
    "student",
    "corpus",
    "views",
    "teacher",
    "teachers",
    "optim",
    "dev",
    "join",
    "matryoshka",
    "settings",
}


@pytest.mark.parametrize("heading", TABLES)
def test_every_setting_of_a_table_is_described(heading):
    settings = (DOCS / "training.md").read_text(encoding="utf-8").partition("\n## Settings\n")[2]
    block = settings.partition(f"\n{heading}")[2].partition("\n\n`[")[0]
    keys = {
        cell
        for line in block.splitlines()
        if line.startswith("| `")
        for cell in line.split("|")[1].split("`")[1::2]
    }
    names = {field.name for field in dataclasses.fields(TABLES[heading])}
    assert keys == (names - WITH_TABLES_OF_THEIR_OWN if TABLES[heading] is RunConfig else names)


@pytest.mark.parametrize("name", [*METHODS, *RECIPES])
def test_every_method_is_described(name):
    text = (DOCS / "methods.md").read_text(encoding="utf-8")
    section = text.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
    assert f"\n| `{name}` | " in text
    assert [
        f.name for f in dataclasses.fields({**METHODS, **RECIPES}[name].settings_class) if f.name not in section
    ] == []
