"""The public names: available on first use, and nothing heavy imported before."""

from __future__ import annotations

import subprocess
import sys

import pytest

import embedkit


@pytest.mark.parametrize("name", [name for name in embedkit.__all__ if name != "__version__"])
def test_every_public_name_is_found_at_its_home(name):
    if name == "Collection":
        pytest.importorskip("faiss")
    value = getattr(embedkit, name)
    assert value.__name__ == name
    assert value.__module__ == embedkit._HOME_OF[name]


def test_the_table_and_the_public_names_agree():
    assert {*embedkit._HOME_OF, "__version__"} == set(embedkit.__all__) == set(dir(embedkit))
    assert embedkit.__all__ == sorted(embedkit.__all__)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Decoder'"):
        embedkit.Decoder  # noqa: B018


def test_importing_embedkit_imports_nothing_else():
    script = "import sys; before = set(sys.modules); import embedkit; print(*(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    heavy = {"numpy", "onnxruntime", "tokenizers", "torch", "embedkit.errors"}
    assert not heavy & set(done.stdout.split())
    assert "embedkit" in done.stdout.split()
