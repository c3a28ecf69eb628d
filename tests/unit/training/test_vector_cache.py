"""The teacher cache: found by text, never mixed, never computed twice, whatever interrupts it."""

from __future__ import annotations

import os

import numpy as np
import pytest

from embedkit.errors import CacheError, StorageError
from embedkit.training.teachers import VectorCache, text_hashes

RECORD_BYTES = 20
TEXTS = [f"text {i}" for i in range(10)]


@pytest.fixture
def open_cache(tmp_path):
    def open_cache(fingerprint="a" * 64, dimension=4, dtype="float32"):
        return VectorCache(tmp_path, fingerprint=fingerprint, dimension=dimension, dtype=dtype)

    return open_cache


def vectors(count, dimension=4, seed=0):
    return np.random.default_rng(seed).standard_normal((count, dimension), dtype=np.float32)


def fill(cache, texts=TEXTS, seed=0):
    rows = vectors(len(texts), cache.dimension, seed)
    with cache.writing():
        cache.append(text_hashes(texts), rows)
    return rows


def get(cache, texts=TEXTS):
    return cache.read(cache.find(text_hashes(texts)))


def test_vectors_are_read_as_written(open_cache):
    cache = open_cache()
    assert cache.find(text_hashes(TEXTS)).tolist() == [-1] * 10
    rows = fill(cache)
    assert len(cache) == 10
    assert np.array_equal(get(cache), rows)
    assert np.array_equal(get(open_cache(), TEXTS[::-1]), rows[::-1])
    assert cache.find(text_hashes(["unknown", TEXTS[3]])).tolist() == [-1, 3]
    assert cache.find(text_hashes([])).tolist() == []


def test_half_precision_is_read_as_float32(open_cache):
    cache = open_cache(dtype="float16")
    rows = fill(cache)
    found = get(cache)
    assert found.dtype == np.float32
    assert np.array_equal(found, rows.astype(np.float16).astype(np.float32))


@pytest.mark.parametrize("other", [{"fingerprint": "b" * 64}, {"dtype": "float16"}, {"dimension": 5}])
def test_another_teacher_or_precision_never_finds_them(open_cache, other):
    fill(open_cache())
    assert len(open_cache(**other)) == 0
    assert len(open_cache()) == 10


def test_a_text_is_found_by_all_its_bytes(open_cache):
    cache = open_cache()
    fill(cache, ["café", "cafe"])
    assert cache.find(text_hashes(["cafe\u0301", "Café", "café "])).tolist() == [-1, -1, -1]


@pytest.mark.parametrize("name", ["vectors.bin", "records.bin"])
def test_a_kill_at_any_byte_loses_only_incomplete_records(open_cache, name):
    """Cut either file anywhere: everything that both hold completely is found, and the rest can be added again."""
    whole = open_cache()
    rows = fill(whole)
    files = {file: (whole.folder / file).read_bytes() for file in ("vectors.bin", "records.bin")}
    row_bytes = {"vectors.bin": 16, "records.bin": RECORD_BYTES}[name]
    for cut in range(len(files[name]) + 1):
        for file, content in files.items():
            (whole.folder / file).write_bytes(content[:cut] if file == name else content)
        cache = open_cache()
        left = cut // row_bytes
        assert (cache.find(text_hashes(TEXTS)) >= 0).tolist() == [True] * left + [False] * (10 - left)
        assert np.array_equal(get(cache, TEXTS[:left]), rows[:left])
        if left < 10:
            with cache.writing():
                cache.append(text_hashes(TEXTS[left:]), rows[left:])
        assert {file: (whole.folder / file).read_bytes() for file in files} == files


def test_every_flipped_byte_of_a_vector_is_reported(open_cache):
    cache = open_cache()
    fill(cache)
    file = cache.folder / "vectors.bin"
    content = file.read_bytes()
    for place in range(0, len(content), 7):
        file.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        damaged = open_cache()
        with pytest.raises(CacheError, match=f"vector {place // 16} is damaged"):
            get(damaged)


def test_a_flipped_byte_of_a_record_never_gives_a_wrong_vector(open_cache):
    cache = open_cache()
    rows = fill(cache)
    file = cache.folder / "records.bin"
    content = file.read_bytes()
    for place in range(len(content)):
        file.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        damaged = open_cache()
        places = damaged.find(text_hashes(TEXTS))
        if (places < 0).any():  # its hash: the text counts as new
            assert np.flatnonzero(places < 0).tolist() == [place // RECORD_BYTES]
            known = places >= 0
            assert np.array_equal(damaged.read(places[known]), rows[known])
        else:  # its checksum
            with pytest.raises(CacheError):
                damaged.read(places)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"format": 1}'])
def test_a_damaged_card_is_reported(open_cache, content):
    cache = open_cache()
    (cache.folder / "cache.json").write_text(content)
    with pytest.raises(CacheError, match="delete"):
        open_cache()


class TestConcurrency:
    def test_a_second_writer_is_refused(self, open_cache):
        first, second = open_cache(), open_cache()
        with first.writing(), pytest.raises(CacheError, match="another process is writing"), second.writing():
            pass
        with second.writing():
            pass

    def test_nothing_is_written_where_nothing_can_be_locked(self, open_cache, monkeypatch):
        cache = open_cache()
        monkeypatch.setattr("embedkit.write_lock._flock", lambda *_: False)
        with pytest.raises(CacheError, match="has no locks"):
            fill(cache)
        assert len(open_cache()) == 0

    def test_a_writer_sees_the_additions_of_another(self, open_cache):
        first, second = open_cache(), open_cache()
        rows = fill(first)
        assert len(second) == 0
        with second.writing():
            assert np.array_equal(get(second), rows)
            second.append(text_hashes(["more"]), rows[:1])
        assert len(open_cache()) == 11

    def test_readers_read_while_one_writes(self, open_cache):
        writer = open_cache()
        rows = fill(writer, TEXTS[:5])
        early = open_cache()
        with writer.writing():
            writer.append(text_hashes(TEXTS[5:]), vectors(5, seed=1))
            late = open_cache()
            assert np.array_equal(get(early, TEXTS[:5]), rows)
            assert np.array_equal(get(late, TEXTS[:5]), rows)
            assert np.array_equal(get(late, TEXTS[5:]), vectors(5, seed=1))


def test_hashes_are_128_bits_of_blake2():
    hashes = text_hashes(["a", "b", "a"])
    assert hashes.shape == (3, 2)
    assert hashes.dtype == np.uint64
    assert hashes[0].tobytes().hex() == "27c35e6e9373877f29e562464e46497e"
    assert np.array_equal(hashes[0], hashes[2])


class TestFullDisk:
    @pytest.mark.parametrize("number", [0, 1], ids=["vectors", "records"])
    def test_is_reported_and_the_cache_stays_usable(self, open_cache, monkeypatch, number):
        cache = open_cache()
        rows = fill(cache, TEXTS[:4])
        syncs, fsync = iter(range(9)), os.fsync

        def fail(file):
            if next(syncs) == number:
                os.truncate(file, os.fstat(file).st_size - 6)  # all but the last bytes were written
                raise OSError(28, "No space left on device")
            fsync(file)

        monkeypatch.setattr(os, "fsync", fail)
        with pytest.raises(StorageError, match="No space left"):
            fill(cache, TEXTS[4:])
        monkeypatch.undo()
        for again in (cache, open_cache()):
            assert np.array_equal(get(again, TEXTS[:4]), rows)
        missing = [text for text in TEXTS if again.find(text_hashes([text]))[0] < 0]
        assert missing
        assert set(missing) <= set(TEXTS[4:])
        fill(again, missing)
        assert len(get(open_cache())) == len(open_cache()) == 10

    def test_a_folder_that_cannot_be_made(self, tmp_path):
        (tmp_path / "vectors").write_text("a file")
        with pytest.raises(StorageError):
            VectorCache(tmp_path, fingerprint="a", dimension=4)
