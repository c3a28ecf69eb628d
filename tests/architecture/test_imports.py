"""Import rules: by contracts, and by the modules that are loaded."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from embedkit.cli.main import COMMANDS

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "embedkit"
FILES = sorted(PACKAGE.rglob("*.py"))
HEAVY = {"torch", "transformers", "onnx", "faiss", "scipy", "sklearn", "datasets", "huggingface_hub", "pyarrow"}
HEAVY |= {"asyncio", "fastapi", "httptools", "multiprocessing", "pydantic", "starlette", "uvicorn"}
MODULES = {"faiss-cpu": "faiss", "scikit-learn": "sklearn", "markdown-it-py": "markdown_it", "pyyaml": "yaml"}
RUN_GRAPHS = [PACKAGE / "runtime" / "model.py"]

# One violation of each contract in pyproject.toml: (file, line added to it, name of the contract).
VIOLATIONS = [
    ("runtime/options.py", "import embedkit.evaluation", "Subpackages import downwards only"),
    ("cellar/__init__.py", '"""A subpackage without a layer."""', "Subpackages import downwards only"),
    ("training/losses.py", "import embedkit.training.loop", "Inside training"),
    ("evaluation/sts.py", "import torch", "runtime and evaluation need"),
    ("serving/retrieval/collection.py", "import torch", "serving reaches no training framework"),
    ("serving/retrieval/documents.py", "import embedkit.evaluation.sts", "serving reaches no training framework"),
    ("serving/retrieval/documents.py", "import embedkit.serving.http.batcher", "A collection needs no server"),
    ("training/methods/simcse.py", "import embedkit.training.methods.sct", "Methods do not know each other"),
    ("export/__init__.py", "import onnxruntime", "ONNX Runtime is met in one module"),
    ("training/losses.py", "import transformers", "transformers is met in"),
    ("cli/search.py", "import faiss", "FAISS is met in one module"),
    ("cli/encode.py", "import ray", "Ray is met in one module"),
    ("cli/search.py", "import pymilvus", "pymilvus is met in one module"),
    ("cli/search.py", "import qdrant_client", "qdrant_client is met in one module"),
]


def lint_imports(folder):
    command = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    return subprocess.run(
        [sys.executable, "-c", command, "--config", str(ROOT / "pyproject.toml"), "--no-cache"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_contracts_hold():
    done = lint_imports(ROOT)
    assert done.returncode == 0, done.stdout


@pytest.fixture(scope="module")
def broken_package(tmp_path_factory):
    """Run import-linter on a copy of the package that contains all violations."""
    folder = tmp_path_factory.mktemp("package")
    shutil.copytree(PACKAGE, folder / "embedkit", ignore=shutil.ignore_patterns("__pycache__"))
    for name, line, _ in VIOLATIONS:
        path = folder / "embedkit" / name
        path.parent.mkdir(exist_ok=True)
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        path.write_text(f"{text}\n{line}\n", encoding="utf-8")
    return lint_imports(folder).stdout


@pytest.mark.parametrize("contract", sorted({contract for *_, contract in VIOLATIONS}))
def test_contracts_notice_a_violation(broken_package, contract):
    assert any(line.startswith(contract) and "BROKEN" in line for line in broken_package.splitlines())


def test_every_contract_has_a_violation(broken_package):
    assert "KEPT" not in broken_package


def loaded_by(script):
    """Return the top-level packages loaded after a script ran in a fresh interpreter."""
    ending = "\nimport json, sys; print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    done = subprocess.run([sys.executable, "-c", script + ending], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_encoding_loads_the_three_base_packages_only(toy_bundle):
    script = f"""
from embedkit import Encoder
encoder = Encoder.load({str(toy_bundle)!r})
assert encoder.encode(["a good dog", "the cat"]).shape == (2, encoder.dimension)
assert encoder.verify()["passed"]
"""
    loaded = loaded_by(script)
    assert loaded >= {"numpy", "onnxruntime", "tokenizers"}
    assert not loaded & HEAVY


def test_searching_loads_no_heavy_package(toy_bundle, tmp_path):
    (tmp_path / "docs.txt").write_text("a good dog\nthe cat is asleep\nred apple\n", encoding="utf-8")
    script = f"""
from embedkit import Collection, Encoder
encoder = Encoder.load({str(toy_bundle)!r})
Collection.build({str(tmp_path / "docs.txt")!r}, encoder=encoder, path={str(tmp_path / "index")!r})
assert len(Collection.open({str(tmp_path / "index")!r}, encoder=encoder).search("a dog", k=2)) == 2
"""
    assert not loaded_by(script) & HEAVY


def test_evaluating_loads_no_heavy_package(toy_bundle):
    script = f"""
import numpy as np
from embedkit import Encoder
from embedkit.evaluation.sts import ScoredPairs, evaluate_pairs
pairs = ScoredPairs("toy", ["a dog", "red", "sea"], ["a cat", "blue", "boat"], np.array([3.0, 1.0, 2.0]))
assert -1.0 <= evaluate_pairs(Encoder.load({str(toy_bundle)!r}), pairs) <= 1.0
"""
    assert not loaded_by(script) & HEAVY


@pytest.mark.parametrize("command", ["--help", "--version", "models", *(f"{name} --help" for name in COMMANDS)])
def test_commands_without_a_model_load_no_arrays_and_no_event_loop(command):
    script = f"""
import contextlib
from embedkit.cli.main import main
with contextlib.suppress(SystemExit):
    main({command.split()})
"""
    assert not loaded_by(script) & {"asyncio", "email", "numpy"}  # importlib.metadata needs email


# Where a collection loads a model that it was given by name, where a model is fetched from an address, TOML's
# parser and suggestions for misspelled names, which readers of manifests do not need, and versions of packages.
LOAD_MODELS = [
    PACKAGE / "config.py",
    PACKAGE / "extras.py",
    PACKAGE / "runtime" / "find.py",
    PACKAGE / "serving" / "retrieval" / "collection.py",
    PACKAGE / "serving" / "retrieval" / "models.py",
]


def may_import_late(path):
    """Only commands may, for a fast `--help`, and code that may not need what is slow to import."""
    return path.parent == PACKAGE / "cli" or path in RUN_GRAPHS or path in LOAD_MODELS


def test_imports_are_at_the_top():
    late = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}"
        for path in FILES
        if not may_import_late(path)
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    assert not late


def test_modules_are_imported_by_name_only_in_allowed_files():
    allowed = {
        PACKAGE / "__init__.py",  # public names, on first use
        PACKAGE / "extras.py",  # optional packages
        PACKAGE / "cli" / "main.py",  # the command called
        PACKAGE / "export" / "source_parity.py",  # the library that a folder is compared with, if it is installed
    }
    assert {path for path in FILES if "import_module" in path.read_text(encoding="utf-8")} <= allowed


def imported_by(path, *, late):
    """Return the modules that a file imports, late those of its functions, too, and the arguments of `require`."""
    waiting, imported, required = list(ast.parse(path.read_text(encoding="utf-8")).body), [], []
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not late:
            continue
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            imported += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            imported += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "require":
            required.append(ast.literal_eval(node.args[0]))
        waiting += ast.iter_child_nodes(node)
    return imported, required


def packages_needed(module):
    """Return the packages that a command imports itself, without `require`, which names the right extra."""
    files = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in FILES}
    files = {name.removesuffix(".__init__"): path for name, path in files.items()}
    needed, named, late = set(), set(sys.stdlib_module_names), True
    seen, waiting = set(), [module]
    while waiting:
        name = waiting.pop()
        if name in files and name not in seen | named:
            imported, required = imported_by(files[name], late=late)
            seen.add(name)
            named |= {each if each.startswith("embedkit.") else each.partition(".")[0] for each in required}
            waiting += [name.rpartition(".")[0], *imported]
            late = False
        elif name and not name.startswith("embedkit"):
            needed.add(name.partition(".")[0])
    return needed - named


def provided_by(extras):
    """Return the packages that embedkit and these extras of it install, by the names of their modules."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    listed = ["huggingface-hub", *project["dependencies"]]  # a dependency of tokenizers
    for extra in extras:
        listed += project["optional-dependencies"][extra]
    names = {re.split(r"[^\w-]", requirement)[0] for requirement in listed}
    return {MODULES.get(name, name.replace("-", "_")) for name in names}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_extras_of_a_command_have_every_package_that_it_imports(name):
    extras = [extra for extra in (COMMANDS[name].extra or "").split(",") if extra]
    extras += ["serve"] if "mcp" in extras else []  # that extra includes the other
    assert packages_needed(COMMANDS[name].module) <= provided_by(extras)


def test_one_module_starts_python():
    """What it starts runs no code of the current folder."""
    starts = {
        str(file.relative_to(PACKAGE))
        for file in FILES
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr in {"executable", "_base_executable", "argv0"}
    }
    assert starts == {"child.py"}
    source = "".join(file.read_text(encoding="utf-8") for file in FILES)
    assert not re.findall(
        r"import multiprocessing|runpy|os\.(?:exec|spawn|system|popen)|ProcessPoolExecutor", source
    )
