"""Teachers: each text is encoded once, wherever it occurs; given vectors follow the rows."""

from __future__ import annotations

import numpy as np
import pytest

from embedkit.errors import DataError, TrainingError
from embedkit.runtime.encoder import Encoder
from embedkit.training import teachers as module
from embedkit.training.corpus import Corpus, SourceConfig
from embedkit.training.teachers import AlignedVectors, CachedVectors, TeacherConfig, load_encoder, load_vectors


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

    def test_nothing_is_encoded_again(self, make_corpus, counting_teacher, cache):
        CachedVectors(counting_teacher(), make_corpus(["one", "two"]), cache)
        again = counting_teacher()
        CachedVectors(again, make_corpus(["two", "one"]), cache)
        assert again.asked == []

    def test_another_corpus_adds_only_new_texts(self, make_corpus, counting_teacher, cache):
        CachedVectors(counting_teacher(), make_corpus(["one", "two"]), cache)
        teacher = counting_teacher()
        corpus = make_corpus(["three", "two", "four"])
        vectors = CachedVectors(teacher, corpus, cache)
        assert teacher.asked == ["three", "four"]
        assert np.array_equal(read_all(vectors, corpus)[1], teacher.vector("two"))

    @pytest.mark.parametrize("calls", [0, 1, 3])
    def test_a_kill_loses_only_the_current_chunk(self, make_corpus, counting_teacher, cache, monkeypatch, calls):
        monkeypatch.setattr(module, "_CHUNK", 4)
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

    def test_npy_of_several_views(self, corpus, tmp_path):
        table = self.vectors(6, 2, 4).astype(np.float32)
        np.save(tmp_path / "v.npy", table)
        vectors = AlignedVectors(self.config(tmp_path / "v.npy"), corpus)
        for view in (0, 1):
            assert np.allclose(vectors.read(np.array([1]), view), self.unit(table[[2], view]))

    def test_parquet(self, corpus, tmp_path):
        arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        table = self.vectors(6, 4)
        parquet.write_table(arrow.table({"v": table.tolist()}), tmp_path / "v.parquet")
        vectors = AlignedVectors(self.config(tmp_path / "v.parquet", vector_column="v"), corpus)
        assert np.allclose(vectors.read(np.array([1]), 0), self.unit(table[[2]]), atol=1e-6)

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

    def test_a_missing_column(self, corpus, tmp_path):
        arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(arrow.table({"v": [[1.0]] * 6}), tmp_path / "v.parquet")
        with pytest.raises(DataError, match="cannot read vectors"):
            AlignedVectors(self.config(tmp_path / "v.parquet"), corpus)


class TestLoadEncoder:
    def test_a_bundle(self, toy_bundle, make_corpus, cache):
        corpus, encoder = make_corpus(["a good dog", "the cat"]), Encoder.load(toy_bundle)
        vectors = load_vectors(TeacherConfig(source=str(toy_bundle)), corpus, cache)
        assert (vectors.name, vectors.fingerprint) == ("toy", encoder.fingerprint)
        assert np.allclose(read_all(vectors, corpus), encoder.encode(["a good dog", "the cat"]), atol=1e-6)

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

    def test_a_folder_with_a_prompt_of_its_own(self, make_encoder, tmp_path, make_corpus, cache):
        make_encoder().save(tmp_path / "teacher")
        source, corpus = str(tmp_path / "teacher"), make_corpus(["a good dog"])
        plain, asked = (load_encoder(TeacherConfig(source=source, prompt=prompt)) for prompt in (None, "the cat "))
        assert plain.fingerprint != asked.fingerprint
        assert np.allclose(asked.encode(["a good dog"]), plain.encode(["the cat a good dog"]), atol=1e-6)
        vectors = load_vectors(TeacherConfig(source=source, prompt="the cat "), corpus, cache)
        assert np.allclose(read_all(vectors, corpus), asked.encode(["a good dog"]), atol=1e-6)

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
