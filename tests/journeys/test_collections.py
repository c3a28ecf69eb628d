"""Build, search, add, sync, delete, compact, copy and verify through the command line, on every store at hand."""

from __future__ import annotations

import json

import pytest

from embedkit.cli.main import main

DOCUMENTS = {"a": "the old cat sleeps in the garden", "b": "a good dog", "c": "my sister swims in the sea"}


@pytest.fixture(params=["folder", "milvus", "qdrant"])
def address(request, tmp_path):
    if request.param == "folder":
        return str(tmp_path / "idx")
    pytest.importorskip({"milvus": "milvus_lite", "qdrant": "qdrant_client"}[request.param])
    return f"{request.param}:{tmp_path}/{request.param}.db#journey"


@pytest.fixture
def search(address, toy_bundle, capsys):
    def search(query, *more):
        capsys.readouterr()
        assert main(["search", address, query, "-m", str(toy_bundle), "-k", "3", "--json", *more]) == 0
        found = json.loads(capsys.readouterr().out)
        hits = found if isinstance(found, list) else found["hits"]
        return [hit["id"] for hit in hits]

    return search


def write(path, documents):
    path.write_text("\n".join(json.dumps({"id": name, "text": text}) for name, text in documents.items()))
    return str(path)


def test_a_collection_is_built_changed_and_read_again(address, search, toy_bundle, tmp_path, capsys):
    model = ["-m", str(toy_bundle)]
    assert main(["index", "build", write(tmp_path / "docs.jsonl", DOCUMENTS), *model, "-o", address, "-q"]) == 0
    assert search("a good dog")[0] == "b"

    more = write(tmp_path / "more.jsonl", {"b": "the queen of the moon", "d": "a good dog"})
    assert main(["index", "add", more, address, *model, "-q"]) == 0
    assert search("a good dog")[0] == "d"
    assert search("the queen of the moon")[0] == "b"

    assert main(["index", "delete", address, "d", "-q"]) == 0
    assert "d" not in search("a good dog")
    assert main(["index", "compact", address, "-q"]) == 0
    assert main(["index", "verify", address, "-q"]) == 0
    assert sorted(search("a good dog")) == ["a", "b", "c"]


@pytest.mark.parametrize("mode", ["dense", "lexical", "hybrid"])
def test_documents_are_found_by_every_mode_and_a_filter(address, search, toy_bundle, tmp_path, mode):
    rows = [{"id": name, "text": text, "place": text.split()[-1]} for name, text in DOCUMENTS.items()]
    (tmp_path / "docs.jsonl").write_text("\n".join(map(json.dumps, rows)))
    build = ["index", "build", str(tmp_path / "docs.jsonl"), "-m", str(toy_bundle), "-o", address, "-q"]
    assert main([*build, "--lexical"]) == 0
    assert search("my sister swims", "--mode", mode)[0] == "c"
    assert search("my sister swims in the garden", "--mode", mode, "--filter", "place = garden") == ["a"]
    assert main(["index", "delete", address, "--filter", "place = sea", "-q"]) == 0
    assert "c" not in search("my sister swims", "--mode", mode)


def test_a_collection_follows_a_folder(address, search, toy_bundle, tmp_path, capsys):
    folder = tmp_path / "handbook"
    folder.mkdir()
    for name, text in DOCUMENTS.items():
        (folder / f"{name}.md").write_text(text)
    sync = ["index", "sync", str(folder), address, "-m", str(toy_bundle), "--json"]
    assert main(sync) == 0
    assert search("a good dog")[0] == "b.md#0"
    (folder / "a.md").write_text("bread and milk")
    (folder / "b.md").unlink()
    (folder / "d.md").write_text("the queen of the moon")
    assert main(sync) == 0
    done = json.loads(capsys.readouterr().out)
    assert [done[name] for name in ("added", "updated", "removed", "unchanged")] == [1, 1, 1, 1]
    assert search("bread and milk")[0] == "a.md#0"
    assert "b.md#0" not in search("a good dog")

    assert main(["index", "build", address, "-m", str(toy_bundle), "-o", str(tmp_path / "other"), "-q"]) == 0
    capsys.readouterr()
    assert main(["search", str(tmp_path / "other"), "the queen of the moon", "-m", str(toy_bundle)]) == 0
    assert capsys.readouterr().out.split()[2] == "d.md#0"
