"""Small writes: appended, seen by readers and by every kind of search, and whole after any interruption."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sys

import pytest

from embedkit.errors import CollectionError, DataError, StorageError
from embedkit.serving.retrieval import Collection, Document, sources
from embedkit.serving.retrieval.store import tail, writer
from embedkit.write_lock import OpenFolder


def tail_of(collection):
    return collection.path / collection.manifest.tail.name


def other_files(collection):
    """The length of every file but the tail."""
    return {path: path.stat().st_size for path in collection.path.rglob("*") if path != tail_of(collection)}


def ids(hits):
    return sorted(hit.id for hit in hits)


def test_a_small_write_appends_one_record_and_flushes_once(collection, monkeypatch):
    collection.upsert([("first", "creates the tail")])
    before = other_files(collection)
    flushes, flush = [], os.fdatasync if hasattr(os, "fdatasync") else os.fsync
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, lambda descriptor: (flushes.append(1), flush(descriptor))[1], raising=False)
    assert collection.upsert([("tea", "green tea"), ("new", "black tea")]) == (1, 1)
    assert collection.delete(["ships", "nobody"]) == 1
    assert len(flushes) == 2
    assert other_files(collection) == before
    assert len(collection) == Collection.describe(collection.path).count == 6


def test_the_tail_is_found_by_meaning_words_filters_and_id(tmp_path, encoder):
    collection = Collection.build(
        [{"id": "a", "text": "old tea", "year": 1}, {"id": "b", "text": "rye bread", "year": 2}],
        encoder=encoder,
        path=tmp_path / "idx",
        lexical=True,
    )
    collection.upsert([{"id": "a", "text": "new coffee", "year": 3}, {"id": "c", "text": "more tea", "year": 4}])
    collection.upsert([{"id": "c", "text": "more cocoa", "year": 5}])
    for opened in (collection, Collection.open(collection.path, encoder=encoder)):
        assert [hit.id for hit in opened.search("new coffee", 1, mode="dense")] == ["a"]
        assert ids(opened.search("coffee cocoa bread", mode="lexical")) == ["a", "b", "c"]
        assert ids(opened.search("tea", mode="lexical")) == []
        assert ids(opened.search("tea", mode="dense", filter={"year": {"gte": 3}})) == ["a", "c"]
        assert opened.get("c").metadata == {"year": 5}
        assert len(opened) == 3
    collection.delete("a")
    collection.compact()
    assert ids(collection.search("coffee cocoa bread", mode="lexical")) == ["b", "c"]
    assert collection.manifest.tail is None


def test_another_object_sees_records_at_refresh(collection, encoder):
    other = Collection.open(collection.path, encoder=encoder)
    for number in range(3):
        collection.upsert([("new", f"version {number}")])
        assert other.get("new") == (Document("new", f"version {number - 1}") if number else None)
        assert other.refresh()
        assert not other.refresh()
    assert len(other) == 6


def test_any_part_of_a_last_record_is_ignored_and_removed_by_the_next_writer(collection, encoder):
    collection.upsert([("whole", "one")])
    path = tail_of(collection)
    whole = path.read_bytes()
    collection.upsert([("torn", "two")])
    content = path.read_bytes()
    for size in range(len(whole), len(content)):
        path.write_bytes(content[:size])
        opened = Collection.open(collection.path, encoder=encoder)
        assert (opened.get("torn"), len(opened)) == (None, 6)
        opened.verify() if size < len(whole) + 32 else None
    assert opened.upsert([("after", "three")]) == (1, 0)
    again = Collection.open(collection.path, encoder=encoder)
    again.verify()
    documents = again.get(["whole", "torn", "after"])
    assert [document and document.text for document in documents] == ["one", None, "three"]
    assert collection.refresh()
    assert collection.get("torn") is None


def test_a_first_record_may_be_torn(collection, encoder):
    collection.upsert([("a", "one")])
    path = tail_of(collection)
    for size in (16, 40):
        path.write_bytes(path.read_bytes()[:size])
        opened = Collection.open(collection.path, encoder=encoder)
        assert opened.upsert([("b", "two")]) == (1, 0)
        assert len(Collection.open(collection.path, encoder=encoder)) == 6


def test_damage_before_other_records_is_an_error_and_in_the_last_one_found_by_verify(collection, encoder):
    for number in range(3):
        collection.upsert([(f"n{number}", f"number {number}")])
    path = tail_of(collection)
    content = path.read_bytes()
    for text, is_last in ((b"number 1", False), (b"number 2", True)):
        path.write_bytes(content.replace(text, b"lumber 1"))
        if is_last:
            with pytest.raises(CollectionError, match="damaged behind byte"):
                Collection.open(collection.path, encoder=encoder).verify()
        else:
            with pytest.raises(CollectionError, match=r"tail-.*a record before byte"):
                Collection.open(collection.path, encoder=encoder)
    path.write_bytes(content[:10])
    with pytest.raises(CollectionError, match="is not a tail"):
        Collection.open(collection.path, encoder=encoder)
    path.unlink()
    with pytest.raises(CollectionError, match=r"tail-000002\.log"):
        Collection.open(collection.path, encoder=encoder)


def test_a_failed_flush_is_not_a_write(collection, encoder, monkeypatch):
    collection.upsert([("a", "one")])

    def fail(_):
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync" if hasattr(os, "fdatasync") else "fsync", fail)
        with pytest.raises(StorageError, match="Input/output error"):
            collection.upsert([("b", "two")])
    assert collection.get("b") is None
    assert collection.upsert([("c", "three")]) == (1, 0)
    assert len(Collection.open(collection.path, encoder=encoder)) == len(collection) == 7


def test_a_full_tail_becomes_a_segment_and_what_comes_meanwhile_is_the_next_tail(collection, encoder, monkeypatch):
    monkeypatch.setattr(tail, "FULL", 4)
    for number in range(4):
        collection.upsert([(f"n{number}", f"number {number}")], merge=False)
    old, stage_parts = tail_of(collection), writer.stage_parts

    def meanwhile(*given, **options):
        staged = stage_parts(*given, **options)
        other = Collection.open(collection.path, encoder=encoder)
        other.upsert([("late", "late"), ("n1", "changed")], merge=False)
        other.delete(["n2", "tea"])
        return staged

    monkeypatch.setattr("embedkit.serving.retrieval.store.merge.stage_parts", meanwhile)
    assert collection.merge()
    assert not old.exists()
    assert len(collection.manifest.segments) == 2
    for opened in (collection, Collection.open(collection.path, encoder=encoder)):
        opened.verify()
        assert len(opened) == 5 + 4 + 1 - 2
        texts = [document and document.text for document in opened.get(["n0", "n1", "n2", "tea", "late"])]
        assert texts == ["number 0", "changed", None, None, "late"]
        assert ids(opened.search("number", 100)) == ids(collection.search("number", 100))


def test_a_tail_that_nobody_merges_is_bounded(collection, monkeypatch):
    monkeypatch.setattr(tail, "FULL", 2)
    for number in range(30):
        collection.upsert([(f"n{number % 20}", f"number {number}")], merge=False)
    assert len(collection.store.view().alive()[-1]) <= 8
    assert len(collection) == 25
    collection.verify()


def test_a_tail_of_deletions_is_bounded_and_merged(collection, monkeypatch):
    monkeypatch.setattr(tail, "FULL_RECORDS", 2)
    collection.upsert([(f"n{number}", f"number {number}") for number in range(30)], merge=False)
    for number in range(20):
        collection.delete(f"n{number}")
        assert collection.store.view().position is None or collection.store.view().position.records <= 8
    while collection.store.view().position is None or collection.store.view().position.records < 2:
        collection.delete(collection.search("number", 1)[0].id)
    left = len(collection)
    assert collection.merge()
    assert collection.manifest.tail is None
    assert len(collection) == left
    collection.verify()


def test_equal_ids_in_one_write_are_refused_before_anything_is_embedded(collection, encoder):
    encoder.calls.clear()
    with pytest.raises(DataError, match="documents 1 and 3 have the same id 'x'"):
        collection.upsert([("x", "a"), ("y", "b"), ("x", "c")])
    assert encoder.calls == []
    assert len(collection) == 5


# Folders that are moved while they are written to


@pytest.fixture
def swap(collection, encoder, tmp_path):
    """Puts another collection of three documents in the place of the first, and returns the path of the first."""
    if sys.platform == "win32":
        pytest.skip("folders with open files cannot be moved")
    other = Collection.build(["x", "y", "z"], encoder=encoder, path=tmp_path / "new")
    other.upsert([("w", "w")])
    moved = tmp_path / "old"

    def swapped():
        if not moved.exists():
            collection.path.rename(moved)
            other.path.rename(collection.path)
        return moved

    return swapped


def writes_of(collection, encoder):
    return {
        "small": lambda: collection.upsert([("new", "new")], merge=False),
        "large": lambda: collection.upsert([(f"n{number}", "new") for number in range(100)], merge=False),
        "delete": lambda: collection.delete("tea"),
        "compact": lambda: collection.compact(index="sq8"),
        "build": lambda: Collection.build(["a"], encoder=encoder, path=collection.path, replace=True),
    }


@pytest.mark.parametrize("has_tail", [False, True])
@pytest.mark.parametrize("name", ["small", "large", "delete", "compact", "build"])
@pytest.mark.parametrize("moment", ["before the check", "after the check"])
def test_a_write_never_touches_a_folder_that_took_the_name(
    collection, encoder, swap, monkeypatch, moment, name, has_tail
):
    pytest.importorskip("faiss")
    if has_tail:
        collection.upsert([("last", "last")], merge=False)
    before, check = len(collection), OpenFolder.check

    def check_and_swap(folder, *name):
        if folder.path == collection.path and moment == "before the check":
            swap()
        check(folder, *name)
        if folder.path == collection.path:
            swap()

    refused = pytest.raises(CollectionError, match="was moved or replaced")
    after = contextlib.suppress(CollectionError, StorageError)  # which report that the new folder is another one
    with monkeypatch.context() as patch, refused if moment == "before the check" else after:
        patch.setattr(OpenFolder, "check", check_and_swap)
        writes_of(collection, encoder)[name]()
    new = Collection.open(collection.path, encoder=encoder)
    new.verify()
    assert new.search("x", 1, mode="dense")[0].id == "0"
    assert len(new) == 4
    old = Collection.open(swap(), encoder=encoder)
    old.verify()
    assert len(old) == before or moment == "after the check"


def test_a_write_goes_to_the_folder_that_has_the_name_under_the_lock(collection, encoder, swap, monkeypatch):
    encode = encoder.encode
    monkeypatch.setattr(encoder, "encode", lambda texts: (swap(), encode(texts))[1])
    assert collection.upsert([("new", "new")]) == (1, 0)
    assert len(Collection.open(collection.path, encoder=encoder)) == 5
    assert len(Collection.open(swap(), encoder=encoder)) == 5
    shutil.rmtree(swap())
    collection.refresh()
    assert len(collection) == 5


def test_embeddings_of_an_unfinished_write_stay_with_the_folder_that_it_began_in(
    collection, encoder, swap, monkeypatch
):
    monkeypatch.setattr(sources, "_CHUNK", 1)
    encode, new = encoder.encode, {path.name for path in (collection.path.parent / "new").iterdir()}

    def interrupted(texts):
        if texts == ["b"]:
            raise KeyboardInterrupt
        swap()
        return encode(texts)

    monkeypatch.setattr(tail, "LARGEST_WRITE", 0)
    monkeypatch.setattr(encoder, "encode", interrupted)
    with pytest.raises(KeyboardInterrupt):
        collection.upsert([("a", "a"), ("b", "b")])
    assert {path.name for path in collection.path.iterdir()} == new
    assert len(list((swap() / ".unfinished").iterdir())) == 1


def test_a_large_write_into_a_folder_that_took_the_name_is_refused(collection, encoder, swap, monkeypatch):
    encode = encoder.encode
    monkeypatch.setattr(tail, "LARGEST_WRITE", 0)
    monkeypatch.setattr(encoder, "encode", lambda texts: (swap(), encode(texts))[1])
    with pytest.raises(CollectionError, match="was moved or replaced"):
        collection.upsert([("new", "new")])
    assert len(Collection.open(collection.path, encoder=encoder)) == 4
    assert len(Collection.open(swap(), encoder=encoder)) == 5


def test_a_sweep_looks_only_into_the_folder_that_was_locked(collection, swap, monkeypatch):
    other = collection.path.parent / "new"
    for folder, name in ((collection.path, "notes.txt"), (other, "arrays.bin")):
        (folder / "generation-000099").mkdir()
        (folder / "generation-000099" / name).write_text("x")
    names = OpenFolder.names
    monkeypatch.setattr(OpenFolder, "names", lambda folder: (names(folder), swap())[0])
    with contextlib.suppress(CollectionError):
        collection.compact(lexical=False)
    assert (swap() / "generation-000099" / "notes.txt").exists()


def test_a_copy_that_grew_otherwise_can_take_the_place_of_a_collection(collection, encoder, tmp_path):
    collection.upsert([("first", "first")])
    collection.copy(tmp_path / "copy")
    collection.upsert([("here", "here")])
    other = Collection.open(tmp_path / "copy", encoder=encoder)
    for number in range(3):
        other.upsert([(f"there{number}", f"there is more {number}")])
    collection.path.rename(tmp_path / "old")
    other.path.rename(collection.path)
    assert collection.refresh()
    assert collection.get("here") is None
    assert collection.get("there2") is not None
    collection.verify()
