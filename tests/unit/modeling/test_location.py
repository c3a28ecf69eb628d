from pathlib import Path

import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from embedkit.errors import ModelError, ModelNotFoundError
from embedkit.modeling import location
from embedkit.modeling.location import find_folder


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A hub that records requests and answers with an empty folder."""
    asked = []

    def answer(hub_id, **options):
        asked.append((hub_id, options["allow_patterns"]))
        return str(tmp_path)

    monkeypatch.setattr(location, "snapshot_download", answer)
    return asked


def test_a_folder_is_itself(tmp_path, hub):
    assert find_folder(tmp_path) == tmp_path
    assert find_folder(str(tmp_path)) == tmp_path
    assert hub == []


@pytest.mark.parametrize(
    "path", ["/no/such/folder", "./model", "../model", "~/no-such-model", "runs/tiny/model", "model/", "tiny.onnx"]
)
def test_a_name_like_a_path_never_uses_the_network(path, hub, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    with pytest.raises(ModelNotFoundError):
        find_folder(path)
    assert hub == []


def test_a_missing_folder_inside_one_that_stands_here_is_a_path(hub, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("runs").mkdir()

    with pytest.raises(ModelNotFoundError, match="no model folder runs/tiny"):
        find_folder("runs/tiny")
    assert hub == []


def test_a_path_object_never_uses_the_network(hub):
    with pytest.raises(ModelNotFoundError):
        find_folder(Path("org/model"))
    assert hub == []


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "model").write_text("")

    with pytest.raises(ModelError, match="is a file"):
        find_folder(tmp_path / "model")


@pytest.mark.parametrize("hub_id", ["org/model", "bert-base-uncased", "google/bert_uncased_L-2_H-128_A-2"])
def test_a_hub_id_is_downloaded_with_old_weights_where_there_are_no_others(hub_id, hub, tmp_path):
    assert find_folder(hub_id) == tmp_path
    assert [asked for asked, _ in hub] == [hub_id, hub_id]
    assert "*.safetensors" in hub[0][1]
    assert hub[1][1] == ["pytorch_model*.bin"]


def test_old_weights_are_left_where_there_are_newer_ones(hub, tmp_path):
    (tmp_path / "model.safetensors").write_text("")

    find_folder("org/model")

    assert len(hub) == 1


@pytest.mark.parametrize(
    "refusal", [LocalEntryNotFoundError("no connection\nand much more"), OSError("down"), ValueError("bad id")]
)
def test_a_failing_hub_is_reported_in_one_sentence(monkeypatch, refusal):
    def refuse(*arguments, **options):
        raise refusal

    monkeypatch.setattr(location, "snapshot_download", refuse)

    with pytest.raises(ModelNotFoundError, match="no such model could be loaded from the hub") as caught:
        find_folder("org/model")
    assert "\n" not in str(caught.value)
