"""Two packages that provide ONNX Runtime overwrite each other; the message names them and the remedy."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError

import pytest

from embedkit.runtime import distributions


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

    monkeypatch.setattr(distributions, "version", version)
    assert distributions.installed_onnxruntime() == dict.fromkeys(installed, "1.2.3")
    assert re.search(words, distributions.explain_missing_onnxruntime())
