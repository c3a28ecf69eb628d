"""The contents of a path decide which backend runs a model."""

from __future__ import annotations

from pathlib import Path

import pytest

from embedkit.cli.options import choose_backend, locate


@pytest.mark.parametrize(
    ("files", "location", "backend"),
    [
        (["tiny.onnx"], "tiny.onnx", "onnx"),
        ([], "tiny", "onnx"),
        ([], "gone.onnx", "onnx"),
        ([], "here/gone.onnx", "onnx"),
        ([], "org/name", "torch"),
        (["model/model.safetensors", "model/config.json"], "model", "torch"),
        (["model/model.safetensors", "model/onnx/model.onnx"], "model", "onnx"),
        (["model/model.onnx"], "model", "onnx"),
    ],
)
def test_the_contents_of_a_path_decide_the_backend(tmp_path, monkeypatch, files, location, backend):
    monkeypatch.chdir(tmp_path)
    for name in files:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).touch()
    assert choose_backend(location) == backend


def test_a_run_folder_is_its_model_folder(tmp_path):
    model = tmp_path / "run" / "model"
    model.mkdir(parents=True)
    (model / "config.json").write_text("{}")
    assert locate(str(tmp_path / "run")) == str(model)
    assert locate("org/name") == "org/name"
