from __future__ import annotations

import errno
import mmap
import os
import shutil
import sys
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from embedkit.errors import (
    CollectionError,
    DataError,
    InputError,
    MissingExtraError,
    ModelError,
    StorageError,
)
from embedkit.serving.retrieval import Collection, sources
from embedkit.serving.retrieval.store import folder as collection_module
from embedkit.serving.retrieval.store import index_kinds
from embedkit.write_lock import OpenFolder


def generation_of(collection):
    return collection.path / collection.manifest.generation


def snapshot(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# Round trip


def test_more_documents_than_a_chunk(tmp_path, encoder, monkeypatch):
    monkeypatch.setattr(sources, "_CHUNK", 7)
    texts = [f"text {i}" for i in range(24)]
    collection = Collection.build(iter(texts), encoder=encoder, path=tmp_path / "idx")
    assert list(map(len, encoder.calls)) == [7, 7, 7, 3]
    assert [collection.search(text, k=1)[0].id for text in texts] == [str(i) for i in range(24)]
    vectors = np.concatenate(list(collection.store.view().embeddings()))
    np.testing.assert_allclose(vectors, encoder.encode(texts), atol=1e-6)


def test_embeddings_are_mapped_and_not_copied(tmp_path, encoder):
    collection = Collection.build([f"text {n}" for n in range(1100)], encoder=encoder, path=tmp_path)
    base = collection.store.view().segment(collection.manifest.segments[0]).index._rows
    while not (isinstance(base, memoryview) and isinstance(base.obj, mmap.mmap)):
        base = base.base
        assert base is not None


def test_prompts_are_used_where_the_encoder_has_them(tmp_path, prompted_encoder):
    collection = Collection.build(["a b"], encoder=prompted_encoder, path=tmp_path / "idx")
    collection.search("c d")
    assert prompted_encoder.calls == [["passage: a b"], ["query: c d"]]


def test_threads_may_share_a_collection(collection, documents):
    queries = [document["text"] for document in documents] * 8
    expected = [collection.search(query, k=3) for query in queries]
    barrier = threading.Barrier(8)

    def search_all(_):
        barrier.wait()
        return [collection.search(query, k=3) for query in queries]

    with ThreadPoolExecutor(8) as pool:
        assert all(found == expected for found in pool.map(search_all, range(8)))


def test_memory_does_not_grow_with_the_texts(tmp_path, encoder, monkeypatch):
    monkeypatch.setattr(sources, "_CHUNK", 50)
    monkeypatch.setattr(encoder, "encode", lambda texts: np.tile(np.float32([0.6, 0.8]), (len(texts), 8)) / 8**0.5)
    texts = (f"{i} " + "word " * 500 for i in range(2_000))  # 5 MB
    tracemalloc.start()
    try:
        collection = Collection.build(texts, encoder=encoder, path=tmp_path / "idx")
        collection.search("word", k=3)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (generation_of(collection) / "documents.jsonl").stat().st_size > 5e6
    assert peak < 4e6


# Wrong input


@pytest.mark.parametrize(
    ("texts", "error"),
    [
        ([], DataError),
        (["a", ""], DataError),
        ([("x", "a"), ("x", "b")], DataError),
        ([{"body": "a"}], DataError),
        (["a", 3], InputError),
    ],
)
def test_invalid_documents_write_nothing_and_encode_nothing(tmp_path, encoder, texts, error):
    with pytest.raises(error):
        Collection.build(texts, encoder=encoder, path=tmp_path / "idx")
    assert list(tmp_path.iterdir()) == []
    assert encoder.calls == []


def test_an_unknown_index_is_refused_before_anything_is_read(tmp_path, encoder):
    def texts():
        pytest.fail("read")
        yield "a"

    with pytest.raises(InputError, match="no index 'tree'"):
        Collection.build(texts(), encoder=encoder, path=tmp_path / "idx", index="tree")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda rows: rows[:-1], "shape"),
        (lambda rows: rows[:, :-1], "shape"),
        (lambda rows: rows * 2, "length 2"),
        (lambda rows: rows * np.float32("nan"), "length nan"),
    ],
)
def test_an_encoder_that_breaks_its_contract(tmp_path, encoder, monkeypatch, spoil, message):
    encode = encoder.encode
    monkeypatch.setattr(encoder, "encode", lambda texts: spoil(encode(texts)))
    with pytest.raises(ModelError, match=message):
        Collection.build(["a", "b"], encoder=encoder, path=tmp_path / "idx")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("package", "module", "options"),
    [("faiss", "store.ann", {"index": "sq8"})],
)
def test_a_missing_package_is_reported_before_the_work(tmp_path, encoder, monkeypatch, package, module, options):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"embedkit.serving.retrieval.{module}", raising=False)
    with pytest.raises(MissingExtraError, match=rf"{package}.*embedkit-onnx\[serve\]"):
        Collection.build(["a"], encoder=encoder, path=tmp_path / "idx", **options)
    assert list(tmp_path.iterdir()) == []


# Replacing


def test_a_collection_is_replaced_whole(collection, encoder):
    replaced = Collection.build(["new"], encoder=encoder, path=collection.path, replace=True)
    assert {path.name for path in collection.path.iterdir()} == {"manifest.json", "generation-000002"}
    assert len(replaced) == len(Collection.open(collection.path, encoder=encoder)) == 1
    # Readers that still have the old one open continue to read it.
    assert collection.search("tea", k=1)[0].id == "tea"
    assert collection.get("bees").metadata == {"year": 1973}


def test_files_of_others_beside_a_collection_stay(collection, encoder):
    (collection.path / "README").write_text("mine")
    (collection.path / "generation-notes").mkdir()
    Collection.build(["new"], encoder=encoder, path=collection.path, replace=True)
    assert (collection.path / "README").read_text() == "mine"
    assert (collection.path / "generation-notes").is_dir()


@pytest.mark.parametrize(
    "name", ["notes.txt", "manifest.json", "generation-000001", ".hidden", ".generation-000001.part"]
)
def test_a_folder_of_something_else_is_left_alone(tmp_path, encoder, name):
    (tmp_path / name).write_text('{"name": "my app"}')
    before = snapshot(tmp_path)
    with pytest.raises(CollectionError):
        Collection.build(["a"], encoder=encoder, path=tmp_path)
    assert snapshot(tmp_path) == before


def test_a_collection_may_be_built_from_itself(collection, encoder):
    def texts():
        yield from (hit.text for hit in collection.search("tea", k=2))

    assert len(Collection.build(texts(), encoder=encoder, path=collection.path, replace=True)) == 2


def test_a_generation_may_change_while_it_is_opened(collection, encoder, monkeypatch):
    old = collection_module.Manifest.read(collection.path)
    Collection.build(["new"], encoder=encoder, path=collection.path, replace=True)
    manifests = iter([old])
    read = collection_module.Manifest.read
    monkeypatch.setattr(collection_module.Manifest, "read", lambda *given: next(manifests, None) or read(*given))
    assert len(Collection.open(collection.path, encoder=encoder)) == 1


# Failures


class Interruption:
    """Makes an encoder stop at its second chunk, as a Ctrl-C or a full disk would."""

    def __init__(self, encoder, error):
        self.encode, self.error = encoder.encode, error
        encoder.encode = self

    def __call__(self, texts):
        if self.error and "second" in texts:
            raise self.error
        return self.encode(texts)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), MemoryError(), RuntimeError("model")], ids=repr)
def test_an_interrupted_build_leaves_the_old_collection(collection, encoder, monkeypatch, error):
    monkeypatch.setattr(sources, "_CHUNK", 1)
    before = snapshot(collection.path)
    interruption = Interruption(encoder, error)
    with pytest.raises(type(error)):
        Collection.build(["first", "second"], encoder=encoder, path=collection.path, replace=True)
    kept = {path: content for path, content in snapshot(collection.path).items() if path.parts[0] != ".unfinished"}
    assert kept == before
    interruption.error = None
    encoder_calls = len(encoder.calls)
    assert len(Collection.build(["first", "second"], encoder=encoder, path=collection.path, replace=True)) == 2
    assert encoder.calls[encoder_calls:] == [["second"]]
    assert not (collection.path / ".unfinished").exists()


def test_a_permanent_error_keeps_nothing(collection, encoder, monkeypatch):
    monkeypatch.setattr(sources, "_CHUNK", 1)
    Interruption(encoder, ModelError("wrong"))
    before = snapshot(collection.path)
    with pytest.raises(ModelError):
        Collection.build(["first", "second"], encoder=encoder, path=collection.path, replace=True)
    assert snapshot(collection.path) == before


def test_an_interrupted_first_build_leaves_nothing(tmp_path, encoder):
    Interruption(encoder, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        Collection.build(["first", "second"], encoder=encoder, path=tmp_path / "idx")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(params=["documents.jsonl", "arrays.bin", ".manifest.json.", "tail-"])
def full_disk(request, monkeypatch):
    """Any write to one of the files fails."""
    opened, opened_in = Path.open, OpenFolder.open

    def open_on_a_full_disk(path, mode="r", *arguments, **options):
        if path.name.startswith(request.param) and "w" in mode:
            path.touch()
            return opened(Path("/dev/full"), mode, *arguments, **options)
        return opened(path, mode, *arguments, **options)

    def open_in_a_folder_on_a_full_disk(folder, name, flags):
        descriptor = opened_in(folder, name, flags)
        if name.startswith(request.param):
            os.close(descriptor)
            return os.open("/dev/full", os.O_WRONLY)
        return descriptor

    monkeypatch.setattr(Path, "open", open_on_a_full_disk)
    monkeypatch.setattr(OpenFolder, "open", open_in_a_folder_on_a_full_disk)
    return request.param


def test_a_full_disk_leaves_the_old_collection(collection, encoder, full_disk):
    before = snapshot(collection.path)
    writes = {
        "build": lambda: Collection.build(["new"], encoder=encoder, path=collection.path, replace=True),
        "large": lambda: collection.upsert([(f"new {number}", "new") for number in range(100)]),
        "small": lambda: collection.upsert([("new", "new")]),
    }
    for name in {"tail-": ["small"], ".manifest.json.": writes}.get(full_disk, ["build", "large"]):
        with pytest.raises(StorageError, match="No space left") as caught:
            writes[name]()
        assert caught.value.errno == errno.ENOSPC
        assert str(collection.path) in str(caught.value)
        assert {path: content for path, content in snapshot(collection.path).items() if content} == before
        assert len(collection) == 5


# Damage


def data_files(collection):
    return sorted(generation_of(collection).iterdir())


@pytest.mark.parametrize("number", range(2))
@pytest.mark.parametrize("damage", ["truncated", "longer", "empty", "missing", "folder"])
def test_a_file_of_another_length_is_found_at_opening(collection, encoder, number, damage):
    path = data_files(collection)[number]
    content = path.read_bytes()
    path.unlink()
    if damage == "folder":
        path.mkdir()
    elif damage != "missing":
        path.write_bytes({"truncated": content[:-1], "longer": content + b"\0", "empty": b""}[damage])
    with pytest.raises(CollectionError, match=path.name):
        Collection.open(collection.path, encoder=encoder)


@pytest.mark.parametrize("kind", ["sq8", "hnsw", "ivf-pq"])
def test_approximate_kinds_work_the_same_way(tmp_path, encoder, monkeypatch, kind):
    faiss = pytest.importorskip("faiss")
    monkeypatch.setattr(index_kinds, "SMALL", 300)
    texts = [
        (f"{a}{b}", f"{a} {b} word{number}") for number in range(8) for a in "abcdefg" for b in f"klmnop{number}"
    ]
    texts = [(f"{id_}{number}", text) for number, (id_, text) in enumerate(texts)]
    collection = Collection.build(texts, encoder=encoder, path=tmp_path / "idx", index=kind)
    assert collection.manifest.kinds == (kind,)
    collection.upsert([("new", "quite another thing"), (texts[0][0], "replaced")])
    collection.delete([id_ for id_, _ in texts[1:50]])
    collection = Collection.open(collection.path, encoder=encoder)
    for id_, text in texts[50::20]:
        assert id_ in {hit.id for hit in collection.search(text, k=5)}
    assert collection.search("quite another thing", k=1)[0].id == "new"
    assert len(collection.search("a k", k=1000)) == len(collection) == len(texts) - 49 + 1
    collection.compact()
    assert collection.manifest.kinds == (kind,)
    collection.verify()

    name = next(name for name in collection.manifest.segments[0].files if name in NAMES)
    path = generation_of(collection) / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 255
    path.write_bytes(content)
    monkeypatch.setattr(faiss, "read_index", lambda *_: pytest.fail("FAISS reads a damaged file"))
    with pytest.raises(CollectionError, match=rf"{name}.*SHA-256"):
        Collection.open(collection.path)


NAMES = {"sq8.faiss", "signs.npy", "hnsw.faiss", "ivfpq.faiss"}


def test_files_of_two_collections_do_not_mix(tmp_path, encoder):
    documents = [{"text": text, "number": number} for number, text in enumerate(["a b", "c d", "e"])]
    one = Collection.build(documents[:2], encoder=encoder, path=tmp_path / "one")
    other = Collection.build(documents, encoder=encoder, path=tmp_path / "other")
    for path in data_files(other):
        backup = (generation_of(one) / path.name).read_bytes()
        shutil.copy(path, generation_of(one) / path.name)
        with pytest.raises(CollectionError, match=path.name):
            Collection.open(one.path)
        (generation_of(one) / path.name).write_bytes(backup)
    one.verify()


def test_a_manifest_with_other_files_is_refused(collection, encoder):
    manifest = collection.manifest
    manifest.segments[0].files["../../secret"] = manifest.segments[0].files["arrays.bin"]
    manifest.write(collection.path)
    with pytest.raises(CollectionError, match="other files"):
        Collection.open(collection.path, encoder=encoder)
