"""embedkit's own models: listed as they are, found in a folder or fetched from the hub, and always checked."""

from __future__ import annotations

import errno
import hashlib
import http.server
import json
import os
import subprocess
import sys
import threading
import types
from pathlib import Path

import pytest

from embedkit import Encoder
from embedkit.errors import ModelNotFoundError, StorageError
from embedkit.runtime import find
from embedkit.runtime.find import MODELS_FOLDER, PublishedModel, published_models

ROOT = Path(__file__).parents[3]
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def model(toy_bundle, tmp_path, monkeypatch):
    """A published model that is nowhere on this machine but in the folder of ``toy_bundle``."""
    content = toy_bundle.read_bytes()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(MODELS_FOLDER, raising=False)
    found = PublishedModel(
        name="toy", kind="encoder", about="", languages="English", licence="MIT", dimension=16, max_length=64,
        size_bytes=len(content), sha256=hashlib.sha256(content).hexdigest(), figures={},
    )  # fmt: skip
    monkeypatch.setattr("embedkit.runtime.find.published_models", lambda: {"toy": found})
    return found


class Handler(http.server.BaseHTTPRequestHandler):
    """Speaks the hub's protocol, and serves plain files too."""

    folder: Path
    asked: list[str]
    faults: list[str]  # of the next requests: "busy", "dropped" or ""

    def do_HEAD(self):
        self._answer(body=False)

    def do_GET(self):
        self._answer(body=True)

    def log_message(self, *_):
        pass

    def _answer(self, *, body):
        part = self.headers.get("Range", "")
        self.asked.append(f"{self.command} {self.path} {part}".rstrip())
        fault = self.faults.pop(0) if self.faults else ""
        if fault == "busy":
            return self.send_error(503)
        name = self.path.rpartition("/")[2]
        if "/api/models/" in self.path:
            return self._send(json.dumps(self._listing()).encode(), body=body)
        file = self.folder / ("toy.onnx" if name == "model.onnx" else name)
        if not file.is_file():
            self.send_error(404)
            return None
        return self._send(file.read_bytes(), body=body, part=part, dropped=fault == "dropped")

    def _listing(self):
        names = ["config.json", "tokenizer.json", "onnx/model.onnx", "onnx/model_fp16.onnx"]
        if "/tree/" in self.path:
            return [{"type": "file", "path": name, "size": 2, "oid": "0"} for name in names]
        return {"id": "org/toy", "sha": COMMIT, "siblings": [{"rfilename": name} for name in names]}

    def _send(self, content, *, body, part="", dropped=False):
        first = int(part.removeprefix("bytes=").removesuffix("-") or 0)
        self.send_response(206 if first else 200)
        if first:
            self.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - first))
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if body:
            self.wfile.write(content[first : len(content) // 2 if dropped else None])
            self.close_connection = True


@pytest.fixture
def served(toy_bundle, tmp_path):
    """Address of a server that speaks the hub's protocol and serves plain files too; its requests; its folder."""
    folder, asked = tmp_path / "served", []
    Handler.faults = []
    folder.mkdir()
    (folder / "toy.onnx").write_bytes(toy_bundle.read_bytes())

    handler = type("Here", (Handler,), {"folder": folder, "asked": asked})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", asked, folder
    server.shutdown()
    server.server_close()


def test_a_model_in_a_folder_needs_no_cache(model, toy_bundle, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "~no-such-user/cache")
    assert model.find() is None
    monkeypatch.setenv(MODELS_FOLDER, str(toy_bundle.parent))
    assert model.find() == toy_bundle


def test_a_cache_that_cannot_be_read_is_named_with_what_to_do(model, served, tmp_path, monkeypatch):
    (served[2] / "onnx").mkdir()
    (served[2] / "toy.onnx").rename(served[2] / "onnx" / "model.onnx")
    hub = types.SimpleNamespace(snapshot_download=lambda *_, **__: str(served[2]))
    monkeypatch.setattr(find, "require", lambda *_, **__: hub)
    stat = os.stat

    def refuse(path, **options):
        if str(path).startswith(str(tmp_path / "cache")):
            raise PermissionError(errno.EACCES, "Permission denied")
        return stat(path, **options)

    monkeypatch.setattr(os, "stat", refuse)
    with pytest.raises(StorageError, match=r"cache/embedkit.*: Permission denied; set XDG_CACHE_HOME to a folder"):
        model.fetch()


@pytest.mark.parametrize("name", ["toy", "all-MiniLM-L6-v2", "org/toy"])
def test_the_hubs_client_may_find_no_home_folder(model, monkeypatch, name):
    hub = types.SimpleNamespace(snapshot_download=homeless, hf_hub_download=homeless)
    monkeypatch.setattr(find, "require", lambda *_, **__: hub)
    with pytest.raises(ModelNotFoundError, match="Could not determine home directory"):
        Encoder.load(name)


def homeless(*_, **__):
    raise RuntimeError("Could not determine home directory.")


def test_the_list_describes_the_files_of_the_checkout():
    listed = published_models()
    files = [*(ROOT / "embedkit" / "bundled").glob("*.onnx"), *(ROOT / "models").glob("*.onnx")]
    assert {path.stem for path in files} == set(listed)
    for path in files:
        content = path.read_bytes()
        assert (len(content), hashlib.sha256(content).hexdigest()) == (
            listed[path.stem].size_bytes, listed[path.stem].sha256
        )  # fmt: skip


def test_a_folder_of_the_environment_is_used_in_place(model, toy_bundle, tmp_path, monkeypatch):
    folder = tmp_path / "mirror"
    folder.mkdir()
    monkeypatch.setenv(MODELS_FOLDER, str(folder))
    with pytest.raises(ModelNotFoundError, match=r"EMBEDKIT_MODELS is .*mirror, where there is no toy\.onnx"):
        model.fetch()
    (folder / "toy.onnx").write_bytes(toy_bundle.read_bytes())
    assert model.find() == folder / "toy.onnx"
    assert Encoder.load("toy").dimension == Encoder.load(toy_bundle).dimension
    (folder / "toy.onnx").write_bytes(b"another file")
    with pytest.raises(ModelNotFoundError, match=r"not the toy of this version of embedkit: its SHA-256 differs"):
        model.find()


def test_a_file_beside_the_package_is_used_only_if_it_is_the_listed_one(model, toy_bundle, tmp_path, monkeypatch):
    monkeypatch.setattr(find, "_CHECKOUT", tmp_path / "models")
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "toy.onnx").write_bytes(b"a stranger's file")
    assert model.find() is None
    (tmp_path / "models" / "toy.onnx").write_bytes(toy_bundle.read_bytes())
    assert model.find() == tmp_path / "models" / "toy.onnx"


def test_a_file_of_the_cache_is_checked_every_time(model, toy_bundle, tmp_path):
    cached = tmp_path / "cache" / "embedkit" / "models" / f"toy-{model.sha256[:16]}.onnx"
    cached.parent.mkdir(parents=True)
    cached.write_bytes(toy_bundle.read_bytes())
    assert model.find() == cached
    cached.write_bytes(toy_bundle.read_bytes()[:-1] + b"x")
    assert model.find() is None


def test_the_models_of_a_checkout_are_found_in_it(model, toy_bundle, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "toy.onnx").write_bytes(toy_bundle.read_bytes())
    assert model.find() == Path("models/toy.onnx")
    assert Encoder.load("toy").source == str(tmp_path / "models" / "toy.onnx")


def test_what_the_hub_gives_is_used_only_if_it_is_the_listed_file(model, served, monkeypatch):
    (served[2] / "onnx").mkdir()
    (served[2] / "onnx" / "model.onnx").write_bytes(b"another file")
    hub = types.SimpleNamespace(snapshot_download=lambda *_, **__: str(served[2]))
    monkeypatch.setattr(find, "require", lambda *_, **__: hub)
    with pytest.raises(ModelNotFoundError, match="its SHA-256 differs"):
        model.fetch()
    assert model.find() is None


@pytest.mark.usefixtures("model")
def test_a_name_like_a_file_is_never_fetched(monkeypatch):
    monkeypatch.setattr(find, "require", lambda *_, **__: pytest.fail("this must not go to the network"))
    for source in ("toy.onnx", Path("toy")):
        with pytest.raises(ModelNotFoundError, match="there is no file or folder toy"):
            Encoder.load(source)


SCRIPT = """
import sys
from embedkit.runtime import find
find._CHECKOUT = find._CHECKOUT / "none"
find._PAUSES_S = (0, 0, 0)
model = find.PublishedModel(
    name="toy", kind="encoder", about="", languages="", licence="", dimension=16, max_length=64,
    size_bytes=int(sys.argv[1]), sha256=sys.argv[2], figures={},
)
find.published_models = lambda: {"toy": model}
print(find.find_model("toy"))
find._KNOWN = {"known": "org/toy"}
print(find.find_model("known"))
"""


def test_the_hub_is_asked_once_for_own_and_known_models(model, served, tmp_path):
    address, asked, folder = served
    for name in ("config.json", "tokenizer.json", "model_fp16.onnx"):
        (folder / name).write_text("{}")
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("HF_")},
        "HF_ENDPOINT": address, "HF_HOME": str(tmp_path / "hub"), "HF_HUB_DISABLE_XET": "1",
    }  # fmt: skip
    command = [sys.executable, "-c", SCRIPT, str(model.size_bytes), model.sha256]
    Handler.faults[:] = ["", "busy"]  # for the file, after its description
    first = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250, check=False)
    assert first.returncode == 0, first.stderr
    own, known = map(Path, first.stdout.split())
    assert own == model.find()
    assert {path.relative_to(known).as_posix() for path in known.rglob("*") if path.is_file()} == {
        "config.json", "tokenizer.json", "onnx/model.onnx"
    }  # fmt: skip
    asked.clear()
    again = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250, check=False)
    assert again.stdout == first.stdout, again.stderr
    assert asked == []


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:9", "http://no-such-host.invalid"])
def test_offline_a_name_is_answered_at_once_with_what_to_do(model, endpoint, tmp_path):
    environment = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path / "hub")}
    script = "import time; time.sleep = None\n" + SCRIPT  # the client of the hub waits 23 s between its attempts
    command = [sys.executable, "-c", script, str(model.size_bytes), model.sha256]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250, check=False)
    assert "set EMBEDKIT_MODELS to a folder that has toy.onnx" in done.stderr
    assert "trying again" not in done.stderr
