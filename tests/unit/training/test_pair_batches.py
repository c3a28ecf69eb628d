import numpy as np
import pytest
import torch

from embedkit.errors import ConfigError
from embedkit.runtime.tokenization import PairTokenizer
from embedkit.training.batches import BatchSource, PairBatchSource, ViewsConfig
from embedkit.training.method import BatchSpec

PLAIN = ViewsConfig(first="none", second="none")


@pytest.fixture
def pair_tokenizer(toy_tokenizer_json):
    return PairTokenizer(toy_tokenizer_json, 16)


@pytest.fixture
def corpus(make_corpus, sentences):
    texts = sentences(14)
    return make_corpus(list(zip(texts[:7], texts[7:], strict=True)))


def rows_of(view):
    """Return ids and types of each row of a view, without padding, in batch order."""
    rows = []
    for (ids, mask), types in zip(view.chunks, view.token_types, strict=True):
        lengths = mask.sum(dim=1).tolist()
        rows += [(i[:n].tolist(), t[:n].tolist()) for i, t, n in zip(ids, types, lengths, strict=True)]
    return [rows[place] for place in view.order.tolist()]


@pytest.mark.parametrize("both_orders", [True, False])
def test_an_epoch_holds_every_pair_in_its_orders_with_its_label(corpus, pair_tokenizer, both_orders):
    labels = np.linspace(0, 1, len(corpus), dtype=np.float32)
    batches = PairBatchSource(corpus, pair_tokenizer, scores=labels, batch_size=7, seed=3, both_orders=both_orders)
    first, second = corpus.texts(range(7), 0), corpus.texts(range(7), 1)
    expected = list(zip(zip(first, second, strict=True), labels.tolist(), strict=True))
    if both_orders:
        expected += list(zip(zip(second, first, strict=True), labels.tolist(), strict=True))
    tokens = pair_tokenizer.tokenize([pair for pair, _ in expected])
    wanted = sorted(zip(tokens.ids, tokens.type_ids, [label for _, label in expected], strict=True))

    found = []
    for step in range(batches.steps_per_epoch):
        batch = batches.batch(step)
        found += [(*row, label) for row, label in zip(rows_of(batch.views[0]), batch.scores.tolist(), strict=True)]

    assert batches.steps_per_epoch == (2 if both_orders else 1)
    assert sorted(found) == wanted


def test_moving_a_batch_moves_types_and_labels(corpus, pair_tokenizer):
    labels = np.zeros(len(corpus), dtype=np.float32)
    batch = PairBatchSource(corpus, pair_tokenizer, scores=labels, batch_size=4, seed=3).batch(0)
    moved = batch.to(torch.device("meta"))
    assert moved.scores.device.type == "meta"
    assert {types.device.type for types in moved.views[0].token_types} == {"meta"}


def test_one_view_is_no_pair(make_corpus, sentences, pair_tokenizer):
    corpus = make_corpus(sentences(6))
    with pytest.raises(ConfigError, match="only one view"):
        PairBatchSource(corpus, pair_tokenizer, scores=np.zeros(6, np.float32), batch_size=2, seed=0)


def test_labels_of_texts_go_with_their_rows(corpus, tokenizer):
    labels = np.linspace(0, 1, len(corpus), dtype=np.float32)
    spec = BatchSpec(views=2, scores=True)
    source = BatchSource(corpus, tokenizer, spec=spec, batch_size=7, seed=1, views=PLAIN, scores=labels)
    batch = source.batch(0)
    by_text = dict(
        zip(map(tuple, tokenizer.tokenize(corpus.texts(range(7), 1)).ids), labels.tolist(), strict=True)
    )
    rows = [
        row[m.bool()].tolist() for ids, mask in batch.views[1].chunks for row, m in zip(ids, mask, strict=True)
    ]
    ordered = [tuple(rows[place]) for place in batch.views[1].order.tolist()]
    assert [by_text[row] for row in ordered] == batch.scores.tolist()


def test_labels_are_returned_only_if_requested(corpus, tokenizer):
    labels = np.zeros(len(corpus), dtype=np.float32)
    plain = BatchSource(corpus, tokenizer, spec=BatchSpec(), batch_size=3, seed=1, views=PLAIN, scores=labels)
    assert plain.batch(0).scores is None
    with pytest.raises(ConfigError, match="learns from labels"):
        BatchSource(corpus, tokenizer, spec=BatchSpec(scores=True), batch_size=3, seed=1, views=PLAIN)
