"""Teachers: each text is encoded once, wherever it occurs; given vectors follow the rows."""

from __future__ import annotations

import errno
import json
import os
import threading
from pathlib import Path

import numpy as np
import pytest
from toys import write_parquet

from embedkit.errors import CacheError, ConfigError, DataError, StorageError, TrainingError
from embedkit.runtime import batching
from embedkit.runtime.encoder import Encoder
from embedkit.training import teachers as module
from embedkit.training.corpus import Corpus, SourceConfig
from embedkit.training.teachers import (
    AlignedVectors,
    CachedVectors,
    TeacherConfig,
    VectorCache,
    load_encoder,
    load_vectors,
    text_hashes,
)


def read_all(vectors, corpus, view=0):
    return vectors.read(np.arange(len(corpus)), view)


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "vectors-cache"


class TestCachedVectors:
    def test_every_row_gets_the_vector_of_its_text(self, make_corpus, counting_teacher, cache):
        pairs = [("one", "two"), ("three", "one"), ("four", "five")]
        corpus, teacher = make_corpus(pairs), counting_teacher()
        vectors = CachedVectors(teacher, corpus, cache, show_progress=False)
        assert (vectors.name, vectors.fingerprint, vectors.dimension) == ("counting", "a" * 64, 8)
        for view in (0, 1):
            expected = np.stack([teacher.vector(pair[view]) for pair in pairs])
            assert np.array_equal(read_all(vectors, corpus, view), expected)

    def test_a_text_of_both_views_is_encoded_once(self, make_corpus, counting_teacher, cache):
        teacher = counting_teacher()
        CachedVectors(teacher, make_corpus([("one", "two"), ("two", "one"), ("three", "three")]), cache)
        assert sorted(teacher.asked) == ["one", "three", "two"]

    def test_another_corpus_adds_only_new_texts(self, make_corpus, counting_teacher, cache):
        CachedVectors(counting_teacher(), make_corpus(["one", "two"]), cache)
        teacher = counting_teacher()
        corpus = make_corpus(["three", "two", "four"])
        vectors = CachedVectors(teacher, corpus, cache)
        assert teacher.asked == ["three", "four"]
        assert np.array_equal(read_all(vectors, corpus)[1], teacher.vector("two"))

    @pytest.mark.parametrize("calls", [0, 1, 3])
    def test_a_kill_loses_only_the_current_chunk(self, make_corpus, counting_teacher, cache, monkeypatch, calls):
        monkeypatch.setattr(batching, "_CHUNK_ITEMS", 4)
        texts = [f"text {i}" for i in range(18)]
        corpus, killed = make_corpus(texts), counting_teacher()
        encode = killed.encode

        def encode_until_killed(batch):
            if len(killed.asked) >= 4 * calls:
                raise KeyboardInterrupt
            return encode(batch)

        killed.encode = encode_until_killed
        with pytest.raises(KeyboardInterrupt):
            CachedVectors(killed, corpus, cache)
        second = counting_teacher()
        vectors = CachedVectors(second, corpus, cache)
        assert killed.asked + second.asked == texts
        assert np.array_equal(read_all(vectors, corpus), np.stack([second.vector(text) for text in texts]))

    @pytest.mark.parametrize("value", [np.nan, np.inf])
    def test_nan_never_reaches_the_cache(self, make_corpus, counting_teacher, cache, value):
        teacher = counting_teacher()
        teacher.encode = lambda texts: np.full((len(texts), 8), value, dtype=np.float32)
        with pytest.raises(TrainingError, match="not finite"):
            CachedVectors(teacher, make_corpus(["one"]), cache)
        honest = counting_teacher()
        CachedVectors(honest, make_corpus(["one"]), cache)
        assert honest.asked == ["one"]


class TestAligned:
    @pytest.fixture
    def corpus(self, tmp_path):
        """Rows 0, 2 and 5 of six: the others are duplicates. A blank line is no row."""
        path = tmp_path / "texts.txt"
        path.write_text("one\none\n\ntwo\none\ntwo\nthree\n")
        return Corpus.prepare([SourceConfig(path=str(path))], tmp_path)

    def vectors(self, *shape):
        return np.random.default_rng(0).standard_normal(shape)

    def config(self, path, **about):
        return TeacherConfig(**{"source": str(path), "name": "elsewhere", **about})

    def unit(self, rows):
        return (rows / np.linalg.norm(rows, axis=-1, keepdims=True)).astype(np.float32)

    @pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
    def test_npy_follows_the_rows_that_were_read(self, corpus, tmp_path, dtype):
        table = self.vectors(6, 4).astype(dtype)
        np.save(tmp_path / "v.npy", table)
        vectors = load_vectors(self.config(tmp_path / "v.npy"), corpus, tmp_path)
        found = vectors.read(np.array([2, 0, 1]), 0)
        assert found.dtype == np.float32
        assert vectors.dimension == 4
        assert np.allclose(found, self.unit(table[[5, 0, 2]].astype(np.float64)), atol=1e-3)

    def test_npy_of_several_views(self, make_corpus, tmp_path):
        table = self.vectors(3, 2, 4).astype(np.float32)
        np.save(tmp_path / "v.npy", table)
        corpus = make_corpus([("one", "eins"), ("", "nichts"), ("two", "zwei")])
        vectors = AlignedVectors(self.config(tmp_path / "v.npy"), corpus)
        for view in (0, 1):
            assert np.allclose(vectors.read(np.array([1]), view), self.unit(table[[2], view]))

    def test_fingerprint_follows_name_and_content(self, corpus, tmp_path):
        np.save(tmp_path / "a.npy", self.vectors(6, 4))
        np.save(tmp_path / "b.npy", self.vectors(6, 4) + 1)
        configs = [self.config(tmp_path / "a.npy"), self.config(tmp_path / "b.npy")]
        configs.append(self.config(tmp_path / "a.npy", name="other"))
        assert len({AlignedVectors(config, corpus).fingerprint for config in configs}) == 3

    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda v: v(5, 4), "has 5 vectors, but 6 corpus rows were read"),
            (lambda v: v(6), "expected floats of shape"),
            (lambda v: v(6, 2, 4), "has vectors for 2 views, but the corpus has 1"),
            (lambda v: v(6, 4).astype(int), "expected floats of shape"),
            (lambda v: np.array(["a", None], dtype=object), "cannot read vectors"),
        ],
    )
    def test_invalid_requests_are_refused(self, corpus, tmp_path, make, message):
        np.save(tmp_path / "v.npy", make(self.vectors), allow_pickle=True)
        with pytest.raises(DataError, match=message):
            AlignedVectors(self.config(tmp_path / "v.npy"), corpus)

    @pytest.mark.parametrize("value", [0.0, np.nan, np.inf])
    def test_a_zero_vector_is_refused(self, corpus, tmp_path, value):
        table = self.vectors(6, 4)
        table[2] = value
        np.save(tmp_path / "v.npy", table)
        with pytest.raises(DataError, match=r"v\.npy: the vector of row 2, counted from 0, is zero or not finite"):
            AlignedVectors(self.config(tmp_path / "v.npy"), corpus)

    def test_vectors_of_dropped_rows_may_be_zero(self, corpus, tmp_path):
        table = self.vectors(6, 4)
        table[[1, 3, 4]] = 0.0
        np.save(tmp_path / "v.npy", table)
        assert AlignedVectors(self.config(tmp_path / "v.npy"), corpus).dimension == 4

    def test_a_name_must_be_declared(self, corpus, tmp_path):
        with pytest.raises(DataError, match="need a name"):
            AlignedVectors(TeacherConfig(source=str(tmp_path / "v.npy")), corpus)

    @pytest.mark.parametrize("name", ["gone.npy", "gone.parquet"])
    def test_a_missing_file(self, corpus, tmp_path, name):
        with pytest.raises(DataError, match="there is no file"):
            AlignedVectors(self.config(tmp_path / name), corpus)

    @pytest.mark.parametrize("shape", [(6, 4), (6, 1, 4)])
    def test_parquet_is_read_in_batches(self, corpus, tmp_path, monkeypatch, shape):
        monkeypatch.setattr(module, "_CHUNK", 4)
        table = self.vectors(*shape)
        write_parquet(tmp_path / "v.parquet", {"id": [*range(6)], "v": table.tolist()})
        vectors = AlignedVectors(self.config(tmp_path / "v.parquet", vector_column="v"), corpus)
        expected = self.unit(table[[0, 2, 5]])
        assert np.allclose(read_all(vectors, corpus), expected.reshape(3, -1, 4)[:, 0], atol=1e-6)

    @pytest.mark.parametrize("row", [None, [1.0], []])
    def test_a_row_without_a_vector_is_named(self, corpus, tmp_path, monkeypatch, row):
        monkeypatch.setattr(module, "_CHUNK", 2)
        table = self.vectors(6, 4).tolist()
        table[3] = row
        write_parquet(tmp_path / "v.parquet", {"embedding": table})
        with pytest.raises(DataError, match=r"v\.parquet: row 3, counted from 0, holds no vector"):
            AlignedVectors(self.config(tmp_path / "v.parquet"), corpus)

    def test_json_lines_are_read_in_batches(self, corpus, tmp_path, monkeypatch):
        monkeypatch.setattr(module, "_CHUNK", 4)
        table = self.vectors(6, 4)
        lines = [json.dumps({"text": "x", "v": row}) for row in table.tolist()]
        (tmp_path / "v.jsonl").write_text("\n\n".join(lines), encoding="utf-8")
        vectors = AlignedVectors(self.config(tmp_path / "v.jsonl", vector_column="v"), corpus)
        assert np.allclose(read_all(vectors, corpus), self.unit(table[[0, 2, 5]]), atol=1e-6)

    @pytest.mark.parametrize(
        ("line", "message"),
        [
            ('{"v": [1]}', "line 2 has no field embedding; its fields are v"),
            ('{"embedding": [1, 2]}', "row 1, counted from 0, holds no vector"),
            ('{"embedding": ["a"]}', "cannot read vectors"),
        ],
    )
    def test_a_line_without_a_vector_is_named(self, corpus, tmp_path, line, message):
        (tmp_path / "v.jsonl").write_text(f'{{"embedding": [1]}}\n{line}\n', encoding="utf-8")
        with pytest.raises(DataError, match=message):
            AlignedVectors(self.config(tmp_path / "v.jsonl"), corpus)

    def test_a_missing_column(self, corpus, tmp_path):
        write_parquet(tmp_path / "v.parquet", {"id": [0] * 6, "v": [[1.0]] * 6})
        with pytest.raises(DataError, match="it has no column embedding; its columns are id, v"):
            AlignedVectors(self.config(tmp_path / "v.parquet"), corpus)


class TestLoadEncoder:
    @pytest.mark.parametrize("prompt", ["query: ", ""])
    def test_a_bundle_with_a_prompt_of_its_own(self, write_toy_bundle, tmp_path, make_corpus, cache, prompt):
        path = write_toy_bundle(tmp_path / "x.onnx", prompts={"a": "cat "}, default_prompt="a")
        corpus, encoder = make_corpus(["a good dog"]), Encoder.load(path)
        plain = load_vectors(TeacherConfig(source=str(path)), corpus, cache)
        asked = load_vectors(TeacherConfig(source=str(path), prompt=prompt), corpus, cache)
        assert plain.fingerprint == encoder.fingerprint != asked.fingerprint
        assert np.allclose(read_all(plain, corpus), encoder.encode(["a good dog"]), atol=1e-6)
        assert np.allclose(read_all(asked, corpus), encoder.encode(["a good dog"], prompt=prompt), atol=1e-6)
        assert not np.allclose(read_all(asked, corpus), read_all(plain, corpus), atol=1e-3)

    @pytest.mark.parametrize("prompt", [None, "a "])
    def test_the_truncated_texts_of_all_parts_are_one_line(
        self, toy_bundle, make_corpus, cache, prompt, caplog, monkeypatch
    ):
        monkeypatch.setattr(module, "_CHUNK", 2)
        monkeypatch.setattr(batching, "_CHUNK_ITEMS", 2)
        texts = [f"{'the cat ' * 20}{'a dog ' * times}" for times in range(5)]
        corpus, encoder = make_corpus(texts), Encoder.load(toy_bundle)
        vectors = load_vectors(TeacherConfig(source=str(toy_bundle), prompt=prompt), corpus, cache)
        warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
        assert warnings == [f"5 of 5 texts were cut to {encoder.max_length} tokens"]
        assert np.allclose(read_all(vectors, corpus), encoder.encode(texts, prompt=prompt), atol=1e-6)

    def test_a_folder_with_a_prompt_of_its_own(self, make_encoder, tmp_path, make_corpus, cache):
        make_encoder().save(tmp_path / "teacher")
        source, corpus = str(tmp_path / "teacher"), make_corpus(["a good dog"])
        plain, asked = (load_encoder(TeacherConfig(source=source, prompt=prompt)) for prompt in (None, "the cat "))
        assert plain.fingerprint != asked.fingerprint
        assert np.allclose(asked.encode(["a good dog"]), plain.encode(["the cat a good dog"]), atol=1e-6)
        vectors = load_vectors(TeacherConfig(source=source, prompt="the cat "), corpus, cache)
        assert np.allclose(read_all(vectors, corpus), asked.encode(["a good dog"]), atol=1e-6)

    @pytest.mark.parametrize("setting", [{"pooling": "cls"}, {"max_length": 8}])
    def test_a_bundle_cannot_be_read_otherwise(self, toy_bundle, setting):
        with pytest.raises(ConfigError, match=r"is a bundle, which determines both"):
            load_encoder(TeacherConfig(source=str(toy_bundle), **setting))

    def test_cards_name_it_as_configured(self, toy_bundle, make_corpus, cache):
        corpus, config = make_corpus(["one"]), TeacherConfig(source=str(toy_bundle), name="the teacher")
        assert load_vectors(config, corpus, cache, show_progress=False).name == "the teacher"

    def test_a_folder_with_what_the_config_says(self, make_encoder, tmp_path):
        model = make_encoder()
        model.save(tmp_path / "teacher")
        plain = load_encoder(TeacherConfig(source=str(tmp_path / "teacher")))
        assert (plain.name, plain.max_length, plain.fingerprint) == ("teacher", 16, model.fingerprint())
        other = load_encoder(
            TeacherConfig(source=str(tmp_path / "teacher"), name="mine", pooling="cls", max_length=8)
        )
        assert (other.name, other.max_length) == ("mine", 8)
        assert other.fingerprint != plain.fingerprint


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
    def test_a_second_writer_waits_and_finds_what_the_first_has_added(self, open_cache, monkeypatch):
        first, second = open_cache(), open_cache()
        waiting, seen = threading.Event(), []
        monkeypatch.setattr("embedkit.write_lock.logger.info", lambda *_: waiting.set())

        def write():
            with second.writing():
                seen.append(len(second))

        thread = threading.Thread(target=write)
        with first.writing():
            thread.start()
            assert waiting.wait(60)
            first.append(text_hashes(["a"]), np.ones((1, first.dimension), np.float32))
            assert seen == []
        thread.join(250)
        assert seen == [1]

    def test_nothing_is_written_where_nothing_can_be_locked(self, open_cache, monkeypatch):
        cache = open_cache()
        monkeypatch.setattr("embedkit.write_lock._flock", lambda *_, **__: False)
        with pytest.raises(CacheError, match="has no locks"):
            fill(cache)
        assert len(open_cache()) == 0

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


def test_a_complete_cache_may_be_read_only(open_cache, monkeypatch):
    cache = open_cache()
    hashes, rows = text_hashes(TEXTS), np.eye(10, cache.dimension, dtype=np.float32)
    with cache.writing():
        cache.append(hashes, rows)

    def refuse(*_, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Path, "touch", refuse)
    again = open_cache()
    assert np.array_equal(again.read(again.find(hashes)), rows)


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
