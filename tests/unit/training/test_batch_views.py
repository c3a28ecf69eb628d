"""Batches: which views they hold, and that they depend only on corpus, seed and step."""

from __future__ import annotations

import pytest

from embedkit.errors import ConfigError
from embedkit.runtime.tokenization import Tokenizer
from embedkit.training.batches import BatchSource, ViewsConfig
from embedkit.training.corpus import Corpus, SourceConfig
from embedkit.training.method import BatchSpec

POSITIVES = ("none", "shuffle", "inversion", "deletion", "repetition")
TEXTS = [
    (f"{who} {what} in the green garden by the sea", f"now {who} {what}")
    for who in ("the old cat", "my sister", "a king")
    for what in ("runs", "sings", "will sleep")
]


@pytest.fixture
def make(toy_tokenizer_json, tmp_path):
    path = tmp_path / "texts.tsv"
    path.write_text("".join("\t".join(row) + "\n" for row in TEXTS), encoding="utf-8")
    corpus = Corpus.prepare([SourceConfig(path=str(path))], tmp_path)
    tokenizer = Tokenizer(toy_tokenizer_json, 16)

    def make(spec, *, batch_size=4, seed=5, **views):
        return BatchSource(
            corpus, tokenizer, spec=spec, batch_size=batch_size, seed=seed, views=ViewsConfig(**views)
        )

    return make


def rows(view):
    """Return a view's token ids, in batch order, without padding."""
    ids = [row[kept.bool()].tolist() for chunk, mask in view.chunks for row, kept in zip(chunk, mask, strict=True)]
    return [ids[place] for place in view.order.tolist()]


def all_rows(batch):
    return [rows(view) for view in batch.views]


def test_positives_follow_the_anchor_and_are_made_from_it(make):
    anchors, copies, shuffled, inverted, shorter, longer = all_rows(make(BatchSpec(positives=POSITIVES)).batch(0))
    assert copies == anchors
    assert shuffled != anchors
    assert [sorted(row) for row in shuffled] == [sorted(row) for row in anchors]
    assert inverted == [[row[0], *row[-2:0:-1], row[-1]] for row in anchors]
    assert all(len(row) < len(anchor) for row, anchor in zip(shorter, anchors, strict=True))
    assert all(len(row) > len(anchor) for row, anchor in zip(longer, anchors, strict=True))


def test_the_users_list_replaces_the_methods(make):
    batch = make(BatchSpec(positives=POSITIVES), positives=("inversion", "none")).batch(0)
    anchors, inverted, copies = all_rows(batch)
    assert copies == anchors
    assert inverted == [[row[0], *row[-2:0:-1], row[-1]] for row in anchors]


def test_views_are_the_same_with_and_without_positives(make):
    plain = make(BatchSpec(views=2), first="repetition", second="span")
    more = make(BatchSpec(views=2, positives=POSITIVES), first="repetition", second="span")
    for step in range(4):
        first, second, *positives = all_rows(more.batch(step))
        assert [first, second] == all_rows(plain.batch(step))
        assert len(positives) == len(POSITIVES)


def test_a_repeated_name_is_drawn_again(make):
    _, one, two = all_rows(make(BatchSpec(positives=("shuffle", "shuffle"))).batch(0))
    assert one != two


def test_an_unused_list_is_refused(make):
    with pytest.raises(ConfigError, match=r"uses no positives; remove views\.positives"):
        make(BatchSpec(views=2), positives=("none",))


@pytest.mark.parametrize("size", [1, 2])
def test_a_batch_too_small_for_the_method_is_refused(make, size):
    with pytest.raises(ConfigError, match=rf"batches of at least 3 rows, not optim\.batch_size = {size}"):
        make(BatchSpec(rows=3), batch_size=size)
