"""A folder that is nothing but a graph and a tokenizer."""

from __future__ import annotations

import pytest


@pytest.fixture
def bare_folder(toy_model_bytes, toy_tokenizer_json, tmp_path):
    """Write a graph and a tokenizer, and nothing else."""
    folder = tmp_path / "bare"
    folder.mkdir()
    (folder / "model.onnx").write_bytes(toy_model_bytes)
    (folder / "tokenizer.json").write_text(toy_tokenizer_json, encoding="utf-8")
    return folder
