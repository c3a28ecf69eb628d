"""Similar texts: equal to comparing every pair, with and without an index, for texts and for embeddings."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from embedkit import Collection, Encoder, cluster, deduplicate, similar_pairs
from embedkit.errors import DataError, FingerprintError, InputError
from embedkit.serving.retrieval import matching
from embedkit.serving.retrieval import similar as module
from embedkit.serving.retrieval.store import index_kinds
from embedkit.serving.retrieval.store.protocol import find_source

TEXTS = [
    "a dog in the garden",
    "the sea",
    "a dog in the garden",
    "music",
    "the sea",
    "a dog in the garden",
    "bread",
]


def noisy_groups(count: int, dimension: int, *, seed: int = 0) -> np.ndarray:
    """Unit rows around fewer centres, in few leading dimensions, as embeddings of texts have them."""
    generator = np.random.default_rng(seed)
    scale = 1 / np.sqrt(1 + np.arange(dimension))
    centres = generator.standard_normal((count // 5, dimension)) * scale
    spread = generator.uniform(0.02, 0.8, count)[:, np.newaxis]
    rows = centres[generator.integers(0, len(centres), count)]
    rows = rows + generator.standard_normal((count, dimension)) * scale * spread
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def all_scores(rows: np.ndarray) -> np.ndarray:
    """Cosines of all pairs, each summed by itself in float64 and rounded."""
    scores = np.empty((len(rows), len(rows)), dtype=np.float32)
    for i, row in enumerate(rows):
        scores[i] = (rows.astype(np.float64) * row).sum(axis=1)
    return scores


@pytest.fixture(params=[(512, 4096), (7, 13)], ids=["usual blocks", "small blocks"])
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    for place in (module, matching):
        monkeypatch.setattr(place, "BLOCK", request.param[0])
    monkeypatch.setattr(matching, "_COLUMNS", request.param[1])
    monkeypatch.setattr(module, "_CENTRES", request.param[0])


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("threshold", [0.5, 0.8, 0.95])
class TestEqualsComparingEveryPair:
    @pytest.fixture
    def rows(self) -> np.ndarray:
        return noisy_groups(300, 96)

    def test_pairs(self, rows, threshold):
        scores = all_scores(rows)
        expected = [
            (float(scores[i, j]), i, j)
            for i in range(len(rows))
            for j in range(i + 1, len(rows))
            if scores[i, j] >= np.float32(threshold)
        ]
        expected.sort(key=lambda pair: (-pair[0], pair[1], pair[2]))
        assert len(expected) > 20
        assert list(similar_pairs(rows, threshold=threshold)) == expected
        assert list(similar_pairs(rows, threshold=threshold, max_pairs=17)) == expected[:17]

    def test_texts_without_near_duplicates(self, rows, threshold):
        scores, kept = all_scores(rows), []
        representatives = []
        for row in range(len(rows)):
            near = [(-scores[row, other], other) for other in kept if scores[row, other] >= np.float32(threshold)]
            representatives.append(min(near)[1] if near else row)
            if not near:
                kept.append(row)
        found = deduplicate(rows, threshold=threshold)
        assert found.representatives.tolist() == representatives
        assert found.kept.tolist() == kept
        assert len(kept) < len(rows)
        np.testing.assert_array_equal(
            found.scores[representatives != np.arange(300)],
            [scores[row, other] for row, other in enumerate(representatives) if row != other],
        )
        assert not found.exact.any()

    @pytest.mark.parametrize("min_size", [2, 4])
    def test_clusters(self, rows, threshold, min_size):
        near = all_scores(rows) >= np.float32(threshold)
        np.fill_diagonal(near, val=True)
        clusters, taken = [], set()
        for row in sorted(range(len(rows)), key=lambda row: (-near[row].sum(), row)):
            members = {int(other) for other in np.flatnonzero(near[row])} - taken
            if row not in taken and len(members) >= min_size:
                clusters.append((row, members))
                taken |= members
        assert len(clusters) > 5
        found = cluster(rows, threshold=threshold, min_size=min_size).members(min_size=min_size)
        assert sorted((group[0], set(group)) for group in found) == sorted(clusters)
        assert [len(group) for group in found] == sorted(map(len, found), reverse=True)


def test_a_thousand_equal_rows_have_one_representative():
    rows = np.repeat(noisy_groups(10, 32)[:1], 1000, axis=0)
    assert deduplicate(rows).kept.tolist() == [0]
    assert len(similar_pairs(rows, max_pairs=100)) == 100
    assert [len(group) for group in cluster(rows).members()] == [1000]


@pytest.mark.parametrize("index", ["hnsw", "ivf-pq", "sq8"])
def test_an_index_finds_nearly_the_same(index: str, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("faiss")
    monkeypatch.setattr(index_kinds, "SMALL", 0)
    rows = noisy_groups(3000, 64)
    exact, found = (deduplicate(rows, index=kind) for kind in ("exact", index))
    assert np.mean(exact.representatives == found.representatives) > 0.95
    pairs, some = ({pair[1:] for pair in similar_pairs(rows, index=kind)} for kind in ("exact", index))
    assert some <= pairs
    assert len(some) > 0.95 * len(pairs)
    clusters, near = (cluster(rows, index=kind, threshold=0.9).members() for kind in ("exact", index))
    assert abs(len(clusters) - len(near)) <= 0.05 * len(clusters)


def test_rows_with_more_neighbours_than_an_index_is_asked_for_are_compared_exactly():
    pytest.importorskip("faiss")
    rows = np.concatenate([np.repeat(noisy_groups(10, 32)[:1], 600, axis=0), noisy_groups(300, 32, seed=1)])
    assert deduplicate(rows, index="sq8").kept.tolist() == deduplicate(rows).kept.tolist()


class TestTexts:
    @pytest.fixture
    def encoder(self, toy_bundle: Path) -> Encoder:
        return Encoder.load(toy_bundle)

    def test_exact_copies_are_embedded_once(self, encoder, monkeypatch):
        embedded: list[str] = []
        monkeypatch.setattr(
            module, "embed_texts", lambda texts, model: embedded.extend(texts) or model.encode(texts)
        )
        found = deduplicate(iter(TEXTS), encoder=encoder, threshold=0.9999)
        assert embedded == ["a dog in the garden", "the sea", "music", "bread"]
        assert found.representatives.tolist() == [0, 1, 0, 3, 1, 0, 6]
        assert found.exact.tolist() == [False, False, True, False, True, True, False]
        assert found.kept.tolist() == [0, 1, 3, 6]

    def test_a_copy_is_paired_with_the_first(self, encoder):
        assert list(similar_pairs(TEXTS, encoder=encoder, threshold=0.9999)) == [
            (1.0, 0, 2),
            (1.0, 0, 5),
            (1.0, 1, 4),
        ]

    def test_copies_count_in_clusters(self, encoder):
        assert cluster(TEXTS, encoder=encoder, threshold=0.9999).members() == [[0, 2, 5], [1, 4]]
        assert cluster(TEXTS, encoder=encoder, threshold=0.9999, min_size=3).representatives.tolist() == [
            0,
            -1,
            0,
            -1,
            -1,
            0,
            -1,
        ]

    def test_a_copy_of_a_removed_text_has_its_representative(self, encoder):
        found = deduplicate(["the dog", "the dog .", "the dog ."], encoder=encoder, threshold=0.5)
        assert found.representatives.tolist() == [0, 0, 0]
        assert found.exact.tolist() == [False, False, True]

    @pytest.mark.parametrize("threshold", [-1.0, 0.5, 0.9, 1.0])
    def test_copies_are_counted_whatever_the_threshold(self, encoder, threshold):
        assert deduplicate(TEXTS, encoder=encoder, threshold=threshold).exact.sum() == 3

    def test_long_texts_are_compared_as_a_whole(self, encoder):
        start = "a dog in the garden. " * 4
        texts = [start + "the moon and the sea", start + "bread and milk", f"{start}the moon and the sea ."]
        pairs = similar_pairs(texts, encoder=encoder, threshold=-1.0)
        scores = {(row, other): score for score, row, other in pairs}
        assert scores[0, 2] > 0.9 > scores[0, 1]
        assert deduplicate(texts, encoder=encoder).representatives.tolist() == [0, 1, 0]
        assert cluster(texts, encoder=encoder, threshold=0.9).members() == [[0, 2]]
        truncated = similar_pairs(encoder.encode(texts), threshold=0.9999)
        assert len(truncated) == 3

    def test_windows_equal_comparing_every_pair(self, encoder):
        generator = np.random.default_rng(1)
        words = ["dog", "sea", "moon", "bread", "milk", "bird", "tree", "music"]
        texts = [" ".join(generator.choice(words, generator.integers(1, 40))) for _ in range(40)]
        texts = list(dict.fromkeys(texts))
        parts = [[text[start:stop] for start, stop in encoder.windows([text])[0]] for text in texts]
        rows = [encoder.encode(part).astype(np.float64) for part in parts]
        lengths = [[len(piece) for piece in part] for part in parts]

        def similarity(one: int, other: int) -> float:
            cosines = rows[one] @ rows[other].T
            forward = np.average(cosines.max(axis=1), weights=lengths[one])
            return min(forward, np.average(cosines.max(axis=0), weights=lengths[other]))

        expected = {(i, j): similarity(i, j) for i in range(len(texts)) for j in range(i + 1, len(texts))}
        found = {(row, other): score for score, row, other in similar_pairs(texts, encoder=encoder, threshold=0.6)}
        assert found == pytest.approx({pair: score for pair, score in expected.items() if score >= 0.6}, abs=1e-5)

    def test_a_collection_brings_its_embeddings(self, encoder, tmp_path):
        pytest.importorskip("faiss")
        collection = Collection.build(TEXTS, encoder=encoder, path=tmp_path / "idx")
        assert list(similar_pairs(collection, threshold=0.5)) == list(
            similar_pairs(TEXTS, encoder=encoder, threshold=0.5)
        )

    def test_long_texts_of_a_collection_are_compared_as_a_whole(self, encoder, tmp_path):
        one, other = (" ".join([*["tea pump"] * 40, *[word] * 80]) for word in ("sea", "horse"))
        texts = ["how", one, "the", other, "how", one]
        expected = list(similar_pairs(texts, encoder=encoder, threshold=0.5))
        collection = Collection.build(texts, encoder=encoder, path=tmp_path / "idx")
        assert list(similar_pairs(collection, threshold=0.5)) == expected
        assert (1.0, 1, 3) not in expected

    def test_another_model_is_refused(self, encoder, other_encoder, tmp_path):
        pytest.importorskip("faiss")
        collection = Collection.build(TEXTS, encoder=encoder, path=tmp_path / "idx")
        with pytest.raises(FingerprintError, match="made by toy"):
            deduplicate(collection, encoder=other_encoder)

    def test_no_texts(self, encoder):
        assert len(similar_pairs([], encoder=encoder)) == 0
        assert deduplicate([], encoder=encoder).kept.tolist() == []
        assert cluster([], encoder=encoder).members() == []


def test_equal_embeddings_reach_the_largest_threshold_and_none_exceeds_it():
    rows = noisy_groups(300, 96).repeat(2, axis=0)
    rows *= np.random.default_rng(0).uniform(1 - 4e-4, 1 + 4e-4, (len(rows), 1)).astype(np.float32)
    pairs = similar_pairs(rows, threshold=1.0)
    assert pairs.rows.tolist() == [[row, row + 1] for row in range(0, len(rows), 2)]
    assert similar_pairs(rows, threshold=0.5).scores.max() == 1
    assert len(deduplicate(rows, threshold=1.0).kept) == len(rows) // 2


class TestErrors:
    @pytest.mark.parametrize("find", [similar_pairs, deduplicate, cluster])
    def test_texts_need_an_encoder(self, find):
        with pytest.raises(InputError, match="encoder"):
            find(["a", "b"])

    @pytest.mark.parametrize("threshold", [1.5, -2, float("nan")])
    def test_a_threshold_is_a_cosine(self, threshold):
        with pytest.raises(InputError, match=r"threshold from -1 to 1|threshold must be a number"):
            deduplicate(noisy_groups(10, 8), threshold=threshold)

    def test_embeddings_have_unit_length(self):
        with pytest.raises(DataError, match="embedding 3 has length 2"):
            similar_pairs(noisy_groups(10, 8) * np.where(np.arange(10) == 2, 2, 1)[:, np.newaxis])

    def test_the_wrong_embedding_of_a_document_is_named_by_its_row(self, monkeypatch):
        monkeypatch.setattr("embedkit.serving.retrieval.sources._CHUNK", 4)
        rows = noisy_groups(10, 8) * np.where(np.arange(10) == 6, 2, 1)[:, np.newaxis]
        texts = ["a", "a", *map(str, range(2, 5)), "a", *map(str, range(6, 10))]
        with pytest.raises(DataError, match="embedding 7 has length 2"):
            deduplicate(find_source(texts, rows))
