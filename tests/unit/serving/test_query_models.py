"""Documents embedded by one model and queries by another one of the same space."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from embedkit import Encoder, JoinedEncoder
from embedkit.errors import CollectionError, FingerprintError, InputError, ModelNotFoundError
from embedkit.runtime.joined import JoinedSpace
from embedkit.serving.retrieval import Collection
from embedkit.serving.retrieval.store.manifest import Manifest

from .conftest import DOCUMENTS, WordEncoder
from .test_manifest import forge


class Student(WordEncoder):
    """Returns its teacher's vectors, with some noise or moved to another space."""

    def __init__(self, teacher, name="student", noise=0.2, *, turned=False, teacher_fingerprint=None):
        super().__init__(name, teacher.dimension)
        self._teacher, self._noise, self._turned = teacher, noise, turned
        fingerprint = teacher_fingerprint or teacher.fingerprint
        self.manifest = SimpleNamespace(teacher={"name": teacher.name, "fingerprint": fingerprint}, prompts={})

    def _row(self, text):
        row = self._teacher._row(text)
        row = row / np.linalg.norm(row) + self._noise * super()._row(text) / self.dimension
        return np.roll(row, 1) * np.where(np.arange(self.dimension) % 2, 1, -1) if self._turned else row


@pytest.fixture
def student(encoder):
    return Student(encoder)


@pytest.fixture
def pair(tmp_path, encoder, student):
    return Collection.build(
        DOCUMENTS, encoder=encoder, queries=student, path=tmp_path / "idx", queries_source="student.onnx"
    )


def test_scores_are_those_of_the_two_models(pair, encoder, student):
    found = {hit.id: hit.score for hit in pair.search("bees find home", k=5, mode="dense")}
    query = student.encode(["bees find home"])[0]
    for document in DOCUMENTS:
        expected = query @ encoder.encode([document["text"]])[0]
        assert found[document["id"]] == pytest.approx(expected, abs=1e-6)


def test_the_manifest_knows_both(pair, encoder, student):
    manifest = Manifest.read(pair.path)
    assert (manifest.model, manifest.fingerprint) == (encoder.name, encoder.fingerprint)
    queries = manifest.queries
    assert (queries.model, queries.source, queries.fingerprint) == ("student", "student.onnx", student.fingerprint)
    assert 0.5 < queries.agreement < 1


def test_writes_keep_it(pair):
    before = pair.manifest.queries
    pair.upsert([("wasps", "wasps and bees")])
    pair.delete("tea")
    pair.compact()
    assert pair.manifest.queries == before
    assert pair.search("wasps and bees")[0].id == "wasps"


def test_the_students_suffices_to_search_and_not_to_write(pair, student):
    opened = Collection.open(pair.path, queries=student)
    assert opened.search("tea")[0].id == "tea"
    with pytest.raises(InputError, match=r"without an encoder for its documents.* words"):
        opened.upsert([("x", "y")])


def test_the_documents_model_searches_too(pair, encoder, student):
    assert Collection.open(pair.path, encoder=encoder).search("tea", mode="dense")[0].score == pytest.approx(1)
    opened = Collection.open(pair.path, queries=encoder)
    opened.upsert([("x", "y")])
    assert opened.search("y")[0].id == "x"
    with pytest.raises(FingerprintError, match="open the collection with queries="):
        Collection.open(pair.path, encoder=student)


def test_a_student_searches_what_only_its_teacher_built(tmp_path, encoder, student):
    Collection.build(DOCUMENTS, encoder=encoder, path=tmp_path / "idx")
    assert Collection.open(tmp_path / "idx", queries=student).search("tea")[0].id == "tea"


def test_students_of_one_teacher_belong_together(tmp_path, encoder, student):
    larger = Student(encoder, "larger", noise=0.1)
    built = Collection.build(DOCUMENTS, encoder=larger, queries=student, path=tmp_path / "idx")
    assert built.search("tea")[0].id == "tea"
    assert Collection.open(built.path, queries=student).search("tea")[0].id == "tea"


def test_strangers_are_refused_and_nothing_is_left(tmp_path, encoder, other_encoder):
    message = r"the same 5 documents with a mean cosine of -?0\.\d\d"
    with pytest.raises(FingerprintError, match=message):
        Collection.build(DOCUMENTS, encoder=encoder, queries=other_encoder, path=tmp_path / "idx")
    assert not (tmp_path / "idx").exists()
    Collection.build(DOCUMENTS, encoder=encoder, path=tmp_path / "idx")
    with pytest.raises(FingerprintError, match=message):
        Collection.open(tmp_path / "idx", queries=Student(encoder, turned=True))


def test_joined_teachers_embed_documents_for_their_student(tmp_path, encoder, other_encoder):
    """The student records the joined teacher, not one of the two."""
    axes = np.linalg.qr(np.random.default_rng(0).standard_normal((32, 16)))[0].astype(np.float32)
    means = (np.zeros(16, dtype=np.float32),) * 2
    space = JoinedSpace(name="words + others", means=means, weights=np.ones(2, dtype=np.float32), axes=axes)
    space.save(tmp_path / "space.npz")
    teachers = JoinedEncoder([encoder, other_encoder], tmp_path / "space.npz")
    student = Student(encoder)
    student.manifest.teacher.update(name=teachers.name, fingerprint=teachers.fingerprint)
    student.encode = teachers.encode
    built = Collection.build(DOCUMENTS, encoder=teachers, queries=student, path=tmp_path / "idx")
    assert built.search("tea")[0].id == "tea"
    assert Collection.open(built.path, queries=student).search("tea", mode="dense")[0].score == pytest.approx(1)


def test_a_student_of_another_width_is_refused(tmp_path, encoder):
    narrow = Student(encoder)
    narrow.dimension = 8
    with pytest.raises(FingerprintError, match="gives 8 dimensions"):
        Collection.build(DOCUMENTS, encoder=encoder, queries=narrow, path=tmp_path / "idx")


def test_a_collection_rebuilt_for_strangers_is_seen(pair, student, other_encoder):
    opened = Collection.open(pair.path, queries=student)
    Collection.build(DOCUMENTS, encoder=other_encoder, path=pair.path, replace=True)
    with pytest.raises(FingerprintError, match="other-words"):
        opened.refresh()


def test_a_collection_rebuilt_for_strangers_is_refused_by_a_model_that_it_did_not_name(
    tmp_path, encoder, student, other_encoder
):
    Collection.build(DOCUMENTS, encoder=encoder, path=tmp_path / "idx")
    opened = Collection.open(tmp_path / "idx", queries=student)
    Collection.build(DOCUMENTS, encoder=other_encoder, path=tmp_path / "idx", replace=True)
    for _ in range(2):
        with pytest.raises(FingerprintError, match="other-words"):
            opened.refresh()


@pytest.mark.parametrize("value", ["t", {}, {"model": "t", "source": 1, "fingerprint": "e", "agreement": 0.9}])
def test_malformed_query_models_are_damage(tmp_path, value):
    forge(tmp_path, queries=value)
    with pytest.raises(CollectionError, match="is damaged: queries"):
        Manifest.read(tmp_path)


def test_a_model_can_be_named_and_is_found_again(toy_bundle, write_toy_bundle, tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(toy_bundle.read_bytes())
    built = Collection.build([("a", "a dog"), ("b", "the sea")], encoder=str(path), path=tmp_path / "idx")
    assert built.search("a dog", 1)[0].id == "a"
    assert Collection.describe(tmp_path / "idx").source == str(path)
    opened = Collection.open(tmp_path / "idx")
    assert opened.search("a dog", 1)[0].id == "a"
    assert opened.upsert([("c", "a red ship")]) == (1, 0)
    assert Collection.open(tmp_path / "idx", encoder=path).search("a red ship", 1)[0].id == "c"

    write_toy_bundle(path, name="other")
    with pytest.raises(FingerprintError, match=r"was built with toy .* is other .*; build it again with"):
        Collection.open(tmp_path / "idx").search("a dog")
    path.unlink()
    with pytest.raises(InputError, match="opened without an encoder, and the collection was built with toy"):
        Collection.open(tmp_path / "idx").search("a dog")


def test_recorded_models_are_loaded_once(toy_bundle, write_toy_bundle, tmp_path, monkeypatch):
    teacher = {"name": "toy", "fingerprint": Encoder.load(toy_bundle).fingerprint}
    student = write_toy_bundle(tmp_path / "student.onnx", name="student", teacher=teacher)
    documents = [("a", "a good dog"), ("b", "the cat is asleep")]
    Collection.build(documents, encoder=toy_bundle, queries=student, path=tmp_path / "idx")
    load, named = Encoder.load, []
    monkeypatch.setattr(Encoder, "load", lambda source: named.append(source) or load(source))
    collection = Collection.open(tmp_path / "idx")
    for number in range(3):
        collection.upsert([(str(number), "snow and ice")])
        assert collection.search("a good dog", k=1)[0].id == "a"
    assert named == [str(toy_bundle), str(student)]


def test_the_place_of_a_loaded_model_is_recorded(toy_bundle, tmp_path):
    Collection.build(["a dog", "the sea"], encoder=Encoder.load(toy_bundle), path=tmp_path / "idx")
    assert Collection.open(tmp_path / "idx").search("the sea", 1)[0].text == "the sea"


def test_a_student_searches_what_another_student_of_its_teacher_built(write_toy_bundle, tmp_path):
    paths = [tmp_path / "larger.onnx", tmp_path / "small.onnx"]
    larger, small = (
        Encoder.load(write_toy_bundle(path, name=path.stem, teacher={"name": "teacher", "fingerprint": "f" * 64}))
        for path in paths
    )
    Collection.build(["a dog", "the sea"], encoder=larger, path=tmp_path / "idx")
    assert Collection.open(tmp_path / "idx", queries=small).search("the sea", 1)[0].text == "the sea"


def test_a_collection_rebuilt_with_another_model_gets_that_model(toy_bundle, write_toy_bundle, tmp_path):
    Collection.build(["a dog", "the sea"], encoder=toy_bundle, path=tmp_path / "idx")
    opened = Collection.open(tmp_path / "idx")
    opened.search("a dog")
    other = write_toy_bundle(tmp_path / "other.onnx", name="other", prompts={"query": "the "})
    Collection.build(["a dog", "the sea"], encoder=other, path=tmp_path / "idx", replace=True)
    assert opened.refresh()
    np.testing.assert_array_equal(opened.encode_queries(["sea"]), Encoder.load(other).encode_query(["sea"]))


@pytest.mark.parametrize("encoder", [None, 3, Encoder, "no-such-model"])
def test_what_is_no_model_is_refused(encoder, tmp_path):
    with pytest.raises((InputError, ModelNotFoundError), match=r"encoder must be|no model is called"):
        Collection.build(["a dog"], encoder=encoder, path=tmp_path / "idx")
