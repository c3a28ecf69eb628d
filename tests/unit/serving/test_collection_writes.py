"""Upserts, deletions and compaction: what a collection holds after them, and when readers see it."""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
import re
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from embedkit import child as child_module
from embedkit import write_lock
from embedkit.errors import CollectionBusyError, CollectionError, DataError, FingerprintError, InputError
from embedkit.serving.retrieval import Collection, Document
from embedkit.serving.retrieval.store import folder as folder_store_module
from embedkit.serving.retrieval.store import manifest as manifest_module
from embedkit.serving.retrieval.store import merge, tail, writer
from embedkit.serving.retrieval.store.files import Checksum
from embedkit.serving.retrieval.store.folder import FolderStore

TEXTS = ["tea", "bees find home", "ships sail", "rye bread", "snow and ice"]


def generations(collection):
    return sorted(path.name for path in collection.path.glob("generation-*"))


def all_hits(collection, query="bees sail home"):
    hits = collection.search(query, k=1000, mode="dense")
    return [(hit.id, hit.score, hit.text, hit.metadata) for hit in hits]


# Upsert


def test_only_new_documents_are_embedded(collection, encoder):
    encoder.calls.clear()
    collection.upsert([("a", "one"), ("b", "two")])
    collection.compact()
    assert encoder.calls == [["one", "two"]]


def test_files_are_read_as_for_building(collection, tmp_path):
    (tmp_path / "new.jsonl").write_text(json.dumps({"key": 7, "body": "lucky number"}) + "\n")
    collection.upsert(tmp_path / "new.jsonl", text_column="body", id_column="key")
    assert collection.get("7") == Document("7", "lucky number", None)


def test_writing_texts_needs_an_encoder_and_deleting_none(collection):
    opened = Collection.open(collection.path)
    with pytest.raises(InputError, match="without an encoder"):
        opened.upsert([("a", "b")])
    assert opened.delete("tea") == 1
    opened.compact()
    assert len(opened) == 4


# Delete


def test_everything_can_be_deleted_and_added_again(collection, encoder):
    assert collection.delete(["tea", "bees", "ships", "bread", "雪"]) == 5
    assert (len(collection), collection.search("tea"), collection.get("tea")) == (0, [], None)
    assert collection.search(["a", "b"]) == [[], []]
    collection.compact()
    assert len(Collection.open(collection.path, encoder=encoder)) == 0
    collection.upsert([("new", "new tea")])
    assert collection.search("tea")[0].id == "new"


# Segments


@pytest.fixture
def without_tail(monkeypatch):
    """Every write makes a segment, as a large one does."""
    monkeypatch.setattr(tail, "LARGEST_WRITE", 0)


def test_compaction_leaves_one_segment_and_no_tombstones(collection):
    collection.upsert([("coffee", "coffee beans")])
    collection.delete("bread")
    before = all_hits(collection)
    collection.compact()
    assert len(generations(collection)) == 1
    assert [segment.deleted for segment in collection.manifest.segments] == [None]
    assert all_hits(collection) == before
    last = generations(collection)
    collection.compact()
    assert generations(collection) == last
    collection.verify()


@pytest.mark.usefixtures("without_tail")
def test_many_upserts_make_few_segments(collection):
    for number in range(40):
        collection.upsert([(f"n{number}", f"number {number}")])
    assert len(collection) == 45
    assert len(collection.manifest.segments) <= 7
    assert set(generations(collection)) == collection.manifest.generations
    assert [hit.id for hit in collection.search("number 17", k=1)] == ["n17"]


@pytest.mark.parametrize(
    ("counts", "first"),
    [([5], None), ([5, 1], None), ([5, 1, 1], 1), ([5, 3, 2, 1], None), ([8, 4, 2, 2], 0), ([9, 4, 2, 2], 1)],
)
def test_which_segments_are_merged(counts, first):
    assert merge.choose_merge(counts) == first


IDS = st.sampled_from("abcdefgh")
WRITES = st.lists(
    st.one_of(
        st.tuples(
            st.just("upsert"), st.dictionaries(st.sampled_from("abcdefgh"), st.sampled_from(TEXTS), min_size=1)
        ),
        st.tuples(st.just("delete"), st.lists(IDS)),
        st.tuples(st.just("compact"), st.none()),
    ),
    max_size=8,
)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(writes=WRITES)
def test_any_writes_equal_one_build(tmp_path_factory, encoder, writes):
    folder = tmp_path_factory.mktemp("writes")
    expected = {"a": "tea", "b": "rye bread"}
    collection = Collection.build(list(expected.items()), encoder=encoder, path=folder / "idx")
    for name, what in writes:
        if name == "upsert":
            collection.upsert(list(what.items()))
            expected = {id_: text for id_, text in expected.items() if id_ not in what} | what
        elif name == "delete":
            collection.delete(what)
            expected = {id_: text for id_, text in expected.items() if id_ not in what}
        else:
            collection.compact()
    at_once = []
    if expected:
        at_once = all_hits(Collection.build(list(expected.items()), encoder=encoder, path=folder / "one"))
    for opened in (collection, Collection.open(collection.path, encoder=encoder)):
        assert all_hits(opened) == at_once
        assert len(opened) == len(expected)
        assert opened.get(list("abcdefgh")) == [
            Document(id_, expected[id_]) if id_ in expected else None for id_ in "abcdefgh"
        ]
    collection.verify()


# Readers and writers


def test_a_writer_builds_on_the_writes_of_others(collection, encoder):
    other = Collection.open(collection.path, encoder=encoder)
    collection.upsert([("new", "new tea")])
    assert other.upsert([("new", "newer tea"), ("tea", "old tea")]) == (0, 2)
    assert collection.refresh()
    assert collection.get("new").text == "newer tea"


def test_changes_of_stored_documents_keep_what_others_wrote(collection, encoder, monkeypatch):
    other, append = Collection.open(collection.path, encoder=encoder), FolderStore._append
    other.upsert([{"id": "tea", "text": "newer tea", "year": 1}])
    other.delete(["bees"])
    assert collection.update({"tea": {"kind": "a"}, "bees": {"kind": "a"}}) == 1
    assert (collection.get("tea").text, collection.get("bees")) == ("newer tea", None)
    waiting = [[("tea", "newest tea")]]

    def append_later(store, *arguments, **options):
        if waiting:
            monkeypatch.setattr(FolderStore, "_append", append)
            other.upsert(waiting.pop())
        return append(store, *arguments, **options)

    monkeypatch.setattr(FolderStore, "_append", append_later)
    assert collection.update({"tea": {"kind": "b"}}) == 1
    assert collection.get("tea") == Document("tea", "newest tea", {"kind": "b"})
    other.update({"tea": {"kind": "c"}})
    assert collection.delete(filter={"kind": "b"}) == 0


def test_a_collection_built_again_with_another_model_is_not_written_to(collection, other_encoder):
    Collection.build(["a"], encoder=other_encoder, path=collection.path, replace=True)
    with pytest.raises(FingerprintError):
        collection.upsert([("x", "y")])
    assert collection.search("tea", k=1)[0].id == "tea"
    assert len(Collection.open(collection.path, encoder=other_encoder)) == 1


def test_writing_to_a_missing_collection_is_an_error(collection):
    collection.path.rename(collection.path.with_name("moved"))
    with pytest.raises(CollectionError, match="no collection"):
        collection.delete("tea")
    assert not collection.path.exists()


def test_a_second_writer_is_refused(collection, encoder):
    compact = functools.partial(collection.compact, lexical=False)
    build = functools.partial(Collection.build, ["a"], encoder=encoder, path=collection.path, replace=True)
    many = [(f"n{number}", "text") for number in range(tail.LARGEST_WRITE + 1)]
    upserts = (lambda: collection.upsert([("a", "b")]), lambda: collection.upsert(many))
    with write_lock.write_lock(collection.path):
        for write in (*upserts, lambda: collection.delete("tea"), compact, build):
            with pytest.raises(CollectionError, match=r"another process is writing to .*idx; wait"):
                write()
    assert not list(collection.path.glob(".staging*"))
    assert len(collection) == 5


@pytest.mark.parametrize("count", [1, tail.LARGEST_WRITE + 1])
def test_documents_are_embedded_before_the_lock_is_taken(collection, encoder, monkeypatch, count):
    other, encode = Collection.open(collection.path), encoder.encode
    monkeypatch.setattr(encoder, "encode", lambda texts: (other.delete("tea"), encode(texts))[1])
    assert collection.upsert([("tea", "new"), *((f"n{n}", "text") for n in range(count - 1))]) == (count, 0)
    assert len(collection) == 4 + count
    collection.verify()


def test_a_collection_can_be_locked_by_a_file(tmp_path, encoder, monkeypatch):
    """As on Windows; elsewhere the file remains."""
    pytest.importorskip("filelock")
    monkeypatch.setattr(write_lock, "_lock_folder", write_lock._lock_file)
    collection = Collection.build([("a", "tea")], encoder=encoder, path=tmp_path / "idx")
    collection.upsert([("b", "milk")])
    assert (tmp_path / "idx" / ".lock").exists()
    assert len(Collection.build([("c", "snow")], encoder=encoder, path=tmp_path / "idx", replace=True)) == 1
    with pytest.raises(DataError):
        Collection.build([], encoder=encoder, path=tmp_path / "idx", replace=True)


def test_threads_that_write_through_one_object_take_turns(collection):
    def write(thread):
        for number in range(4):
            collection.upsert([(f"{thread}-{number}", f"number {number}")])

    threads = [threading.Thread(target=write, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(collection) == 21
    collection.verify()


def test_readers_see_consistent_states_during_writes(collection):
    """Every upsert writes the same version into three documents; no search may ever see two versions."""
    versions, done = 12, threading.Event()
    mixed = []

    def read():
        while not done.is_set():
            found = {hit.id: hit.text for hit in collection.search("version", k=100) if hit.id.startswith("v")}
            if len({*found.values()}) > 1 or len(found) not in (0, 3):
                mixed.append(found)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for version in range(versions):
        collection.upsert([(f"v{number}", f"version {version}") for number in range(3)])
    collection.compact()
    done.set()
    for reader in readers:
        reader.join()
    assert mixed == []
    assert collection.get("v0").text == f"version {versions - 1}"


# Damage


@pytest.mark.parametrize("rows", [[-1], [5], [1, 1], [3, 2]])
def test_impossible_tombstones_are_damage(collection, monkeypatch, rows):
    monkeypatch.setattr(tail, "FULL", 0)  # deletions of many documents are not in the tail
    collection.delete(["bees", "tea"][: len(rows)])
    (entry,) = collection.manifest.segments
    path = entry.deleted.path(collection.path, entry.generation)
    path.write_bytes(np.array(rows, dtype="<i8").tobytes())
    with pytest.raises(CollectionError, match="SHA-256"):
        Collection.open(collection.path)
    object.__setattr__(entry.deleted, "checksum", Checksum.of(path))
    collection.manifest.write(collection.path)
    with pytest.raises(CollectionError, match="rows that its segment does not have"):
        Collection.open(collection.path)


# Merging during other writes


@pytest.fixture
def in_pieces(collection, without_tail):
    """A collection with segments to merge."""
    for number in range(3):
        collection.upsert([(f"n{number}-{i}", f"number {number} {i}") for i in range(3)], merge=False)
    assert len(collection.manifest.segments) == 4
    return collection


def test_a_merge_changes_nothing_but_the_segments(in_pieces, encoder):
    before = all_hits(in_pieces)
    while in_pieces.merge():
        pass
    assert len(in_pieces.manifest.segments) < 4
    assert merge.choose_merge([segment.remaining for segment in in_pieces.manifest.segments]) is None
    assert all_hits(in_pieces) == before
    in_pieces.verify()
    assert all_hits(Collection.open(in_pieces.path, encoder=encoder)) == before
    assert [path.name for path in in_pieces.path.iterdir() if path.name.startswith(".")] == []


def meanwhile(monkeypatch, write):
    """Call a function after the merged segment is written and before it is in place."""
    merged = merge.stage_parts

    def stage_parts(*given, **more):
        staged = merged(*given, **more)
        monkeypatch.setattr(merge, "stage_parts", merged)
        write()
        return staged

    monkeypatch.setattr(merge, "stage_parts", stage_parts)


def test_writes_during_a_merge_are_kept(in_pieces, encoder, monkeypatch):
    def write():
        in_pieces.upsert([("late", "a late one"), ("n0-1", "another text")], merge=False)
        Collection.open(in_pieces.path, encoder=encoder).delete(["n2-2", "n1-0"])

    meanwhile(monkeypatch, write)
    assert in_pieces.merge()
    in_pieces.verify()
    for opened in (in_pieces, Collection.open(in_pieces.path, encoder=encoder)):
        assert len(opened) == 5 + 9 + 1 - 2
        assert opened.get("n0-1").text == "another text"
        assert opened.get("late").text == "a late one"
        assert opened.get("n2-2") is None
        assert opened.get("n1-0") is None
        assert sorted(hit.id for hit in opened.search("number", k=100)).count("n0-1") == 1
        assert len(opened.search("number", k=100)) == len(opened)


def test_a_merge_yields_to_a_write_that_replaced_its_segments(in_pieces, monkeypatch):
    meanwhile(monkeypatch, lambda: in_pieces.compact(lexical=False))
    assert not in_pieces.merge()
    assert len(in_pieces.manifest.segments) == 1
    in_pieces.verify()


def test_a_merge_of_documents_that_are_all_deleted_meanwhile_is_dropped(in_pieces, monkeypatch):
    ids = [hit.id for hit in in_pieces.search("number", k=100)]
    meanwhile(monkeypatch, lambda: in_pieces.delete(ids))
    assert not in_pieces.merge()
    assert len(in_pieces) == 0
    in_pieces.compact()
    assert in_pieces.manifest.segments == ()
    in_pieces.verify()


def test_leftovers_of_a_killed_merge_are_removed(in_pieces, monkeypatch):
    """And not the files of a merge that runs."""
    leftovers = [in_pieces.path / ".staging-0a1b2c"]
    running = []

    def write():
        running.extend(in_pieces.path.glob(".staging-*/segment/arrays.bin"))
        in_pieces.upsert([("late", "a late one")], merge=False)
        assert all(path.exists() for path in running)
        assert not any(leftover.exists() for leftover in leftovers)

    for leftover in leftovers:
        leftover.mkdir()
        (leftover / "arrays.bin").write_bytes(b"of a merge that was killed")
    meanwhile(monkeypatch, write)
    assert in_pieces.merge()
    assert len(running) == 1
    in_pieces.verify()
    assert not list(in_pieces.path.glob(".staging*"))


def test_merges_of_other_segments_run_beside_a_compaction(in_pieces, encoder, monkeypatch):
    """The segments that it reads stay, so that its result is never in vain."""
    merges, real = [], merge.stage_parts
    monkeypatch.setattr(merge, "stage_parts", lambda *given, **more: (merges.append(1), real(*given, **more))[1])

    def write():
        for number in range(8):
            in_pieces.upsert([(f"late{number}", f"a late one {number}")])
        other = Collection.open(in_pieces.path, encoder=encoder)
        for number in range(4):
            other.upsert([(f"later{number}", f"a later one {number}")], merge=False)
        assert other.merge()
        assert len(other.manifest.segments) <= 4 + 3
        assert not other.merge()

    meanwhile(monkeypatch, write)
    in_pieces.compact()
    assert in_pieces.manifest.segments[0].count == 5 + 9
    assert len(in_pieces) == 5 + 9 + 12
    in_pieces.verify()
    assert all_hits(in_pieces) == all_hits(Collection.open(in_pieces.path, encoder=encoder))


def test_a_compaction_waits_for_another_merge(in_pieces, encoder, monkeypatch):
    compaction = threading.Thread(target=Collection.open(in_pieces.path, encoder=encoder).compact)
    meanwhile(monkeypatch, lambda: (compaction.start(), compaction.join(0.2)))
    assert in_pieces.merge()
    compaction.join()
    in_pieces.refresh()
    assert len(in_pieces.manifest.segments) == 1
    in_pieces.verify()


def test_a_merge_does_not_wait_forever(in_pieces, monkeypatch):
    monkeypatch.setattr(folder_store_module, "_PATIENCE_S", 0.1)
    with write_lock.write_lock(in_pieces.path), pytest.raises(CollectionBusyError):
        in_pieces.merge()
    assert in_pieces.merge()


def test_large_merges_run_in_a_process_of_their_own(in_pieces, encoder, monkeypatch):
    monkeypatch.setattr(merge, "_SMALL", 0)
    monkeypatch.setattr(merge, "stage_parts", None)  # here
    before = all_hits(in_pieces)
    in_pieces.compact()
    assert len(in_pieces.manifest.segments) == 1
    in_pieces.verify()
    assert all_hits(in_pieces) == before
    assert all_hits(Collection.open(in_pieces.path, encoder=encoder)) == before


def test_large_merges_run_here_where_no_process_can_be_started(in_pieces, monkeypatch, caplog):
    """As in a frozen program, whose executable is no Python."""
    monkeypatch.setattr(merge, "_SMALL", 0)
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    before = all_hits(in_pieces)
    with caplog.at_level(logging.WARNING):
        in_pieces.compact()
    assert re.search("merging segments in this process: .*a frozen program", caplog.text)
    assert len(in_pieces.manifest.segments) == 1
    assert all_hits(in_pieces) == before


@pytest.mark.parametrize("ids", [["n1-1"], ["n2-0", "n2-1", "n2-2"]], ids=["some", "all"])
@pytest.mark.parametrize("has_tail", [False, True], ids=["by file", "in the tail"])
def test_files_that_a_merging_process_has_still_to_open_are_kept(in_pieces, monkeypatch, ids, has_tail):
    """Files of deleted rows that another one replaces, segments that go, and the tail."""
    monkeypatch.setattr(tail, "FULL", 256 if has_tail else 0)
    is_merged = has_tail or len(ids) == 1
    monkeypatch.setattr(merge, "_SMALL", 0)
    start = merge.Child

    def delete_first(*given):
        in_pieces.delete(ids)
        return start(*given)

    in_pieces.delete("n1-0")
    monkeypatch.setattr(merge, "Child", delete_first)
    assert in_pieces.merge() == is_merged
    assert in_pieces.get(["n1-0", *ids]) == [None] * (1 + len(ids))
    in_pieces.verify()
    if not is_merged:
        in_pieces.delete("tea")  # the next write removes them
    assert set(generations(in_pieces)) == in_pieces.manifest.generations


def test_a_merge_that_ends_does_not_disturb_a_write(in_pieces, monkeypatch):
    running, read = in_pieces.path / ".staging-0a1b2c", manifest_module.Manifest.read
    running.mkdir()
    in_pieces.manifest.write(running)

    def read_late(folder, descriptor=None):
        if folder == running:
            shutil.rmtree(running, ignore_errors=True)
        return read(folder, descriptor)

    monkeypatch.setattr(manifest_module.Manifest, "read", staticmethod(read_late))
    with write_lock.write_lock(running):
        assert in_pieces.upsert([("late", "a late one")]) == (1, 0)
    assert not running.exists()


def test_a_failed_merge_changes_nothing(in_pieces, monkeypatch):
    monkeypatch.setattr(merge, "_SMALL", 0)
    before = all_hits(in_pieces)
    with monkeypatch.context() as patch:
        patch.setattr(child_module, "_START", "import os, signal; os.kill(os.getpid(), signal.SIGTERM)")
        with pytest.raises(CollectionError, match="has ended with exit code"):
            in_pieces.compact()
    documents = in_pieces.path / in_pieces.manifest.segments[1].generation / "documents.jsonl"
    content = documents.read_bytes()
    documents.write_bytes(b"?" + content[1:])
    with pytest.raises(CollectionError, match="is damaged"):
        in_pieces.compact()
    documents.write_bytes(content)
    assert all_hits(in_pieces) == before
    in_pieces.verify()
    assert not list(in_pieces.path.glob(".staging*"))


def test_closing_a_collection_ends_a_merge(in_pieces, monkeypatch):
    monkeypatch.setattr(merge, "_SMALL", 0)
    monkeypatch.setattr(child_module, "_START", "import time; time.sleep(600)")
    before = all_hits(in_pieces)
    with ThreadPoolExecutor(1) as pool:
        merging = pool.submit(in_pieces.merge)
        while not in_pieces.store._children:
            assert not merging.done()
        in_pieces.close()
        with pytest.raises(CollectionError, match="has ended with exit code"):
            merging.result()
    assert all_hits(in_pieces) == before
    assert not in_pieces.store._children
    assert not list(in_pieces.path.glob(".staging*"))


def test_a_merging_process_exits_with_its_parent():
    """At once, in the middle of its work."""
    code = "import sys; from embedkit.serving.retrieval.store import merge; merge._exit_with(sys.stdin.buffer)"
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    process.stdin.close()
    assert process.wait(60) == 1


def test_old_segments_are_removed_without_the_lock(in_pieces, monkeypatch):
    """However large they are, no writer waits for it."""
    removed, real = [], shutil.rmtree

    def rmtree(path, **options):
        removed.append((str(path), in_pieces.store._one_writer.locked()))
        real(path, **options)

    monkeypatch.setattr(shutil, "rmtree", rmtree)
    in_pieces.compact()
    assert len(generations(in_pieces)) == 1
    assert [locked for name, locked in removed if not name.endswith(".part")] == [False]


def test_a_collection_of_many_segments_can_be_read(collection):
    """As many as are written while merging is put off."""
    manifest = collection.manifest
    (segment,) = manifest.segments
    many = [dataclasses.replace(segment, generation=f"generation-{number:06d}") for number in range(1, 2001)]
    dataclasses.replace(manifest, segments=tuple(many)).write(collection.path)
    assert len(Collection.describe(collection.path).segments) == 2000


def test_under_the_lock_a_merge_reads_no_file(in_pieces, monkeypatch):
    """Putting the merged segment in place only renames files, however large they are."""
    waiting, read = [], []
    real = merge.commit_merge
    monkeypatch.setattr(merge, "commit_merge", lambda *given: (waiting.append(1), real(*given))[1])
    for name in ("of", "check"):
        check = getattr(Checksum, name)
        monkeypatch.setattr(
            Checksum, name, lambda *given, check=check: (read.append(1) if waiting else None, check(*given))[1]
        )
    assert in_pieces.merge()
    assert waiting
    assert not read


# Copies


def test_a_copy_is_the_state_of_one_moment_whatever_is_written(in_pieces, encoder, monkeypatch, tmp_path):
    monkeypatch.setattr(tail, "LARGEST_WRITE", 64)
    in_pieces.upsert([("small", "in the tail")], merge=False)
    before, flush_folder = all_hits(in_pieces), writer.flush_folder

    def meanwhile_compacted(path):
        monkeypatch.setattr(writer, "flush_folder", flush_folder)
        other = Collection.open(in_pieces.path, encoder=encoder)
        other.upsert([("late", "late")], merge=False)
        other.delete("tea")
        other.compact()
        flush_folder(path)

    monkeypatch.setattr(writer, "flush_folder", meanwhile_compacted)
    in_pieces.copy(tmp_path / "copies" / "one")
    copied = Collection.open(tmp_path / "copies" / "one", encoder=encoder)
    copied.verify()
    assert all_hits(copied) == before
    assert copied.upsert([("new", "new")]) == (1, 0)
    in_pieces.delete([f"none {number}" for number in range(300)])
    in_pieces.compact(lexical=False)
    in_pieces.delete("late")
    assert not list(in_pieces.path.glob(".[sc]*"))


def test_a_copy_needs_a_folder_of_its_own_and_whole_files(collection, tmp_path):
    with pytest.raises(CollectionError, match=r"a collection at .* already"):
        collection.copy(collection.path)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine.txt").touch()
    with pytest.raises(CollectionError, match=r"holds mine\.txt"):
        collection.copy(tmp_path / "notes")
    documents = collection.path / "generation-000001" / "documents.jsonl"
    documents.write_bytes(documents.read_bytes().replace(b"tea", b"sea"))
    with pytest.raises(CollectionError, match="SHA-256"):
        collection.copy(tmp_path / "copy")
    with pytest.raises(CollectionError, match="no collection"):
        Collection.open(tmp_path / "copy")
