"""A path comes first and never uses the network; then bundled names; then the hub."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from embedkit.errors import ModelError, ModelNotFoundError
from embedkit.runtime import find
from embedkit.runtime.find import absolute_source, find_bundle, find_folder, find_model


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """An empty working folder, two bundled models, and a hub that must not be called."""
    bundled = tmp_path / "bundled"
    (tmp_path / "here").mkdir()
    bundled.mkdir()
    for name in ("small-sct", "mini-sct"):
        (bundled / f"{name}.onnx").touch()
    (bundled / "small-sct.md").touch()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(find, "BUNDLED", bundled)
    monkeypatch.setattr(find, "published_models", dict)

    def unwanted(*arguments, **options):
        pytest.fail("this must not go to the network")

    monkeypatch.setattr(find, "require", unwanted)


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A hub that records requests."""
    calls: list[dict[str, Any]] = []

    def snapshot_download(repo_id, *, local_files_only=False, **options):
        if local_files_only:
            raise OSError("not here")
        calls.append({"repo_id": repo_id, **options})
        return str(tmp_path / "cache")

    monkeypatch.setattr(
        find, "require", lambda module, extra: SimpleNamespace(snapshot_download=snapshot_download)
    )
    return calls


@pytest.mark.parametrize("source", ["mini-sct.onnx", Path("mini-sct.onnx")])
def test_a_bundled_name_may_carry_its_suffix_where_no_such_file_exists(tmp_path, source):
    assert find_model(source) == tmp_path / "bundled/mini-sct.onnx"
    Path("mini-sct.onnx").touch()
    assert find_model(source) == Path("mini-sct.onnx")


def test_a_bundle_is_a_file_or_a_name_of_embedkit_s_own(tmp_path):
    own = tmp_path / "own.onnx"
    own.touch()
    Path("mini-sct").mkdir()

    assert find_bundle(str(own)) == own
    assert find_bundle("small-sct") == find_bundle("small-sct.onnx") == tmp_path / "bundled" / "small-sct.onnx"
    assert find_bundle("mini-sct") is None  # a folder of that name is here
    assert find_bundle("org/small-sct") is None


def test_the_name_of_a_replaced_model_leads_to_its_successor(tmp_path):
    (tmp_path / "bundled" / "tiny.onnx").touch()
    assert find_model("tiny-sct") == find_model("tiny-sct.onnx") == tmp_path / "bundled/tiny.onnx"


def test_a_path_wins_over_a_bundled_name_and_a_hub_id():
    Path("small-sct").mkdir()
    Path("org/name").mkdir(parents=True)
    assert find_model("small-sct") == Path("small-sct")
    assert find_model("org/name") == Path("org/name")


@pytest.mark.parametrize(
    "source",
    [
        "models/small-sct.onnx",
        "./small-sct",
        "../models/small-sct",
        "/models/small-sct",
        "~/models/small-sct",
        "a/b/small-sct",
        "c:\\models\\small-sct",
        "here-is-a-folder/small-sct",
        Path("org/small-sct"),
        pytest.param("x" * 5000 + "/a/b", id="longer than a path may be"),
    ],
)
def test_a_name_like_a_path_never_uses_the_network(source):
    Path("here-is-a-folder").mkdir()
    with pytest.raises(ModelNotFoundError, match="the bundled models are mini-sct, small-sct"):
        find_model(source)


@pytest.mark.parametrize(
    "source", ["", "tinysct", "all-MiniLM", "name with spaces", "org/na me", "https://x.org/m"]
)
def test_an_unknown_source_is_answered_with_the_bundled_names(source):
    with pytest.raises(ModelNotFoundError, match="the bundled models are mini-sct, small-sct"):
        find_model(source)


def test_a_near_name_is_proposed():
    with pytest.raises(ModelNotFoundError, match="did you mean 'small-sct'"):
        find_model("small-stc")
    with pytest.raises(ModelNotFoundError, match="did you mean 'mini-sct'"):
        find_model("models/mini-sct.onnx")


def test_a_hub_id_is_downloaded_without_its_other_graphs(hub, tmp_path):
    assert find_model("org/tiny-model") == tmp_path / "cache"
    assert hub[0]["repo_id"] == "org/tiny-model"
    assert hub[0]["allow_patterns"] == ["*.json", "onnx/model.onnx", "model.onnx", "tiny-model.onnx"]
    find_model("org/tiny-model", file="onnx/model_quint8.onnx")
    assert hub[1]["allow_patterns"] == ["*.json", "onnx/model_quint8.onnx"]


@pytest.mark.parametrize("error", [OSError("offline\nlong story"), ValueError("bad id"), ConnectionError()])
def test_a_hub_without_the_model_raises_model_not_found(monkeypatch, error):
    def snapshot_download(repo_id, **options):
        raise error

    monkeypatch.setattr(
        find, "require", lambda module, extra: SimpleNamespace(snapshot_download=snapshot_download)
    )
    with pytest.raises(ModelNotFoundError, match=r"'org/name'.*the bundled models are") as caught:
        find_model("org/name")
    assert "\n" not in str(caught.value)


def test_the_hubs_own_errors_are_mapped(monkeypatch, tmp_path):
    huggingface_hub = pytest.importorskip("huggingface_hub")
    constants = importlib.import_module("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(find, "require", lambda module, extra: huggingface_hub)
    with pytest.raises(ModelNotFoundError, match="'org/name'"):
        find_model("org/name")


def test_bundled_models_of_a_zipped_package_are_found(tmp_path):
    package = Path(find.__file__).parents[1]
    with zipfile.ZipFile(tmp_path / "package.zip", "w") as archive:
        for path in [*package.rglob("*.py"), package / "bundled" / "tiny.onnx"]:
            archive.write(path, path.relative_to(package.parent))
    command = "from embedkit import Encoder, __file__; print(__file__, len(Encoder.load('tiny').encode('a text')))"

    found = subprocess.run(
        [sys.executable, "-P", "-c", command],
        env={**os.environ, "PYTHONPATH": str(tmp_path / "package.zip"), "XDG_CACHE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )

    assert "package.zip" in found.stdout
    assert found.stdout.split()[-1] == "384"
    assert [path.name for path in (tmp_path / "embedkit").rglob("*.onnx")] == ["tiny.onnx"]


@pytest.fixture
def torch_hub(monkeypatch, tmp_path):
    """A hub that records requests and answers with a folder without weights."""
    asked = []

    def answer(hub_id, *, allow_patterns, **options):
        asked.append((hub_id, allow_patterns))
        return str(tmp_path)

    monkeypatch.setattr(find, "require", lambda *_, **__: SimpleNamespace(snapshot_download=answer))
    return asked


@pytest.mark.parametrize(
    "path", ["/no/such/folder", "./model", "../model", "~/no-such-model", "runs/tiny/model", "model/", "tiny.onnx"]
)
def test_a_folder_like_a_path_never_uses_the_network(path, torch_hub, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    with pytest.raises(ModelNotFoundError):
        find_folder(path)
    assert torch_hub == []


def test_a_missing_folder_inside_one_that_stands_here_is_a_path(torch_hub, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("runs").mkdir()

    with pytest.raises(ModelNotFoundError, match="no model folder runs/tiny"):
        find_folder("runs/tiny")
    assert torch_hub == []


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "model").write_text("")

    with pytest.raises(ModelError, match="is a file"):
        find_folder(tmp_path / "model")


@pytest.mark.parametrize("hub_id", ["org/model", "bert-base-uncased", "google/bert_uncased_L-2_H-128_A-2"])
def test_a_hub_id_is_downloaded_with_old_weights_where_there_are_no_others(hub_id, torch_hub, tmp_path):
    assert find_folder(hub_id) == tmp_path
    assert [asked for asked, _ in torch_hub] == [hub_id, hub_id]
    assert "*.safetensors" in torch_hub[0][1]
    assert torch_hub[1][1] == ["pytorch_model*.bin"]


def test_old_weights_are_left_where_there_are_newer_ones(torch_hub, tmp_path):
    (tmp_path / "model.safetensors").write_text("")

    find_folder("org/model")

    assert len(torch_hub) == 1


@pytest.mark.parametrize(
    "refusal", [OSError("down\nand much more"), ValueError("bad id"), RuntimeError("no home")]
)
def test_a_failing_hub_is_reported_in_one_sentence(monkeypatch, refusal):
    def refuse(*arguments, **options):
        raise refusal

    monkeypatch.setattr(find, "require", lambda *_, **__: SimpleNamespace(snapshot_download=refuse))
    with pytest.raises(ModelNotFoundError, match="no folder 'org/model' on this machine") as caught:
        find_folder("org/model")
    assert "\n" not in str(caught.value)


def test_the_model_of_a_run_is_in_its_folder(tmp_path):
    (tmp_path / "config.toml").touch()
    with pytest.raises(ModelError, match="has not finished"):
        find_folder(tmp_path)
    (tmp_path / "model").mkdir()
    assert find_folder(tmp_path) == tmp_path / "model"
    (tmp_path / "config.json").touch()
    assert find_folder(tmp_path) == tmp_path


def test_a_source_is_recorded_so_that_it_is_found_from_anywhere(tmp_path):
    Path("mine.onnx").touch()
    assert absolute_source("mine.onnx") == str(tmp_path / "here" / "mine.onnx")
    assert absolute_source("tiny") == "tiny"
