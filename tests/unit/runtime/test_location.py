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

from embedkit.errors import ModelNotFoundError
from embedkit.runtime import location
from embedkit.runtime.location import find_bundle, find_model


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
    monkeypatch.setattr(location, "BUNDLED", bundled)
    monkeypatch.setattr(location, "published_models", dict)

    def unwanted(*arguments, **options):
        pytest.fail("this must not go to the network")

    monkeypatch.setattr(location, "require", unwanted)


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
        location, "require", lambda module, extra: SimpleNamespace(snapshot_download=snapshot_download)
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


def test_without_bundles_the_message_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(location, "BUNDLED", tmp_path / "none")
    with pytest.raises(ModelNotFoundError, match="no bundles come with this embedkit"):
        find_model("small-sct")


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
        location, "require", lambda module, extra: SimpleNamespace(snapshot_download=snapshot_download)
    )
    with pytest.raises(ModelNotFoundError, match=r"'org/name'.*the bundled models are") as caught:
        find_model("org/name")
    assert "\n" not in str(caught.value)


def test_the_hubs_own_errors_are_mapped(monkeypatch, tmp_path):
    huggingface_hub = pytest.importorskip("huggingface_hub")
    constants = importlib.import_module("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(location, "require", lambda module, extra: huggingface_hub)
    with pytest.raises(ModelNotFoundError, match="'org/name'"):
        find_model("org/name")


def test_bundled_models_of_a_zipped_package_are_found(tmp_path):
    package = Path(location.__file__).parents[1]
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
