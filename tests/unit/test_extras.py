"""A missing package is reported in one sentence with the command that installs it."""

from __future__ import annotations

import json
import re
import sys
from importlib.metadata import PackageNotFoundError

import pytest

from embedkit import extras
from embedkit.errors import MissingExtraError
from embedkit.extras import require


def test_what_is_installed_is_imported():
    assert require("json", extra="serve") is json
    assert require("xml.etree.ElementTree", extra="serve").__name__ == "xml.etree.ElementTree"


@pytest.mark.parametrize("module", ["no_such_package", "no_such_package.inner"])
def test_what_is_missing_is_named_with_the_command(module):
    with pytest.raises(MissingExtraError) as caught:
        require(module, extra="serve")
    command = 'pip install "embedkit-onnx[serve]", or in a checkout: pip install ".[serve]"'
    assert str(caught.value) == f"no_such_package is not installed; it comes with: {command}"
    assert isinstance(caught.value, ImportError)


def test_a_missing_dependency_of_a_package_is_named(tmp_path, monkeypatch):
    (tmp_path / "half_there.py").write_text("import no_such_dependency\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(MissingExtraError, match="no_such_dependency is not installed"):
        require("half_there", extra="bench")
    sys.modules.pop("half_there", None)


def test_other_failures_are_not_hidden(tmp_path, monkeypatch):
    (tmp_path / "broken_inside.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ZeroDivisionError):
        require("broken_inside", extra="bench")


@pytest.mark.parametrize(
    ("installed", "words"),
    [
        ([], "not installed; install it with: pip install onnxruntime"),
        (["onnxruntime"], "onnxruntime is installed but damaged.*--force-reinstall --no-deps onnxruntime$"),
        (["onnxruntime-gpu"], "--no-deps onnxruntime-gpu$"),
        (
            ["onnxruntime", "onnxruntime-gpu"],
            "onnxruntime and onnxruntime-gpu are both installed.*pip uninstall -y onnxruntime onnxruntime-gpu`",
        ),
    ],
)
def test_the_message_matches_the_installed_packages(monkeypatch, installed, words):
    def version(name):
        if name not in installed:
            raise PackageNotFoundError(name)
        return "1.2.3"

    monkeypatch.setattr("importlib.metadata.version", version)
    assert extras.installed_onnxruntime() == dict.fromkeys(installed, "1.2.3")
    assert re.search(words, extras.explain_missing_onnxruntime())
