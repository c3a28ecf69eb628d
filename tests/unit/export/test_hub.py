"""Uploads by the real client of the hub, to a server that keeps what it receives."""

import base64
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
import yaml
from huggingface_hub import HfApi

from embedkit import CrossEncoder, Encoder
from embedkit.cli.main import main
from embedkit.errors import ExportError
from embedkit.export.folder import push, save_repository
from embedkit.runtime.bundle import read_bundle

TEXTS = ["a good dog", "the cat is asleep", ""]


class Hub(BaseHTTPRequestHandler):
    """The part of the hub's interface that an upload needs."""

    def do_POST(self):
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        self.server.paths.append(self.path)
        if self.path == "/api/repos/create":
            asked = json.loads(body)
            self.server.created.append(asked)
            self.answer({"url": f"{self.server.address}/{asked.get('organization')}/{asked['name']}"})
        elif self.path == "/api/validate-yaml" or "/branch/" in self.path:
            self.answer({"errors": [], "warnings": []})
        elif "/preupload/" in self.path:
            regular = {"uploadMode": "regular", "shouldIgnore": False}
            self.answer({"files": [{"path": file["path"], **regular} for file in json.loads(body)["files"]]})
        elif "/commit/" in self.path:
            self.keep([json.loads(line) for line in body.splitlines()])
            self.answer({"commitUrl": f"{self.server.address}/me/toy/commit/abc", "commitOid": "abc"})
        else:
            self.answer({"error": "no such place"}, status=404)

    def keep(self, lines):
        for line in lines:
            if line["key"] == "header":
                self.server.messages.append(line["value"]["summary"])
            else:
                path = self.server.folder / line["value"]["path"]
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(base64.b64decode(line["value"]["content"]))

    def answer(self, content, *, status=200):
        content = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass


@pytest.fixture
def hub(tmp_path):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.address = f"http://127.0.0.1:{server.server_address[1]}"
    server.folder = tmp_path / "received"
    server.created, server.messages, server.paths = [], [], []
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def api(hub, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.address)  # for versions before 1
    return HfApi(endpoint=hub.address, token="hf_a_token")


def front_matter(folder):
    return yaml.safe_load((folder / "README.md").read_text(encoding="utf-8").split("---\n")[1])


def test_a_pushed_bundle_is_loaded_back(toy_bundle, hub, api):
    address = push(str(toy_bundle), "me/toy", private=True, api=api)

    assert address == f"{hub.address}/me/toy"
    assert hub.created[0]["name"] == "toy"
    assert hub.created[0].get("visibility") == "private" or hub.created[0].get("private") is True
    assert hub.messages == ["Upload toy.onnx with embedkit"]
    encoder, sent = Encoder.load(toy_bundle), Encoder.load(hub.folder)
    assert (sent.name, sent.fingerprint) == ("toy", encoder.fingerprint)
    np.testing.assert_array_equal(sent.encode(TEXTS), encoder.encode(TEXTS))


def test_a_cross_encoder_is_pushed_too(toy_cross_bundle, hub, api):
    push(str(toy_cross_bundle), "me/toy", api=api)

    assert CrossEncoder.load(hub.folder).fingerprint == CrossEncoder.load(toy_cross_bundle).fingerprint
    assert front_matter(hub.folder)["pipeline_tag"] == "text-ranking"


def test_a_branch_is_made_for_a_revision(toy_bundle, hub, api):
    push(str(toy_bundle), "me/toy", revision="next", message="Try it", api=api)

    assert "/api/models/me/toy/branch/next" in hub.paths
    assert "/api/models/me/toy/commit/next" in hub.paths
    assert hub.messages == ["Try it"]


def test_an_exported_folder_is_pushed_unchanged(tmp_path, hub, api):
    folder = tmp_path / "exported"
    (folder / "onnx").mkdir(parents=True)
    for name in ("README.md", "modules.json", "onnx/model.onnx"):
        (folder / name).write_text(name)

    push(str(folder), "me/toy", api=api)

    sent = {path.relative_to(hub.folder).as_posix() for path in hub.folder.rglob("*") if path.is_file()}
    assert sent == {"README.md", "modules.json", "onnx/model.onnx"}


@pytest.mark.parametrize("repository", ["toy", "me/toy/1", "", "https://huggingface.co/me/toy"])
def test_a_repository_has_an_owner_and_a_name(toy_bundle, repository):
    with pytest.raises(ExportError, match="expected a repository org/name"):
        push(str(toy_bundle), repository)


def test_an_exported_folder_has_its_own_card(tmp_path, api):
    with pytest.raises(ExportError, match=r"is uploaded as it is, with its own README\.md"):
        push(str(tmp_path), "me/toy", card="# Mine", api=api)


def test_a_link_out_of_the_folder_is_not_uploaded(tmp_path, api):
    folder = tmp_path / "model"
    (folder / "onnx").mkdir(parents=True)
    (tmp_path / "secret").write_text("secret", encoding="utf-8")
    for name in ("README.md", "onnx/model.onnx"):
        (folder / name).touch()
    (folder / "notes.txt").symlink_to(tmp_path / "secret")
    with pytest.raises(ExportError, match=r"notes\.txt is a link to .*secret, outside of the folder"):
        push(str(folder), "me/toy", api=api)


def test_another_folder_is_refused(tmp_path, api):
    (tmp_path / "README.md").touch()
    with pytest.raises(ExportError, match=r"lacks onnx/model\.onnx"):
        push(str(tmp_path), "me/toy", api=api)


@pytest.mark.usefixtures("hub")
def test_refusals_of_the_hub_are_embedkit_errors(toy_bundle, api, monkeypatch):
    monkeypatch.setattr(Hub, "do_POST", lambda self: self.answer({"error": "no"}, status=403))
    with pytest.raises(ExportError, match=r"the hub rejected .*toy\.onnx as me/toy: .*403"):
        push(str(toy_bundle), "me/toy", api=api)


def test_the_card_has_the_hub_s_metadata_and_code_that_names_the_repository(write_toy_bundle, tmp_path):
    gates = {"parity": {"largest_difference": 1e-6, "largest_difference_allowed": 1e-5}}
    path = write_toy_bundle(tmp_path / "toy.onnx", licence="Apache-2.0", base="org/teacher", gates=gates)

    save_repository(read_bundle(path), tmp_path / "repository", repository="me/toy")

    about = front_matter(tmp_path / "repository")
    assert about["library_name"] == "embedkit"
    assert about["license"] == "apache-2.0"
    assert about["base_model"] == "org/teacher"
    assert about["pipeline_tag"] == "sentence-similarity"
    assert {"onnx", "transformers.js"} <= set(about["tags"])
    card = (tmp_path / "repository" / "README.md").read_text(encoding="utf-8")
    assert 'Encoder.load("me/toy")' in card
    assert "- parity: largest difference" in card
    config = json.loads((tmp_path / "repository" / "config.json").read_text())
    assert config["transformers.js_config"] == {"dtype": "fp32"}


def test_a_custom_card_replaces_the_generated_one(toy_bundle, tmp_path, capsys):
    (tmp_path / "card.md").write_text("# A toy\n\nMade of words.\n")

    arguments = ["push", str(toy_bundle), "me/toy", "--card", str(tmp_path / "card.md")]
    assert main([*arguments, "--save", str(tmp_path / "repository")]) == 0

    assert capsys.readouterr().out.strip() == str(tmp_path / "repository")
    card = (tmp_path / "repository" / "README.md").read_text()
    assert re.search(r"---\n\n# A toy\n\nMade of words\.\n\n## Use\n", card)
    assert "maximum length" not in card
