"""The transformer of scikit-learn: in pipelines, in searches over settings, cloned and pickled."""

from __future__ import annotations

import pickle

import joblib
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline

from embedkit import Encoder
from embedkit.errors import InputError, ModelNotFoundError
from embedkit.integrations.sklearn import TextEmbedder

TEXTS = ["a cat sleeps", "the dog barks", "two cats play", "dogs run fast", "my cat eats", "a dog digs"]
LABELS = [0, 1, 0, 1, 0, 1]


def test_settings_reach_the_encoder():
    embedder = TextEmbedder(truncate_dim=16)
    assert embedder.transform(np.array(TEXTS)).shape == (6, 16)
    assert list(embedder.get_feature_names_out()[:2]) == ["embedding0", "embedding1"]
    assert len(embedder.get_feature_names_out()) == 16


def test_a_pipeline_can_be_searched_cloned_and_pickled():
    search = GridSearchCV(
        make_pipeline(TextEmbedder(threads=1), LogisticRegression()),
        {"textembedder__truncate_dim": [32, None]},
        cv=2,
    )
    fitted = search.fit(TEXTS, LABELS).best_estimator_
    copy = pickle.loads(pickle.dumps(fitted))
    assert list(copy.predict(TEXTS)) == list(fitted.predict(TEXTS)) == LABELS
    assert clone(fitted[0]).get_params() == fitted[0].get_params()


def test_a_changed_setting_is_used_after_loading(tmp_path):
    embedder = TextEmbedder().fit(TEXTS)
    with pytest.raises(ModelNotFoundError):
        embedder.set_params(model=str(tmp_path / "none.onnx")).transform(TEXTS)


def test_one_text_is_refused():
    with pytest.raises(InputError, match="got one str"):
        TextEmbedder().transform("a cat sleeps")


def test_the_cache_of_a_pipeline_distinguishes_models_of_one_path(write_toy_bundle, tmp_path):
    path, found = tmp_path / "model.onnx", []
    for prompts in ({}, {"p": "other words before: "}):
        write_toy_bundle(path, prompts=prompts)
        embedder = TextEmbedder(str(path), threads=1, prompt_name="p" if prompts else None)
        embedder.prompt_name = None
        found.append(joblib.hash(clone(embedder)))
        assert joblib.hash(clone(embedder)) == found[-1]
    assert found[0] != found[1]


def test_an_embedder_whose_model_is_elsewhere_can_be_pickled(tmp_path):
    embedder = pickle.loads(pickle.dumps(TextEmbedder(str(tmp_path / "none.onnx"))))
    assert embedder.get_params()["model"] == str(tmp_path / "none.onnx")
    assert TextEmbedder("tiny").dimension == len(TextEmbedder("tiny").get_feature_names_out())


def test_features_are_the_embeddings():
    rows = TextEmbedder("tiny", threads=1).fit_transform(TEXTS)
    assert np.array_equal(rows, Encoder.load("tiny", threads=1).encode(TEXTS))
