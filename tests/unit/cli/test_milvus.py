"""`embedkit index` and `embedkit search` on Milvus, with a file of Milvus Lite."""

from __future__ import annotations

import json

import pytest

from embedkit.cli.main import main
from embedkit.runtime.encoder import Encoder
from embedkit.serving.retrieval import Collection

pytest.importorskip("pymilvus")
pytest.importorskip("milvus_lite")


@pytest.fixture
def documents(tmp_path):
    lines = [{"id": "a", "text": "a dog", "lang": "en"}, {"id": "b", "text": "the sea", "lang": "de"}]
    (tmp_path / "docs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return tmp_path / "docs.jsonl"


def test_words_and_two_models(toy_bundle, write_toy_bundle, documents, tmp_path, capsys):
    address = f"milvus:{tmp_path}/m.db#docs"
    teacher = {"name": "toy", "fingerprint": Encoder.load(toy_bundle).fingerprint}
    student = write_toy_bundle(tmp_path / "student.onnx", name="student", teacher=teacher)
    build = ["index", "build", str(documents), "-m", str(toy_bundle), "-o", address, "--lexical"]
    assert main([*build, "--queries", str(student)]) == 0
    assert "model toy, queries by student" in capsys.readouterr().out
    assert main(["search", address, "the sea", "--rerank", str(toy_bundle), "--json"]) == 0
    hits = json.loads(capsys.readouterr().out)["hits"]
    assert hits[0]["id"] == "b"
    assert set(hits[0]["scores"]) == {"dense", "lexical", "fused", "rerank", "blended"}
    assert main(["search", address, "the sea", "--filter", '{"lnag": "de"}', "--json"]) == 0
    assert "did you mean 'lang'?" in json.loads(capsys.readouterr().out)["warnings"][0]
    assert main(["index", "verify", address]) == 0
    assert main(["index", "compact", address]) == 0
    assert main(["index", "build", address, "-m", str(toy_bundle), "-o", str(tmp_path / "idx")]) == 0
    assert len(Collection.open(tmp_path / "idx")) == 2


def test_the_token_comes_from_the_environment(monkeypatch):
    from embedkit.serving import milvus

    seen = []

    def refuses(uri, token):
        seen.append((uri, token))
        raise milvus.MilvusException(message="no")

    monkeypatch.setenv("EMBEDKIT_MILVUS_TOKEN", "root:secret")
    monkeypatch.setattr(milvus, "MilvusClient", refuses)
    assert main(["search", "milvus:http://host:19530", "a dog"]) == 1
    assert seen == [("http://host:19530", "root:secret")]
