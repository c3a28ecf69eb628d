"""spaCy's pipelines with embedkit's component."""

from __future__ import annotations

import numpy as np
import pytest

from embedkit import Encoder
from embedkit.errors import InputError, ModelNotFoundError

pytestmark = pytest.mark.filterwarnings("ignore")  # spaCy's dependencies emit many
spacy = pytest.importorskip("spacy")

TEXTS = ["a cat sleeps", "the dog barks", "two cats play"]


@pytest.fixture
def nlp(toy_bundle):
    import embedkit.integrations.spacy  # noqa: F401 - registers the component

    made = spacy.blank("en")
    made.add_pipe("embedkit", config={"model": str(toy_bundle), "truncate_dim": 5})
    return made


@pytest.fixture
def rows(toy_bundle):
    return Encoder.load(toy_bundle).encode(TEXTS, truncate_dim=5)


@pytest.mark.parametrize("batch_size", [1, 2, 100])
def test_vectors_are_the_encoders(nlp, rows, batch_size):
    docs = list(nlp.pipe(TEXTS, batch_size=batch_size))
    np.testing.assert_allclose([doc.vector for doc in docs], rows, atol=1e-6)
    np.testing.assert_allclose(nlp(TEXTS[0]).vector, rows[0], atol=1e-6)
    assert all(doc.has_vector and doc.vector_norm == 1 for doc in docs)


def test_similarities_are_cosines(nlp, rows):
    docs = list(nlp.pipe(TEXTS))
    assert docs[0].similarity(docs[1]) == pytest.approx(float(rows[0] @ rows[1]), abs=1e-5)
    assert docs[0].similarity(docs[0][:]) == pytest.approx(1, abs=1e-5)
    assert docs[1][:2].similarity(docs[1]) == pytest.approx(float(docs[1][:2].vector @ rows[1]), abs=1e-5)


def test_spans_and_tokens_are_embedded_by_their_text(nlp, toy_bundle):
    doc, encoder = nlp("the dog barks"), Encoder.load(toy_bundle)
    np.testing.assert_array_equal(doc[:2].vector, encoder.encode("the dog", truncate_dim=5))
    np.testing.assert_array_equal(doc[1].vector, encoder.encode("dog", truncate_dim=5))


def test_a_pipeline_can_be_stored(nlp, tmp_path):
    nlp.to_disk(tmp_path / "pipeline")
    again = spacy.load(tmp_path / "pipeline")
    np.testing.assert_array_equal(again("a cat").vector, nlp("a cat").vector)


def test_model_and_dimension_can_be_read(nlp, toy_bundle):
    component = nlp.get_pipe("embedkit")
    assert (component.model, component.dimension) == (str(toy_bundle), 5)


def test_mistakes_raise_the_same_errors_as_elsewhere(nlp, tmp_path):
    with pytest.raises(ModelNotFoundError):
        spacy.blank("en").add_pipe("embedkit", config={"model": str(tmp_path / "none.onnx")})
    component = nlp.get_pipe("embedkit")
    for stream in (["a text"], 3):
        with pytest.raises(InputError):
            list(component.pipe(stream))
    with pytest.raises(InputError, match="batch_size"):
        component.pipe([], batch_size=0)
