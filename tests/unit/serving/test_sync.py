"""A collection kept in step with folders: what is written, embedded, named and left alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from embedkit import Collection, Encoder
from embedkit.cli.main import main
from embedkit.errors import DataError, InputError
from embedkit.serving.retrieval.splitting import split_documents
from embedkit.serving.retrieval.sync import Synced


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / f"{name.replace('__', '/')}.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


@pytest.fixture
def encoder(write_toy_bundle, tmp_path_factory) -> Encoder:
    return Encoder.load(write_toy_bundle(tmp_path_factory.mktemp("wide") / "toy.onnx", max_length=32))


@pytest.fixture
def handbook(tmp_path: Path) -> Path:
    return write(tmp_path / "handbook", guide="# Dog\n\nA dog.\n\n# Sea\n\nThe sea.", sub__returns="A bird.")


@pytest.fixture
def collection(handbook, encoder, tmp_path, monkeypatch) -> Collection:
    index = str(tmp_path / "idx")
    monkeypatch.chdir(tmp_path)
    assert main(["index", "build", "handbook", "--split", "-m", str(encoder.source), "-o", index, "-q"]) == 0
    return Collection.open(index, encoder=encoder)


def texts(collection: Collection) -> dict[str, str]:
    return {document.id: document.text for document in collection.store.find([])}


def embedded_texts(encoder: Encoder, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collect the texts that are embedded from now on."""
    seen: list[str] = []
    encode = Encoder.encode_document

    def counted(self: Encoder, texts, **options):
        seen.extend(texts)
        return encode(self, texts, **options)

    monkeypatch.setattr(Encoder, "encode_document", counted)
    return seen


def test_only_what_changed_is_written_and_embedded(collection, handbook, encoder, monkeypatch):
    before = collection.manifest
    assert collection.sync(handbook) == Synced(unchanged=2)
    assert collection.manifest == before
    write(handbook, guide="# Dog\n\nA dog.\n\n# Moon\n\nThe moon.\n\n# Sea\n\nThe sea.", new="Bread.")
    (handbook / "sub" / "returns.md").unlink()
    seen = embedded_texts(encoder, monkeypatch)
    assert collection.sync(handbook) == Synced(added=1, updated=1, removed=1)
    assert sorted(seen) == ["Bread.", "Moon\nThe moon."]
    assert texts(collection) == {
        "guide.md#0": "A dog.",
        "guide.md#1": "The moon.",
        "guide.md#2": "The sea.",
        "new.md#0": "Bread.",
    }
    fresh = Collection.build(split_documents(handbook, encoder), encoder=encoder, path=handbook.parent / "fresh")
    queries = ["The moon.", "Sea The sea.", "Bread."]
    for one, other in zip(
        collection.search(queries, mode="dense"), fresh.search(queries, mode="dense"), strict=True
    ):
        assert [(hit.id, hit.metadata) for hit in one] == [(hit.id, hit.metadata) for hit in other]
        assert [hit.score for hit in one] == pytest.approx([hit.score for hit in other], abs=1e-6)


def test_two_folders_have_two_documents_of_one_name(collection, handbook, tmp_path):
    other = write(tmp_path / "other", guide="Milk.")
    assert collection.sync([handbook, other]) == Synced(added=1, unchanged=2)
    assert texts(collection)["other:guide.md#0"] == "Milk."
    assert texts(collection)["guide.md#0"] == "A dog."
    write(other, guide="Music.")
    assert collection.sync(other) == Synced(updated=1)
    again = write(tmp_path / "deep" / "other", guide="The tree.")
    assert collection.sync(again) == Synced(added=1)
    assert texts(collection)["other-2:guide.md#0"] == "The tree."


def test_files_and_folders_keep_their_names_whatever_is_given(collection, handbook, tmp_path):
    write(handbook, sub__returns="A tree.")
    assert collection.sync(handbook / "sub" / "returns.md", remove=False) == Synced(updated=1)
    assert collection.sync(handbook / "sub") == Synced(unchanged=1)
    assert texts(collection)["sub/returns.md#0"] == "A tree."
    write(tmp_path / "handbook" / "..", above="The moon.")
    (tmp_path / "link").symlink_to(handbook)
    assert collection.sync(tmp_path / "link") == Synced(unchanged=2)
    assert len(texts(collection)) == 3


def test_a_folder_that_moved_is_the_same(collection, handbook, tmp_path):
    (tmp_path / "away").mkdir()
    moved = handbook.rename(tmp_path / "away" / "handbook")
    assert collection.sync(moved) == Synced(unchanged=2)
    assert [root.path for root in collection.manifest.roots] == [str(moved)]


def test_windows_of_a_collection_without_folders_are_adopted(handbook, encoder, tmp_path):
    collection = Collection.build(split_documents(handbook, encoder), encoder=encoder, path=tmp_path / "idx")
    assert collection.sync(handbook) == Synced(unchanged=2)
    records = Collection.build([{"id": "guide.md", "text": "music"}], encoder=encoder, path=tmp_path / "records")
    assert records.sync(handbook) == Synced(added=2)
    assert len(records) == 4


def test_limits_of_windows_are_kept(collection, handbook):
    write(handbook, guide="a dog in the garden. " * 20)
    assert collection.sync(handbook, max_tokens=8, overlap=2) == Synced(updated=1, unchanged=1)
    count = len(collection)
    assert collection.sync(handbook) == Synced(unchanged=2)
    assert len(collection) == count > 8


def test_a_document_never_takes_the_id_of_another(collection, handbook, encoder, tmp_path):
    with pytest.raises(DataError, match=r"the id 'guide\.md#0' is that of a window of 'guide\.md'"):
        collection.upsert([("guide.md#0", "music")])
    collection.upsert([("new.md#0", "music")])
    write(handbook, new="A bird.")
    with pytest.raises(DataError, match=r"has a document 'new\.md#0' that is not a window of 'new\.md'"):
        collection.sync(handbook)
    assert texts(collection)["new.md#0"] == "music"


def test_files_that_cannot_be_read_keep_their_windows(collection, handbook):
    (handbook / "guide.md").write_bytes(b"na\xefve")
    assert collection.sync(handbook) == Synced(unchanged=1, unreadable=1)
    assert "guide.md#0" in texts(collection)
    with pytest.raises(DataError, match="is not UTF-8 text"):
        collection.sync(handbook, strict=True)


def test_a_folder_without_documents_removes_nothing(collection, handbook, tmp_path):
    for path in list(handbook.rglob("*.md")):
        path.unlink()
    with pytest.raises(DataError, match="has no text"):
        collection.sync(handbook)
    with pytest.raises(DataError, match="there is no file or folder"):
        collection.sync(tmp_path / "nothing")
    with pytest.raises(InputError, match="folders: expected a path or a list"):
        collection.sync([])
    assert len(collection) == 3


def test_a_failed_sync_loses_nothing(collection, handbook, encoder, monkeypatch):
    before = texts(collection)
    write(handbook, guide="Milk.", new="Bread.")
    (handbook / "sub" / "returns.md").unlink()

    def fails(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Encoder, "encode_document", fails)
        with pytest.raises(KeyboardInterrupt):
            collection.sync(handbook)
    assert texts(Collection.open(collection.path, encoder=encoder)) == before
    assert collection.sync(handbook) == Synced(added=1, updated=1, removed=1)


def test_metadata_change_without_embedding_again(collection, encoder, monkeypatch):
    collection.upsert([{"id": "a", "text": "music", "price": 1}, {"id": "b", "text": "milk"}])
    seen = embedded_texts(encoder, monkeypatch)
    collection.upsert([{"id": "a", "text": "music", "price": 2}, {"id": "b", "text": "bread"}])
    assert seen == ["bread"]
    assert collection.get("a").metadata == {"price": 2}
    (hit,) = collection.search("music", k=1, mode="dense")
    assert (hit.id, round(hit.score, 4)) == ("a", 1)


class TestCommand:
    def test_folders_are_built_and_synchronised(self, handbook, encoder, tmp_path, capsys, monkeypatch):
        monkeypatch.chdir(tmp_path)
        write(tmp_path / "faq", guide="Milk.")
        command = ["index", "sync", "handbook", "faq", "idx", "--json"]
        assert main(command) == 1
        assert "name a model to create it, such as -m tiny" in capsys.readouterr().err
        assert main([*command, "-m", str(encoder.source)]) == 0
        assert json.loads(capsys.readouterr().out)["documents"] == 4
        write(tmp_path / "faq", guide="Music.", more="Bread.")
        (handbook / "sub" / "returns.md").unlink()
        assert main(command) == 0
        done = json.loads(capsys.readouterr().out)
        names = ("added", "updated", "removed", "unchanged")
        assert [done[name] for name in names] == [1, 1, 1, 1]
        assert set(texts(Collection.open("idx", encoder=encoder))) == {
            "handbook:guide.md#0",
            "handbook:guide.md#1",
            "faq:guide.md#0",
            "faq:more.md#0",
        }

    def test_add_counts_documents_and_removes_none(self, collection, handbook, tmp_path, capsys, monkeypatch):
        monkeypatch.chdir(tmp_path)
        write(tmp_path / "other", guide="Milk.")
        write(handbook, guide="Bread.")
        (handbook / "sub" / "returns.md").unlink()
        assert main(["index", "add", "other", "idx", "--split", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["added"] == 1
        assert main(["index", "add", "handbook/guide.md", "idx", "--split", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["updated"] == 1
        found = texts(Collection.open("idx", encoder=collection.query_encoder))
        assert found == {"guide.md#0": "Bread.", "sub/returns.md#0": "A bird.", "other:guide.md#0": "Milk."}
