"""BERTopic takes embedkit's transformer in a pipeline of scikit-learn, without an adapter of its own."""

from __future__ import annotations

import pytest
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.pipeline import make_pipeline

from embedkit.integrations.sklearn import TextEmbedder

pytestmark = pytest.mark.filterwarnings("ignore")  # BERTopic's dependencies emit many
bertopic = pytest.importorskip("bertopic")

ANIMALS = [
    f"the {animal} sleeps and plays with other animals" for animal in ("dog", "cat", "horse", "cow", "sheep")
]
MONEY = [f"the bank lent money to the {who} at high interest" for who in ("city", "state", "firm", "farm", "shop")]


def test_topics_are_found_and_searched():
    topics = bertopic.BERTopic(
        embedding_model=make_pipeline(TextEmbedder("tiny", threads=1)),
        umap_model=PCA(2),
        hdbscan_model=KMeans(2, n_init=3, random_state=0),
    )
    found, _ = topics.fit_transform(ANIMALS + MONEY)
    assert len(set(found[:5])) == len(set(found[5:])) == 1
    assert found[0] != found[5]
    near, _ = topics.find_topics("a loan with interest", top_n=1)
    assert near == [found[5]]
