"""`embedkit index` and `embedkit search` on Milvus, by a file of Milvus Lite."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from embedkit.cli.main import main
from embedkit.cli.milvus import MilvusAddress, place

pytest.importorskip("pymilvus")
pytest.importorskip("milvus_lite")


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    lines = [{"id": "a", "text": "a dog", "lang": "en"}, {"id": "b", "text": "the sea", "lang": "de"}]
    (tmp_path / "docs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return tmp_path / "docs.jsonl"


def test_from_documents_to_hits(
    toy_bundle: Path, documents: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    address = f"milvus:{tmp_path}/m.db#docs"
    assert main(["index", "build", str(documents), "-m", str(toy_bundle), "-o", address, "--kind", "FLAT"]) == 0
    assert f"built {address}: 2 documents, 16 dimensions, index FLAT, model toy\n" == capsys.readouterr().out
    (tmp_path / "new.jsonl").write_text('{"id": "a", "text": "a cat"}\n{"id": "c", "text": "red apple"}\n')
    assert main(["index", "add", str(tmp_path / "new.jsonl"), address, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["documents"], report["added"], report["replaced"], report["path"]) == (3, 1, 1, address)
    assert main(["search", address, "red apple", "-k", "1", "--json"]) == 0
    (hit,) = json.loads(capsys.readouterr().out)["hits"]
    assert (hit["id"], hit["text"], round(hit["score"], 5)) == ("c", "red apple", 1)
    assert main(["search", address, "red apple", "--filter", '{"lang": "de"}', "-q"]) == 0
    assert capsys.readouterr().out.split()[2:] == ["b", "the", "sea"]
    assert main(["index", "delete", address, "a", "nobody"]) == 0
    assert "1 deleted: 2 documents" in capsys.readouterr().out


def test_what_a_folder_alone_can_do_is_one_line(
    toy_bundle: Path, documents: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    address = "milvus:http://nobody:19530#docs"
    for command, words in [
        (
            ["index", "build", str(documents), "-m", str(toy_bundle), "-o", address, "--lexical"],
            "--lexical is available for",
        ),
        (["index", "compact", address], "index compact is available for folder collections"),
        (["index", "verify", address], "index verify is available for folder collections"),
        (["search", address, "a dog", "--hybrid"], "--hybrid is available for folder collections"),
        (["search", address, "a dog", "--rerank", "x"], "--rerank is available for"),
        (["search", address, "a dog", "--candidates", "9"], "--candidates is available for"),
        (["search", address, "a dog", "--effort", "2"], "--effort is available for"),
    ]:
        assert main(command) == 1
        assert words in capsys.readouterr().err


def test_addresses_are_told_from_folders() -> None:
    assert place("idx/") == Path("idx")
    assert place("milvus:http://host:19530#docs") == MilvusAddress("http://host:19530", "docs")
    assert place("milvus:some/where.db") == MilvusAddress("some/where.db", "embedkit")
    with pytest.raises(Exception, match=r"expected milvus:http://HOST:PORT#NAME.*got milvus:host"):
        place("milvus:host")


def test_the_token_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    from embedkit.serving.milvus import store

    seen = []

    def refuses(uri: str, token: str) -> None:
        seen.append((uri, token))
        raise store.MilvusException(message="no")

    monkeypatch.setenv("EMBEDKIT_MILVUS_TOKEN", "root:secret")
    monkeypatch.setattr(store, "MilvusClient", refuses)
    assert main(["search", "milvus:http://host:19530", "a dog"]) == 1
    assert seen == [("http://host:19530", "root:secret")]
