"""Collections from strangers: whatever their files hold, opening them is bounded and raises errors of embedkit."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import random
from pathlib import Path

import numpy as np
import pytest

from embedkit.errors import CollectionError, EmbedkitError
from embedkit.serving.retrieval import Collection
from embedkit.serving.retrieval.store import files as stored_files
from embedkit.serving.retrieval.store import index_kinds, tail
from embedkit.serving.retrieval.store.files import Arrays, Checksum

ROWS, WIDTH = 700, 16


@pytest.fixture
def sealed(collection):
    """``sealed(name, content)``: replaces a file of the segment, and names its checksum in the manifest."""

    def replace(name, content):
        manifest = collection.manifest
        (entry,) = manifest.segments
        path = collection.path / entry.generation / name
        path.write_bytes(content)
        files = entry.files | {name: Checksum.of(path)}
        dataclasses.replace(manifest, segments=(dataclasses.replace(entry, files=files),)).write(collection.path)

    return replace


def changed(path, change):
    """Return the content of a file of arrays with a changed directory, whose own digest is right."""
    content = path.read_bytes()
    _, length, magic = stored_files._TRAILER.unpack(content[-stored_files._TRAILER.size :])
    end = len(content) - stored_files._TRAILER.size
    directory = json.loads(content[end - length : end])
    change(directory)
    text = json.dumps(directory).encode()
    trailer = stored_files._TRAILER.pack(hashlib.sha256(text).digest(), len(text), magic)
    return content[: end - length] + text + trailer


def use(collection, encoder):
    opened = Collection.open(collection.path, encoder=encoder)
    opened.search("tea", 5, filter={"year": {"gte": 1}})
    opened.get(["tea", "bees"])
    opened.search("tea", 5)
    opened.upsert([("tea", "new")])


@pytest.mark.parametrize(
    "change",
    [
        lambda directory: directory["arrays"].pop("ids"),
        lambda directory: directory["arrays"].update(vectors=[10**18, [5, 16], "<f4"]),
        lambda directory: directory["arrays"].update(vectors=["0", [5, 16], "<f4"]),
        lambda directory: directory["arrays"].update(vectors=[-64, [5, 16], "<f4"]),
        lambda directory: directory["arrays"].update(vectors=7),
        lambda directory: directory.update(arrays=[]),
        lambda directory: directory.pop("notes"),
        lambda directory: directory["notes"].update(columns=3),
        lambda directory: directory["notes"]["columns"].update(bytes="x"),
        lambda directory: directory["notes"]["columns"].update(others=[[1]]),
        lambda directory: directory["notes"]["columns"]["columns"]["year"].update(codes=[0, 10**9, "|u1"]),
        lambda directory: directory["notes"]["columns"]["columns"]["year"].update(codes=[0, {}, "|u1"]),
        lambda directory: directory["notes"]["columns"]["columns"].update(year=None),
    ],
)
def test_a_directory_that_was_rewritten_is_damage(collection, encoder, sealed, change):
    path = collection.path / "generation-000001" / "arrays.bin"
    sealed("arrays.bin", changed(path, change))
    with pytest.raises(CollectionError):
        use(collection, encoder)


def test_ids_that_name_no_row_are_damage(collection, encoder, sealed):
    path = collection.path / "generation-000001" / "arrays.bin"
    start = Arrays(path)._directory["ids"][0]
    content = bytearray(path.read_bytes())
    content[start + 40 : start + 80] = np.full(5, 2**64 - 1, np.uint64).tobytes()
    sealed("arrays.bin", bytes(content))
    with pytest.raises(CollectionError, match="is damaged"):
        use(collection, encoder)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]\n",
        b'{"documents": 0, "deleted": [], "count": -1}\n',
        b'{"documents": 0, "deleted": [5], "count": 1}\n',
        b'{"documents": 0, "deleted": 7, "count": 1}\n',
        b'{"documents": -1, "deleted": [], "count": 1}\n',
        b'{"documents": 1, "deleted": [], "count": 1}\n{"id": 5, "text": "a"}\n' + bytes(64),
        b'{"documents": 1, "deleted": [], "count": 1}\n{"id": "a", "text": "a", "metadata": []}\n' + bytes(64),
        b'{"documents": 1, "deleted": [], "count": 1}\n{"id": "a", "text": "a"}\n' + bytes(63),
        b'{"documents": 1, "deleted": [], "count": 1}\n' + b"[" * 100_000 + b"\n" + bytes(64),
    ],
    ids=range(10),
)
def test_a_record_of_a_tail_that_was_rewritten_is_damage(collection, encoder, body):
    collection.upsert([("a", "b")])
    path = collection.path / collection.manifest.tail.name
    digest = tail._digest(tail.Position.start(path.name, 0).digest, body)
    path.write_bytes(tail.MAGIC + tail._header(len(body)) + digest + body)
    with pytest.raises(CollectionError, match=r"tail-000002\.log is damaged"):
        Collection.open(collection.path, encoder=encoder)
    with pytest.raises(CollectionError, match=r"tail-000002\.log is damaged"):
        Collection.describe(collection.path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes")
@pytest.mark.parametrize("name", ["documents.jsonl", "arrays.bin"])
def test_a_pipe_in_place_of_a_file_is_refused(collection, name):
    path = collection.path / "generation-000001" / name
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(CollectionError, match="not a regular file"):
        Collection.open(collection.path)


def test_a_collection_without_names_for_writes_is_left_as_it_is(collection, encoder):
    last = dataclasses.replace(collection.manifest, generation="generation-999999999")
    last.write(collection.path)
    opened = Collection.open(collection.path, encoder=encoder)
    for write in (
        lambda: opened.upsert([("a", "b")]),
        lambda: opened.upsert([(f"n{number}", "b") for number in range(100)]),
        lambda: opened.delete([*(f"n{number}" for number in range(300)), "tea"]),
        lambda: opened.compact(index="sq8"),
    ):
        with pytest.raises(CollectionError, match="build the collection again"):
            write()
    assert len(Collection.open(collection.path, encoder=encoder)) == 5


@pytest.fixture(params=["sq8", "hnsw", "ivf-pq"])
def stored(request, monkeypatch, tmp_path):
    """An index of each kind: its file and the embeddings."""
    pytest.importorskip("faiss")
    monkeypatch.setattr(index_kinds, "SMALL", 0)
    rows = np.random.default_rng(0).standard_normal((ROWS, WIDTH)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    index = index_kinds.index_class(request.param)
    path = tmp_path / "index.faiss"
    index.build(rows).save(path)
    return index, path, rows


def test_files_of_faiss_are_checked_before_it_reads_them(stored, monkeypatch):
    index, path, rows = stored
    index.load(path, rows)
    content = path.read_bytes()
    for damaged in (content[:-1], content + b"\0", b"", b"IxMp" + content[4:], content[:60]):
        path.write_bytes(damaged)
        with pytest.raises(CollectionError):
            index.load(path, rows)
    for others in (rows[1:], np.hstack([rows, rows[:, :1]])):
        path.write_bytes(content)
        with pytest.raises(CollectionError, match="is damaged: the index is of"):
            index.load(path, others)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="measures memory as Linux reports it")
def test_no_change_of_a_file_of_faiss_takes_memory_or_reads_beyond_it(stored):
    """Lengths and numbers of rows are where single bytes matter; 2 GB are more than any of these files needs."""
    resource = pytest.importorskip("resource")
    index, path, rows = stored
    content, chance = path.read_bytes(), random.Random(0)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**31, hard))
    refused = 0
    try:
        for _ in range(300):
            broken = bytearray(content)
            place = chance.choice((chance.randrange(min(400, len(broken))), chance.randrange(len(broken))))
            broken[place] = chance.randrange(256)
            path.write_bytes(broken)
            try:
                index.load(path, rows).search(rows[:3], 10)
            except EmbedkitError:
                refused += 1
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    assert refused > 5
