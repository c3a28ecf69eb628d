"""Rules about the text of the repository that no linter has."""

from __future__ import annotations

import ast
import functools
import importlib
import pkgutil
import re
import tomllib
from pathlib import Path

import pytest

import embedkit
from embedkit.kernels import built

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "embedkit"
MODULES = sorted(PACKAGE.rglob("*.py"))
WRITTEN = sorted(
    path
    for pattern in ("*.md", "*.toml", "Makefile", ".ci/run", "embedkit/**/*", "docs/**/*", "tests/**/*.py")
    for path in [*ROOT.glob(pattern), *(ROOT / "examples").rglob("*.*"), *(ROOT / "benchmarks").rglob("*.*")]
    if path.is_file() and path.suffix in {"", ".py", ".md", ".toml", ".json"} and "__pycache__" not in path.parts
)
DRAWERS = {"base", "common", "core", "helper", "helpers", "misc", "tools", "util", "utils"}
# Absolute paths that are valid on one machine only; `someone` is a placeholder.
PLACES = ("/work/", "/root/", "/opt/", "/mnt/", "/Users/", "/home/")
PRIVATE_PLACE = re.compile(rf"(?<![\w.~}}\])/-])(?!/home/someone)(?:{'|'.join(PLACES)})\w")
# Phrases with a plainer form: "again" for "anew", "N times slower" for "takes N times as long", "reports" for
# "tells".
PHRASES = re.compile(
    r"\banew\b|\bby and by\b|\b(?:tells?|told|nobody|whoever|meanwhile|likewise|hence)\b|\bfor one[.,;:)]"
    r"|\botherwise than\b|\btimes as long\b|\bis said\b|\b(?:model|encoder|student|network|kernel)s? knows?\b"
    r"|\bknows? (?:no|none|nothing)\b",
    re.IGNORECASE,
)
COMMENT = re.compile(r"(?:^|\s)# .*$", re.MULTILINE)
CODE = re.compile(r"```.*?^```|`[^`\n]*`", re.MULTILINE | re.DOTALL)


def name_of(path):
    return str(path.relative_to(ROOT))


def module_of(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@functools.cache
def parsed():
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in MODULES}


def test_no_file_is_a_catch_all():
    assert not [name_of(path) for path in MODULES if DRAWERS & set(path.stem.split("_"))]


def test_every_folder_of_code_is_a_package():
    folders = {path.parent for path in MODULES}
    assert not [name_of(folder) for folder in folders if not (folder / "__init__.py").exists()]


def test_every_module_has_a_docstring():
    assert not [name_of(path) for path, tree in parsed().items() if not ast.get_docstring(tree)]


NOT_INSTALLED_EVERYWHERE = {
    "embedkit/serving/qdrant.py": "qdrant_client",
}


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_modules_can_be_imported_and_have_the_names_they_list(path):
    if needed := NOT_INSTALLED_EVERYWHERE.get(name_of(path)):
        pytest.importorskip(needed)
    module = importlib.import_module(module_of(path))
    names = getattr(module, "__all__", [])
    assert len(names) == len(set(names))
    assert [name for name in names if not hasattr(module, name)] == []


def test_only_commands_print():
    calls = [
        f"{name_of(path)}:{node.lineno}"
        for path, tree in parsed().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
        if path.parent != PACKAGE / "cli"
    ]
    assert not calls


def test_text_contains_no_path_of_one_machine():
    texts = {path: path.read_text(encoding="utf-8") for path in WRITTEN if path != Path(__file__)}
    found = [
        f"{name_of(path)}: {match[0]}"
        for path, text in texts.items()
        if any(place in text for place in PLACES)  # which is quick
        for match in PRIVATE_PLACE.finditer(text)
    ]
    assert not found


def test_prose_has_the_plainer_forms_of_phrases():
    prose = {path: CODE.sub("", path.read_text(encoding="utf-8")) for path in WRITTEN if path.suffix == ".md"}
    for path, tree in parsed().items():
        documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        docstrings = [ast.get_docstring(node) or "" for node in ast.walk(tree) if isinstance(node, documented)]
        prose[path] = "\n".join([*docstrings, *COMMENT.findall(path.read_text(encoding="utf-8"))])
    found = [f"{name_of(path)}: {match[0]}" for path, text in prose.items() for match in PHRASES.finditer(text)]
    assert not found


def test_every_package_is_walked():
    """A folder that `walk_packages` misses would also be missed by the test of the wheel."""
    walked = {module.name for module in pkgutil.walk_packages(embedkit.__path__, "embedkit.")}
    compiled = {module_of(path) for path in PACKAGE.glob("kernels/*.pyi")}
    assert {module_of(path) for path in MODULES} - {"embedkit"} == walked - compiled


def test_every_kernel_has_a_stub_and_is_built():
    kernels = [path.stem for path in PACKAGE.glob("kernels/*.c")]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    modules = project["tool"]["setuptools"]["ext-modules"]
    assert sorted(kernels) == sorted(path.stem for path in PACKAGE.glob("kernels/*.pyi"))
    assert sorted(kernels) == sorted(module["name"].removeprefix("embedkit.kernels.") for module in modules)
    assert all(module["optional"] and module["py-limited-api"] for module in modules)
    assert set(built()) == set(kernels)
