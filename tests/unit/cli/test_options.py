"""Options that several commands have, and which backend runs the model that a command names."""

from __future__ import annotations

from pathlib import Path

import pytest

from embedkit.cli.main import main
from embedkit.cli.options import choose_backend, locate


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["cluster", "gone.txt", "--max-pairs", "9"], "--max-pairs: no effect without --pairs"),
        (["cluster", "gone.txt", "--pairs", "--min-size", "2"], "--min-size: no effect with --pairs"),
        (
            ["mcp", "gone", "--port", "81", "--api-key-file", "k"],
            "--port, --api-key-file: no effect without --http",
        ),
        (
            ["push", "gone", "me/it", "--save", "place", "--private", "--message", "new"],
            "--private, --message: no effect with --save",
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_flags_without_effect_are_refused_before_any_work(command, message, capsys):
    assert main(command) == 1
    assert capsys.readouterr().err == f"error: {message}\n"


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
