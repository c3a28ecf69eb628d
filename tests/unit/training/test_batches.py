"""Batches: a pure function of the step, independent of earlier requests and threads."""

from __future__ import annotations

import threading
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from toys import refuse_conditions

from embedkit.errors import ConfigError, InputError
from embedkit.runtime.tokenization import PairTokenizer, Tokens
from embedkit.training import batches
from embedkit.training.batches import (
    AUGMENTATIONS,
    BatchSource,
    PairBatchSource,
    ViewsConfig,
    augment,
    check_batches,
    chunk_view,
)
from embedkit.training.method import BatchSpec, pooled


class RowNumbers:
    """A teacher whose vector for a row encodes the row and the view."""

    name, fingerprint, dimension = "rows", "0" * 64, 2

    def __init__(self):
        self.asked = 0

    def read(self, rows, view):
        self.asked += 1
        return np.stack([rows, np.full(len(rows), view)], axis=1).astype(np.float32)


@pytest.fixture
def make(make_corpus, sentences, tokenizer):
    def make(rows=23, *, spec=None, pairs=False, views=2, teacher=False, batch_size=5, seed=0, **about):
        texts = sentences(rows)
        corpus = make_corpus([(text, f"now {text}") for text in texts] if pairs else texts)
        return BatchSource(
            corpus,
            tokenizer,
            spec=spec or BatchSpec(views=views, teacher=teacher),
            batch_size=batch_size,
            seed=seed,
            views=ViewsConfig(**about),
            teachers=[RowNumbers()] if teacher else [],
        )

    return make


def rows_of(view):
    """Return the token ids of each text in batch order, without padding."""
    rows = [ids[mask.bool()].tolist() for chunk in view.chunks for ids, mask in zip(*chunk, strict=True)]
    return [rows[place] for place in view.order.tolist()]


def content(batch):
    return [rows_of(view) for view in batch.views], [vectors.tolist() for vectors in batch.teacher]


def test_a_batch_is_a_function_of_its_step(make):
    options = {"pairs": True, "teacher": True, "second": "deletion"}
    source = make(**options)
    forwards = [content(source.batch(step)) for step in range(12)]
    assert forwards == [content(make(**options).batch(step)) for step in reversed(range(12))][::-1]
    assert forwards == [content(batch) for batch in source.stream(0, 12)]
    assert forwards[5:9] == [content(batch) for batch in source.stream(5, 9)]


def test_seeds_change_order_and_augmentation(make):
    assert content(make(seed=0).batch(0)) != content(make(seed=1).batch(0))


def test_every_epoch_is_a_new_permutation(make):
    source = make(20, teacher=True)
    assert source.steps_per_epoch == 4
    epochs = [
        [int(row) for step in range(4 * epoch, 4 * epoch + 4) for row in source.batch(step).teacher[0][:, 0]]
        for epoch in range(3)
    ]
    assert all(sorted(epoch) == list(range(20)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3


def test_rows_of_text_and_teacher_belong_together(make, sentences, tokenizer):
    source = make(pairs=True, teacher=True)
    texts = sentences(23)
    for step in range(6):
        batch = source.batch(step)
        for view, prefix in enumerate(("", "now ")):
            rows = batch.teacher[view][:, 0].int().tolist()
            assert batch.teacher[view][:, 1].tolist() == [view] * 5
            assert rows_of(batch.views[view]) == tokenizer.tokenize([prefix + texts[row] for row in rows]).ids


def test_one_column_serves_both_views_and_is_read_once(make, monkeypatch):
    source = make(teacher=True)
    tokenized = []
    tokenize = type(source._tokenizer).tokenize
    monkeypatch.setattr(type(source._tokenizer), "tokenize", lambda *a: tokenized.append(1) or tokenize(*a))
    batch = source.batch(0)
    assert batch.teacher[0] is batch.teacher[1]
    assert (len(tokenized), source._teachers[0].asked) == (1, 1)
    assert rows_of(batch.views[0]) == rows_of(batch.views[1])


def test_embeddings_come_back_in_batch_order(make, make_encoder, tokenizer, monkeypatch):
    """Chunks of similar length change only the amount of padding."""
    monkeypatch.setattr(batches, "_CHUNK_TOKENS", 8)
    encoder, source = make_encoder().eval(), make(batch_size=11)
    view = source.batch(0).views[0]
    assert len(view.chunks) > 2
    plain = tokenizer.pad(rows_of(view))
    with torch.no_grad():
        expected = encoder.pooled(torch.from_numpy(plain.input_ids), torch.from_numpy(plain.attention_mask))
        assert torch.allclose(pooled(encoder, view), expected, atol=1e-6)
    assert sum(ids.numel() for ids, _ in view.chunks) < plain.input_ids.size


def test_a_gpu_gets_chunks_of_few_shapes(make, make_encoder):
    encoder, source = make_encoder().eval(), make(batch_size=11)
    views = [source.batch(0).views[0]]

    source.on_gpu = True

    views.append(source.batch(0).views[0])
    limit = source._tokenizer.max_length
    assert [len(ids) for ids, _ in views[1].chunks] == [3, 3, 3, 2]
    assert {ids.shape[1] for ids, _ in views[1].chunks} <= {*range(16, limit, 16), limit}
    with torch.no_grad():
        first, second = (pooled(encoder, view) for view in views)
    assert torch.allclose(first, second, atol=1e-6)


def test_chunks_have_little_padding_or_few_tokens(tokenizer):
    lengths = np.random.default_rng(0).integers(3, 17, size=200)
    view = chunk_view(Tokens([[5] * length for length in lengths], []), tokenizer.pad_id)
    tokens = np.array([int(mask.sum()) for _, mask in view.chunks])
    padded = np.array([mask.numel() for _, mask in view.chunks])
    assert tokens.sum() == lengths.sum()
    assert ((padded <= 1.1 * tokens) | (tokens < 128 + 16)).all()
    assert len(tokens) < 20


class TestStream:
    def alive(self):
        return [thread for thread in threading.enumerate() if thread.name == "embedkit-batches"]

    def test_its_thread_ends_when_it_is_closed_early(self, make):
        stream = make().stream(0, 10_000)
        next(stream)
        assert self.alive()
        stream.close()
        assert not self.alive()

    def test_no_lock_is_taken_that_ctrl_c_could_leave_locked(self, make, monkeypatch):
        stream = make().stream(0, 6)
        next(stream)
        refuse_conditions(monkeypatch)
        assert len(list(stream)) == 5

    @pytest.mark.parametrize("error", [InputError("bad text"), KeyboardInterrupt()])
    def test_errors_reach_the_consumer_in_order(self, make, monkeypatch, error):
        source = make()
        batch = source.batch

        def failing(step):
            if step == 3:
                raise error
            return batch(step)

        monkeypatch.setattr(source, "batch", failing)
        stream = source.stream(0, 10)
        for _ in range(3):
            next(stream)
        with pytest.raises(type(error)):
            next(stream)
        assert not self.alive()

    def test_it_runs_only_a_little_ahead(self, make, monkeypatch):
        source, made = make(), []
        batch = source.batch
        monkeypatch.setattr(source, "batch", lambda step: made.append(step) or batch(step))
        stream = source.stream(0, 1000)
        next(stream)
        stream.close()
        assert len(made) < 10


@pytest.mark.parametrize(
    ("spec", "rows", "views", "message"),
    [
        (BatchSpec(rows=6), 9, {}, r"batches of at least 6 rows, not optim\.batch_size = 5"),
        (BatchSpec(), 9, {"positives": ("none",)}, r"uses no positives; remove views\.positives"),
    ],
)
def test_what_does_not_fit_a_method_is_refused(spec, rows, views, message):
    with pytest.raises(ConfigError, match=message):
        check_batches(spec, rows, columns=1, batch_size=5, views=ViewsConfig(**views))


class TestPositives:
    ALL = ("none", "shuffle", "inversion", "deletion", "repetition")

    def rows(self, batch):
        return [rows_of(view) for view in batch.views]

    def test_they_follow_the_anchor_and_are_made_from_it(self, make):
        batch = make(spec=BatchSpec(positives=self.ALL), rate=0.5).batch(0)
        anchors, copies, shuffled, inverted, shorter, longer = self.rows(batch)
        assert copies == anchors
        assert shuffled != anchors
        assert [sorted(row) for row in shuffled] == [sorted(row) for row in anchors]
        assert inverted == [[row[0], *row[-2:0:-1], row[-1]] for row in anchors]
        assert all(len(row) < len(anchor) for row, anchor in zip(shorter, anchors, strict=True))
        assert all(len(row) > len(anchor) for row, anchor in zip(longer, anchors, strict=True) if len(anchor) < 16)

    def test_the_users_list_replaces_the_methods(self, make):
        batch = make(spec=BatchSpec(positives=self.ALL), positives=("inversion", "none")).batch(0)
        anchors, inverted, copies = self.rows(batch)
        assert copies == anchors
        assert inverted == [[row[0], *row[-2:0:-1], row[-1]] for row in anchors]

    def test_they_change_no_other_view(self, make):
        views = {"pairs": True, "first": "repetition", "second": "span"}
        plain, more = make(**views), make(spec=BatchSpec(views=2, positives=self.ALL), **views)
        for step in range(4):
            first, second, *positives = self.rows(more.batch(step))
            assert [first, second] == self.rows(plain.batch(step))
            assert len(positives) == len(self.ALL)

    def test_a_repeated_name_is_drawn_again(self, make):
        _, one, two = self.rows(make(spec=BatchSpec(positives=("shuffle", "shuffle"))).batch(0))
        assert one != two


CLS, SEP, LONGEST = 2, 3, 16

texts = st.lists(st.integers(10, 99), max_size=LONGEST - 2).map(lambda inner: [CLS, *inner, SEP])
rates = st.floats(0.001, 1.0)
seeds = st.integers(0, 2**32)


def view(ids, name, rate, seed):
    return augment(ids, name, rate=rate, max_length=LONGEST, generator=np.random.default_rng(seed))


def is_subsequence(short, long):
    rest = iter(long)
    return all(piece in rest for piece in short)


@given(texts, st.sampled_from([*AUGMENTATIONS]), rates, seeds)
def test_any_view_keeps_special_tokens_and_bounds(ids, name, rate, seed):
    before = list(ids)
    found = view(ids, name, rate, seed)
    assert ids == before
    assert (found[0], found[-1]) == (CLS, SEP)
    assert 2 <= len(found) <= LONGEST
    assert len(found) > 2 or len(ids) == 2
    assert set(found[1:-1]) <= set(ids[1:-1])
    assert found == view(ids, name, rate, seed)


@given(texts, rates, seeds)
def test_deletion_drops_a_share_and_keeps_the_order(ids, rate, seed):
    found, length = view(ids, "deletion", rate, seed), len(ids) - 2
    assert is_subsequence(found, ids)
    assert len(ids) - len(found) == (min(round(rate * length), length - 1) if length else 0)


@given(texts, rates, seeds)
def test_span_drops_one_run(ids, rate, seed):
    found, length = view(ids, "span", rate, seed), len(ids) - 2
    gone = len(ids) - len(found)
    assert gone == (min(round(rate * length), length - 1) if length else 0)
    assert any(found == ids[:start] + ids[start + gone :] for start in range(1, len(ids)))


@given(texts, rates, seeds)
def test_repetition_adds_copies_as_far_as_there_is_room(ids, rate, seed):
    found, length = view(ids, "repetition", rate, seed), len(ids) - 2
    assert is_subsequence(ids, found)
    assert len(found) - len(ids) == min(round(rate * length), LONGEST - len(ids))
    assert not Counter(ids) - Counter(found)


@given(texts, rates, seeds)
def test_shuffle_is_a_permutation(ids, rate, seed):
    assert Counter(view(ids, "shuffle", rate, seed)) == Counter(ids)


def test_shuffle_reaches_every_order():
    ids = [CLS, 10, 11, 12, SEP]
    assert len({tuple(view(ids, "shuffle", 0.2, seed)) for seed in range(200)}) == 6


@given(texts, rates, seeds)
def test_inversion_reverses_and_twice_gives_the_text_back(ids, rate, seed):
    found = view(ids, "inversion", rate, seed)
    assert found == [CLS, *reversed(ids[1:-1]), SEP]
    assert view(found, "inversion", rate, seed) == ids


PLAIN = ViewsConfig(first="none", second="none")


@pytest.fixture
def pair_tokenizer(toy_tokenizer_json):
    return PairTokenizer(toy_tokenizer_json, 16)


@pytest.fixture
def corpus(make_corpus, sentences):
    texts = sentences(14)
    return make_corpus(list(zip(texts[:7], texts[7:], strict=True)))


def pairs_of(view):
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
        rows = pairs_of(batch.views[0])
        found += [(*row, label) for row, label in zip(rows, batch.scores.tolist(), strict=True)]

    assert batches.steps_per_epoch == (2 if both_orders else 1)
    assert sorted(found) == wanted


def test_moving_a_batch_moves_types_and_labels(corpus, pair_tokenizer):
    labels = np.zeros(len(corpus), dtype=np.float32)
    batch = PairBatchSource(corpus, pair_tokenizer, scores=labels, batch_size=4, seed=3).batch(0)
    moved = batch.to(torch.device("meta"))
    assert moved.scores.device.type == "meta"
    assert {types.device.type for types in moved.views[0].token_types} == {"meta"}


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
