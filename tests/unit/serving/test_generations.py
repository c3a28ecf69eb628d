"""Writes of processes that are killed or lack file descriptors, in their own processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from embedkit.serving.retrieval import Collection, embedding, sources
from embedkit.serving.retrieval.store import index_kinds, tail

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="kills with SIGKILL")

# Builds a collection of two texts over an existing one, and kills itself at the named moment.
BUILD = """
import os, runpy, shutil, signal, sys
from pathlib import Path
from embedkit.serving.retrieval import Collection, sources
from embedkit.serving.retrieval.store import segment
from embedkit.write_lock import OpenFolder

conftest, path, moment = sys.argv[1:]
encoder = runpy.run_path(conftest)["WordEncoder"]()
sources._CHUNK = 1

def die(*arguments, **options):
    os.kill(os.getpid(), signal.SIGKILL)

def texts():
    yield "first text"
    if moment == "reading":
        die()
    yield "second text"

def dies_before(owner, name):
    setattr(owner, name, die)

def dies_at_manifest(before):
    def rename_and_die(folder, source, target):
        if target == "manifest.json" and before:
            die()
        rename(folder, source, target)
        if target == "manifest.json":
            die()
    OpenFolder.rename = rename_and_die

def dies_after(owner, name):
    original = getattr(owner, name)
    setattr(owner, name, lambda *arguments, **options: (original(*arguments, **options), die()))

rename = OpenFolder.rename
if moment == "documents written":
    dies_after(segment.DocumentWriter, "finish")
elif moment == "encoding":
    encode = encoder.encode
    encoder.encode = lambda texts: die() if "second text" in texts else encode(texts)
elif moment == "index written":
    dies_after(segment.SegmentWriter, "finish")
elif moment == "generation in place":
    dies_after(OpenFolder, "rename")
elif moment == "manifest written":
    dies_at_manifest(before=True)
elif moment == "manifest in place":
    dies_at_manifest(before=False)
elif moment == "old one half removed":
    remove = os.unlink
    def die_after_one(*arguments, **options):
        remove(*arguments, **options)
        die()
    shutil.os.unlink = die_after_one

Collection.build(texts(), encoder=encoder, path=path, replace=True)
"""

KEEPS_OLD = [
    "reading",
    "documents written",
    "encoding",
    "index written",
    "generation in place",
    "manifest written",
]
HAS_NEW = ["manifest in place", "old one half removed"]


def run(code, *arguments):
    conftest = Path(__file__).with_name("conftest.py")
    root = Path(__file__).parents[3]
    return subprocess.run(
        [sys.executable, "-c", code, conftest, *arguments],
        env=os.environ | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )


def build_and_die(path, moment):
    done = run(BUILD, path, moment)
    assert done.returncode == -signal.SIGKILL, done.stderr


@pytest.mark.parametrize("moment", KEEPS_OLD + HAS_NEW)
def test_a_kill_leaves_the_old_or_the_new_collection(tmp_path, encoder, documents, moment):
    path = tmp_path / "idx"
    Collection.build(documents, encoder=encoder, path=path)
    build_and_die(path, moment)
    survivor = Collection.open(path, encoder=encoder)
    survivor.verify()
    assert len(survivor) == (len(documents) if moment in KEEPS_OLD else 2)
    assert survivor.search("tea", k=1)[0].text in ("tea", "first text", "second text")

    Collection.build(["again"], encoder=encoder, path=path, replace=True)
    assert sorted(entry.name for entry in path.iterdir())[1:] == ["manifest.json"]
    assert encoder.calls[-1] == ["again"]
    assert len(Collection.open(path, encoder=encoder)) == 1


@pytest.mark.parametrize("moment", ["reading", "generation in place", "manifest written"])
def test_a_killed_first_build_can_be_repeated(tmp_path, encoder, moment):
    path = tmp_path / "idx"
    build_and_die(path, moment)
    assert list(path.iterdir())
    Collection.build(["again"], encoder=encoder, path=path, replace=True)
    assert sorted(entry.name for entry in path.iterdir()) == ["generation-000001", "manifest.json"]


@pytest.mark.parametrize("kind", index_kinds.INDEX_KINDS)
def test_files_of_every_kind_are_removed(tmp_path, encoder, monkeypatch, kind):
    pytest.importorskip("faiss")
    monkeypatch.setattr(index_kinds, "SMALL", 0)
    path, documents = tmp_path / "idx", [{"text": f"text {n}", "n": n} for n in range(700)]
    collection = Collection.build(documents, encoder=encoder, path=path, index=kind, lexical=True)
    assert collection.manifest.kinds == (kind,)
    collection.delete("5")
    collection.compact()
    assert sorted(entry.name for entry in path.iterdir()) == ["generation-000003", "manifest.json"]

    (path / "manifest.json").unlink()  # as if a first build had been killed just before it wrote one
    Collection.build(["again"], encoder=encoder, path=path)
    assert sorted(entry.name for entry in path.iterdir()) == ["generation-000001", "manifest.json"]


@pytest.mark.parametrize("processes", [0, 2])
def test_a_killed_build_resumes_with_any_number_of_processes(tmp_path, encoder, monkeypatch, processes):
    path = tmp_path / "idx"
    build_and_die(path, "encoding")
    monkeypatch.setattr(sources, "_CHUNK", 1)
    monkeypatch.setattr(embedding, "_PIECE", 1)
    monkeypatch.setattr(encoder, "processes", processes, raising=False)
    collection = Collection.build(["first text", "second text"], encoder=encoder, path=path)
    assert encoder.calls == [["second text"]]
    assert sorted(entry.name for entry in path.iterdir()) == ["generation-000001", "manifest.json"]
    assert [collection.search(text, k=1)[0].score for text in ("first text", "second text")] == pytest.approx(
        [1, 1]
    )


@pytest.mark.parametrize("other", ["texts", "model", "a file that was cut"])
def test_a_killed_build_resumes_only_with_the_same_documents(tmp_path, encoder, other_encoder, monkeypatch, other):
    path = tmp_path / "idx"
    build_and_die(path, "encoding")
    monkeypatch.setattr(sources, "_CHUNK", 1)
    encoder = other_encoder if other == "model" else encoder
    texts = ["third text", "second text"] if other == "texts" else ["first text", "second text"]
    if other == "a file that was cut":
        (file,) = (path / ".unfinished").iterdir()
        file.write_bytes(file.read_bytes()[:-1])
    Collection.build(texts, encoder=encoder, path=path)
    assert encoder.calls == [[text] for text in texts]


def test_an_interrupted_upsert_resumes(tmp_path, encoder, monkeypatch):
    monkeypatch.setattr(sources, "_CHUNK", 1)
    monkeypatch.setattr(tail, "LARGEST_WRITE", 0)
    collection = Collection.build(["a"], encoder=encoder, path=tmp_path / "idx")
    encode = encoder.encode

    def interrupted(texts):
        if texts == ["c"]:
            raise KeyboardInterrupt
        return encode(texts)

    monkeypatch.setattr(encoder, "encode", interrupted)
    documents = [("1", "b"), ("2", "c")]
    with pytest.raises(KeyboardInterrupt):
        collection.upsert(documents)
    collection.delete("0")
    monkeypatch.setattr(encoder, "encode", encode)
    assert collection.upsert(documents) == (2, 0)
    assert encoder.calls == [["a"], ["b"], ["c"]]
    assert not (collection.path / ".unfinished").exists()


# Upserts documents with few descriptors, and merges them with none, which fails, and then with as few as before.
WRITE = """
import os, resource, runpy, sys
from embedkit.errors import EmbedkitError
from embedkit.serving.retrieval import Collection
from embedkit.serving.retrieval.store import tail

tail.LARGEST_WRITE = 0  # each write makes a segment
conftest, path = sys.argv[1:]
collection = Collection.open(path, encoder=runpy.run_path(conftest)["WordEncoder"]())
collection.upsert([("0", "one")])  # imports what is imported on first use
limit = max(map(int, os.listdir("/dev/fd"))) + 20
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
for number in range(30):
    collection.upsert([(f"d{number}", f"text {number}")], merge=False)
taken = [os.open("/dev/null", os.O_RDONLY) for _ in range(limit - len(os.listdir("/dev/fd")))]
try:
    collection.merge()
except EmbedkitError as error:
    print("Too many open files" in str(error))
for descriptor in taken:
    os.close(descriptor)
collection.merge()
print(len(collection.manifest.segments), len(collection))
"""


def test_segments_need_no_descriptors(tmp_path, encoder):
    Collection.build(["a"], encoder=encoder, path=tmp_path / "idx", lexical=True)
    assert run(WRITE, tmp_path / "idx").stdout == "True\n1 31\n"


# What scripts begin with that count descriptors.
MAPPED = """
import gc, os, resource, runpy, sys
from pathlib import Path
from embedkit.errors import CommittedError, EmbedkitError
from embedkit.serving.retrieval import Collection
from embedkit.serving.retrieval.store import files as stored_files, tail

stored_files.SMALL_BYTES = 0  # all files are mapped, which takes descriptors
conftest, path = sys.argv[1:]
collection = Collection.open(path, encoder=runpy.run_path(conftest)["WordEncoder"]())
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

def close_gaps():  # returns the first free descriptor, above all that are taken
    gc.collect()
    gc.disable()
    highest = max(map(int, os.listdir("/dev/fd")))
    while (free := os.open("/dev/null", os.O_RDONLY)) < highest:
        pass
    os.close(free)
    return free
"""

# Merges with each number of free descriptors until one suffices; none of the failed merges may keep any.
STARVE = """
tail.LARGEST_WRITE = 0  # each write makes a segment
for number in range(4):
    collection.upsert([(f"d{number}", f"text {number}")], merge=False)
free = close_gaps()
opened, messages = os.listdir("/dev/fd"), set()
for number in range(50):
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + number, hard))
    try:
        done = collection.merge()
        break
    except EmbedkitError as error:
        messages.add(str(error).rpartition(": ")[2])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert os.listdir("/dev/fd") == opened
print(done, number > 2, messages, len(collection.manifest.segments), len(collection))
"""


def test_failed_merges_keep_no_descriptors(tmp_path, encoder):
    Collection.build(["a b", "b c", "c d"], encoder=encoder, path=tmp_path / "idx", lexical=True)
    assert run(MAPPED + STARVE, tmp_path / "idx").stdout == "True True {'Too many open files'} 1 7\n"


# Upserts a document with each number of free descriptors, and compares what is reported with what was done.
SCARCE = """
collection.upsert([("a", "one")])  # imports what is imported on first use
free = close_gaps()
wrong, kinds = [], []
for number in range(40):
    before = Collection.describe(path).count
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + number, hard))
    try:
        collection.upsert([(f"d{number}", f"text {number}")])
        reported = "done"
    except EmbedkitError as error:
        reported = "done" if isinstance(error, CommittedError) and "durable" in str(error) else "failed"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    done = Collection.describe(path).count != before
    wrong += [(number, reported, done)] if done != (reported == "done") else []
    kinds.append(reported)
print(wrong, sorted(set(kinds)))
"""


def test_what_an_upsert_reports_without_descriptors_is_what_it_has_done(tmp_path, encoder):
    Collection.build(["a b", "b c"], encoder=encoder, path=tmp_path / "idx", lexical=True)
    assert run(MAPPED + SCARCE, tmp_path / "idx").stdout == "[] ['done', 'failed']\n"
