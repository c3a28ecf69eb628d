"""Scripts under benchmarks/ and examples/, most of which no test runs, and the list of models that one writes."""

import ast
import importlib
import json
import re
import runpy
import tomllib
from pathlib import Path

import pytest

from embedkit.runtime.bundle import read_bundle

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted(path for folder in ("benchmarks", "examples") for path in (ROOT / folder).rglob("*.py"))


def imported_names(path):
    """Return ``(module, name)`` of everything that a script imports from embedkit."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] == "embedkit":
            yield from ((node.module, alias.name) for alias in node.names)


def test_scripts_exist():
    assert len(SCRIPTS) > 50


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_scripts_import_names_that_exist(path):
    try:
        gone = [each for each in imported_names(path) if not hasattr(importlib.import_module(each[0]), each[1])]
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("embedkit"):
            raise
        pytest.skip(str(error))
    assert not gone


def test_every_result_is_measured_by_a_figure():
    plan = tomllib.loads((ROOT / "benchmarks" / "figures.toml").read_text(encoding="utf-8"))
    commands = [row["command"] for row in plan["figure"]]
    scripts = {word for command in commands for word in command.split() if word.startswith("benchmarks/")}
    assert [script for script in scripts if script.endswith(".py") and not (ROOT / script).exists()] == []
    measured = {Path(script).parent.name for script in scripts}
    assert {path.parent.name for path in (ROOT / "benchmarks").glob("*/results*")} - measured == set()
    places = {"data", "teachers", "peers", "work"}
    assert {found for command in commands for found in re.findall(r"{(\w+)}", command)} <= places
    environments = {found for command in commands for found in re.findall(r"{peers}/([\w-]+)/", command)}
    assert environments == set(plan["peers"])


def test_the_page_of_figures_names_the_version_of_every_result():
    figures = runpy.run_path(str(ROOT / "benchmarks" / "figures.py"))
    written = (ROOT / "benchmarks" / "figures.md").read_text(encoding="utf-8")
    assert written == figures["page"]()
    listed = set(re.findall(r"\(([\w/.-]+)\)", written))
    assert all((ROOT / "benchmarks" / path).exists() for path in listed)
    assert {f"{path.parent.name}/{path.name}" for path in (ROOT / "benchmarks").glob("*/results.md")} <= listed


def test_the_list_of_models_is_what_its_script_writes():
    published = runpy.run_path(str(ROOT / "benchmarks" / "quality" / "published.py"))
    written = (ROOT / "embedkit" / "runtime" / "models.json").read_text(encoding="utf-8")
    assert published["content"]() == written


@pytest.mark.parametrize("name", ["quality", "multilingual"])
def test_figures_are_those_of_the_models_in_the_repository(name):
    paths = [path for folder in ("embedkit/bundled", "models") for path in (ROOT / folder).glob("*.onnx")]
    models = {path.stem: read_bundle(path).fingerprint for path in paths}
    report = json.loads((ROOT / "benchmarks" / name / "results.json").read_text(encoding="utf-8"))
    rows = {label.partition(",")[0]: row for label, row in report.get("models", report).items()}
    measured = {model: rows[model]["fingerprint"] for model in models if model in rows}
    assert len(measured) >= 2
    assert measured == {model: models[model] for model in measured}
