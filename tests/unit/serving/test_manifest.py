from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest

from embedkit.errors import CollectionError
from embedkit.serving.retrieval.store.files import Checksum
from embedkit.serving.retrieval.store.keywords import PostingsSize
from embedkit.serving.retrieval.store.manifest import (
    ARRAYS,
    DOCUMENTS,
    FORMAT,
    Manifest,
    SegmentEntry,
    Tombstones,
    _checksum,
)

FILES = (DOCUMENTS, ARRAYS)
MANIFEST = Manifest(
    model="tiny ü",
    source=None,
    fingerprint="f" * 64,
    dimension=16,
    index="exact",
    lexical=True,
    language="auto",
    generation="generation-000004",
    segments=(
        SegmentEntry(
            generation="generation-000002",
            count=5,
            index="sq8",
            files={name: Checksum(7, "0" * 64) for name in FILES},
            deleted=Tombstones(generation="generation-000003", count=2, checksum=Checksum(3, "1" * 64)),
        ),
        SegmentEntry(
            generation="generation-000004",
            count=1,
            index="exact",
            files={name: Checksum(8, "2" * 64) for name in FILES},
            words=PostingsSize(terms=0, postings=0, analyzer="none", version=3),
        ),
    ),
    tail=None,
    prompts={"query": "q: "},
    created_by="embedkit 0",
    numerics=("embedkit-1", "onnxruntime-1"),
)


def forge(folder, **changes):
    """Change fields and seal the manifest again, as an attacker would."""
    MANIFEST.write(folder)
    fields = json.loads((folder / "manifest.json").read_text())
    del fields["checksum"]
    fields |= changes
    fields = {name: value for name, value in fields.items() if value is not ...}
    fields["checksum"] = _checksum(fields)
    (folder / "manifest.json").write_text(json.dumps(fields))


def test_written_values_are_read_back(tmp_path):
    MANIFEST.write(tmp_path)
    assert Manifest.read(tmp_path) == MANIFEST


@pytest.mark.parametrize("name", ["nothing", "nothing/at/all", "file/below"])
def test_no_collection(tmp_path, name):
    (tmp_path / "file").touch()
    with pytest.raises(CollectionError, match=r"no collection at .*index build"):
        Manifest.read(tmp_path / name)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"null",
        b"[]",
        b'{"name": "my app", "short_name": "app"}',
        b"[" * 100_000,
        b" " * 2**21,
    ],
)
def test_another_file_is_refused(tmp_path, content):
    (tmp_path / "manifest.json").write_bytes(content)
    with pytest.raises(CollectionError, match=r"manifest\.json is not the manifest of a collection"):
        Manifest.read(tmp_path)


@pytest.mark.parametrize("make", [Path.mkdir, getattr(os, "mkfifo", Path.mkdir)])
def test_what_is_no_regular_file_is_refused(tmp_path, make):
    """A pipe would wait for a writer."""
    make(tmp_path / "manifest.json")
    with pytest.raises(CollectionError, match=r"cannot read .*manifest\.json"):
        Manifest.read(tmp_path)


@pytest.mark.parametrize(
    ("version", "way_out"),
    [(FORMAT + 1, "upgrade embedkit"), (FORMAT - 1, "build the collection again"), (0, "again")],
)
def test_another_format_has_a_way_out(tmp_path, version, way_out):
    forge(tmp_path, **{"embedkit.collection": version, "segments": "another form"})
    with pytest.raises(CollectionError, match=way_out):
        Manifest.read(tmp_path)


def test_a_tail_decides_the_count(tmp_path):
    tail = {"name": "tail-000004.log", "bytes": 100, "count": 7}
    forge(tmp_path, tail=tail)
    assert Manifest.read(tmp_path).count == 7
    assert Manifest.read(tmp_path).names == {*MANIFEST.names, "tail-000004.log"}


def test_after_the_last_possible_write_there_is_no_other(tmp_path):
    forge(tmp_path, generation="generation-999999998")
    names = Manifest.read(tmp_path).next_generations()
    assert next(names) == "generation-999999999"
    with pytest.raises(CollectionError, match="build the collection again"):
        next(names)


def test_a_change_is_noticed(tmp_path):
    MANIFEST.write(tmp_path)
    path = tmp_path / "manifest.json"
    path.write_text(path.read_text().replace('"dimension": 16', '"dimension": 17'))
    with pytest.raises(CollectionError, match="changed after it was written"):
        Manifest.read(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"generation": "../../etc"},
        {"dimension": -1},
        {"index": "pickle"},
        {"model": None},
        {"prompts": {"query": 1}},
        {"created_by": ...},
        {"segments": [[]]},
        {"tail": {"name": "../../etc", "bytes": 1, "count": 1}},
        {"tail": {"name": "tail-000001.log", "bytes": -1, "count": 1}},
        {"numerics": "embedkit-1"},
        {"embedkit.collection": "1"},
    ],
    ids=str,
)
def test_a_sealed_but_impossible_field_is_refused(tmp_path, change):
    forge(tmp_path, **change)
    with pytest.raises(CollectionError, match="damaged"):
        Manifest.read(tmp_path)


SEAL = {"bytes": 1, "sha256": "0" * 64}
SEGMENT = {
    "generation": "generation-000001",
    "count": 3,
    "index": "exact",
    "files": dict.fromkeys(FILES, SEAL),
    "deleted": None,
    "words": None,
}
BURIED = {"generation": "generation-000002", "count": 1, "checksum": SEAL}


def test_the_segment_below_is_possible(tmp_path):
    forge(tmp_path, segments=[SEGMENT | {"deleted": BURIED}])
    assert Manifest.read(tmp_path).count == 2


@pytest.mark.parametrize(
    "change",
    [
        {"count": 0},
        {"generation": "../../etc"},
        {"index": "pickle"},
        {"more": 1},
        {"files": {}},
        {"files": {DOCUMENTS: SEAL}},
        {"files": dict.fromkeys(FILES, SEAL | {"sha256": "x" * 64})},
        {"files": dict.fromkeys(FILES, SEAL | {"bytes": -1})},
        {"files": {name: {"bytes": 1} for name in FILES}},
        {"words": {"terms": -1, "postings": 0}},
        {"deleted": BURIED | {"count": 4}},
        {"deleted": BURIED | {"generation": "generation"}},
    ],
    ids=str,
)
def test_an_impossible_segment_is_refused(tmp_path, change):
    forge(tmp_path, segments=[SEGMENT | change])
    with pytest.raises(CollectionError, match="is damaged"):
        Manifest.read(tmp_path)


def test_a_segment_counts_once(tmp_path):
    forge(tmp_path, segments=[SEGMENT, SEGMENT])
    with pytest.raises(CollectionError, match="is damaged"):
        Manifest.read(tmp_path)


def test_any_damage_is_noticed_or_harmless(tmp_path):
    MANIFEST.write(tmp_path)
    path, chance = tmp_path / "manifest.json", random.Random(0)
    original = path.read_bytes()
    refused = 0
    for _ in range(400):
        content = bytearray(original)
        for _ in range(chance.choice((1, 1, 3))):
            content[chance.randrange(len(content))] = chance.randrange(256)
        path.write_bytes(content[: chance.choice((len(content), chance.randrange(len(content))))])
        try:
            assert Manifest.read(tmp_path) == MANIFEST
        except CollectionError:
            refused += 1
    assert refused > 350


def test_a_seal_notices_length_and_content(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    seal = Checksum.of(path)
    seal.check(path)
    path.write_bytes(b"abd")
    with pytest.raises(CollectionError, match="SHA-256"):
        seal.check(path)
    path.write_bytes(b"ab")
    with pytest.raises(CollectionError, match="expected 3 bytes, found 2"):
        seal.check(path)
    path.unlink()
    with pytest.raises(CollectionError, match="cannot read"):
        seal.check(path)
