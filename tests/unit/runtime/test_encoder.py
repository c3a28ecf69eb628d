"""The encoder: rows equal the reference, and every option is honoured or refused."""

from __future__ import annotations

import itertools
import json
import logging
import pickle
import sys
import threading
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from toys import Terminal, limit_threads

from embedkit import Encoder
from embedkit.errors import InputError, ModelError, TextOverflowError
from embedkit.runtime import batching, onnx_backend
from embedkit.runtime.bundle import read_bundle, write_bundle
from embedkit.runtime.onnx_backend import Session

TEXTS = ["a dog in the garden", "", "Music!", "one two three four five six seven eight nine ten eleven", "the sea"]


@pytest.fixture
def encoder(toy_bundle):
    return Encoder.load(toy_bundle)


@pytest.fixture
def prompted(write_toy_bundle, tmp_path):
    prompts = {"query": "question: ", "passage": "answer: ", "other": "about "}
    return Encoder.load(write_toy_bundle(tmp_path / "prompted.onnx", prompts=prompts))


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(batching, "_CHUNK_ITEMS", 4)


def test_rows_are_those_of_the_reference(encoder, toy_reference):
    np.testing.assert_allclose(encoder.encode(TEXTS), toy_reference(TEXTS), atol=1e-6)


@pytest.mark.parametrize("budget", [1, 13, 40, 1000])
@pytest.mark.parametrize("batch_size", [None, 1, 3])
def test_batches_do_not_change_rows(toy_bundle, toy_reference, budget, batch_size):
    texts = [" ".join(words) for n in range(9) for words in itertools.permutations(("red", "sea"), min(n, 2))] * 3
    encoder = Encoder.load(toy_bundle, max_tokens_per_batch=budget)
    np.testing.assert_allclose(encoder.encode(texts, batch_size=batch_size), toy_reference(texts), atol=1e-6)


def test_batches_run_in_parallel(toy_bundle, toy_reference, monkeypatch):
    encoder = Encoder.load(toy_bundle, threads=3, max_tokens_per_batch=1)
    run, together = Session.run, threading.Barrier(3)

    def meet(session, batch, lane=None, **_):
        together.wait(timeout=250)  # breaks unless three batches run at once
        return run(session, batch, lane=lane)

    monkeypatch.setattr(Session, "run", meet)
    texts = [*TEXTS, "the garden"]  # two rounds of three
    np.testing.assert_allclose(encoder.encode(texts), toy_reference(texts), atol=1e-6)


@pytest.mark.parametrize("error", [ModelError("failed"), IndexError("failed")])  # an IndexError is no end of work
def test_errors_of_parallel_batches_reach_the_caller(toy_bundle, monkeypatch, error):
    encoder = Encoder.load(toy_bundle, threads=2, max_tokens_per_batch=1)

    def fail(*_, **__):
        raise error

    monkeypatch.setattr(Session, "run", fail)
    before = threading.active_count()
    with pytest.raises(type(error), match="failed"):
        encoder.encode(TEXTS)
    assert threading.active_count() == before


@pytest.fixture
def shapes(monkeypatch):
    """The shapes of the batches that sessions run from now on."""
    run, found = Session.run, []

    def note(session, batch, lane=None, **_):
        found.append(batch.input_ids.shape)
        return run(session, batch, lane=lane)

    monkeypatch.setattr(Session, "run", note)
    return found


@pytest.mark.parametrize("started", [0, 1])
def test_batches_run_where_fewer_threads_can_be_started(toy_bundle, monkeypatch, started):
    expected = Encoder.load(toy_bundle, threads=1, max_tokens_per_batch=1).encode(TEXTS * 5)
    encoder = Encoder.load(toy_bundle, threads=4, max_tokens_per_batch=1)
    limit_threads(monkeypatch, started)
    assert np.array_equal(encoder.encode(TEXTS * 5), expected)


@pytest.mark.parametrize("failing", [0, 1])
def test_an_error_in_one_lane_ends_the_others(toy_bundle, monkeypatch, failing):
    encoder = Encoder.load(toy_bundle, threads=2, max_tokens_per_batch=1)
    run, together, ran = Session.run, threading.Barrier(2), []

    def fail(session, batch, lane=None, **_):
        if not ran:
            together.wait(timeout=250)  # both have started
        if lane == failing:
            raise KeyboardInterrupt
        time.sleep(0.05)  # time enough for the other to fail
        ran.append(lane)
        return run(session, batch, lane=lane)

    monkeypatch.setattr(Session, "run", fail)
    with pytest.raises(KeyboardInterrupt):
        encoder.encode(TEXTS * 20)
    assert len(ran) < 10 * len(TEXTS)  # not the other half of the work


def test_batches_hold_the_same_whatever_the_threads(toy_bundle, shapes):
    found = []
    for threads in (1, 4):
        for texts in (TEXTS * 2, TEXTS * 10, TEXTS * 300):
            Encoder.load(toy_bundle, threads=threads).encode(texts)
        found.append(sorted(shapes))
        shapes.clear()
    assert found[0] == found[1]


@pytest.mark.parametrize(("count", "batches"), [(5, 1), (40, 3), (100, 7), (1000, 32)])
def test_few_texts_are_enough_for_several_threads(toy_bundle, shapes, count, batches):
    Encoder.load(toy_bundle, threads=2).encode(["one two three four five six"] * count)
    assert sum(rows * tokens for rows, tokens in shapes) == 8 * count
    assert len(shapes) == batches


def test_one_text_gives_one_row(encoder, toy_reference):
    row = encoder.encode("a dog in the garden")
    assert row.shape == (16,)
    np.testing.assert_allclose(row, toy_reference(["a dog in the garden"])[0], atol=1e-6)


def test_no_texts_give_no_rows_of_the_right_kind(encoder):
    assert encoder.encode([]).shape == (0, 16)
    packed = encoder.encode([], precision="ubinary", truncate_dim=9)
    assert packed.shape == (0, 2)
    assert packed.dtype == np.uint8


def test_a_stream_is_encoded_in_bounded_memory(encoder, monkeypatch):
    monkeypatch.setattr(batching, "_CHUNK_ITEMS", 10)
    read = 0

    def stream():
        nonlocal read
        for number in itertools.count():
            read += 1
            yield f"text {number}"

    batches = encoder.encode_batches(stream())
    first, second = next(batches), next(batches)
    assert first.shape == second.shape == (10, 16)
    assert read == 20
    np.testing.assert_array_equal(second, encoder.encode([f"text {number}" for number in range(10, 20)]))


@pytest.mark.usefixtures("small_chunks")
def test_batches_of_a_stream_are_what_encode_gives(encoder):
    options: Any = {"truncate_dim": 8, "precision": "binary", "prompt": "the "}
    rows = np.concatenate(list(encoder.encode_batches(iter(TEXTS * 2), **options)))
    np.testing.assert_array_equal(rows, encoder.encode(TEXTS * 2, **options))
    assert list(encoder.encode_batches([])) == []


# Truncation


def test_the_first_call_that_truncates_warns_and_later_ones_only_inform(encoder, caplog, monkeypatch):
    monkeypatch.setattr(batching, "_CHUNK_ITEMS", 2)
    long = "dog " * 20
    with caplog.at_level(logging.INFO, logger="embedkit"):
        encoder.encode(["a", long, "b", long, long])
        encoder.encode(long)
    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [
        (logging.WARNING, "3 of 5 texts were cut to 12 tokens"),
        (logging.INFO, "1 of 1 texts were cut to 12 tokens"),
    ]


def test_truncation_of_a_stream_is_reported_even_if_it_is_abandoned(encoder, caplog):
    batches = encoder.encode_batches(["dog " * 20])
    next(batches)
    batches.close()
    assert caplog.messages == ["1 of 1 texts were cut to 12 tokens"]


def test_truncation_can_be_an_error(encoder, monkeypatch):
    monkeypatch.setattr(batching, "_CHUNK_ITEMS", 10)
    long = "dog " * 20
    with pytest.raises(TextOverflowError, match=r"longer than 12 tokens: texts\[11\], texts\[13\]; shorten"):
        encoder.encode(["a"] * 11 + [long, "b", long], on_overflow="error")
    with pytest.raises(TextOverflowError, match=r"texts\[4\] and 3 more"):
        encoder.encode([long] * 8, on_overflow="error")
    np.testing.assert_array_equal(encoder.encode(TEXTS[:3], on_overflow="error"), encoder.encode(TEXTS[:3]))


def test_a_prompt_counts_towards_the_length(encoder):
    encoder.encode(["dog " * 10], on_overflow="error")
    with pytest.raises(TextOverflowError):
        encoder.encode(["dog " * 10], prompt="the ", on_overflow="error")


# Prompts


def test_prompts_stand_before_texts(prompted):
    plain = prompted.encode(["question: a dog", "answer: a dog", "about a dog", "a dog"])
    np.testing.assert_allclose(prompted.encode_query("a dog"), plain[0], atol=1e-6)
    np.testing.assert_allclose(prompted.encode_document(["a dog"])[0], plain[1], atol=1e-6)
    np.testing.assert_allclose(prompted.encode("a dog", prompt_name="other"), plain[2], atol=1e-6)
    np.testing.assert_allclose(prompted.encode_query("a dog", prompt_name="other"), plain[2], atol=1e-6)
    np.testing.assert_allclose(prompted.encode_query("a dog", prompt="about "), plain[2], atol=1e-6)
    np.testing.assert_allclose(prompted.encode_document("a dog", prompt=""), plain[3], atol=1e-6)
    np.testing.assert_allclose(prompted.encode("a dog"), plain[3], atol=1e-6)


@pytest.mark.parametrize("choice", [{}, {"role": "query"}, {"role": "document"}, {"prompt_name": "other"}])
def test_the_two_halves_are_the_whole(prompted, choice):
    tokens = prompted.tokenize(TEXTS, **choice)
    whole = {"query": prompted.encode_query, "document": prompted.encode_document}.get(choice.get("role", ""))
    expected = whole(TEXTS) if whole else prompted.encode(TEXTS, **choice)
    np.testing.assert_array_equal(prompted.encode_tokens(tokens), expected)
    assert 3 in tokens.overflowing


def test_the_default_prompt_is_not_that_of_a_role_without_one(write_toy_bundle, tmp_path):
    path = write_toy_bundle(tmp_path / "toy.onnx", prompts={"query": "question: "}, default_prompt="query")
    encoder = Encoder.load(path)
    plain = encoder.encode(["a dog"], prompt="")

    assert not np.allclose(encoder.encode(["a dog"]), plain)
    np.testing.assert_array_equal(encoder.encode_query(["a dog"]), encoder.encode(["a dog"]))
    np.testing.assert_array_equal(encoder.encode_document(["a dog"]), plain)
    np.testing.assert_array_equal(encoder.encode_tokens(encoder.tokenize(["a dog"], role="document")), plain)


# Refused arguments


def test_iterables_of_names_instead_of_texts_are_refused(encoder):
    frame = pytest.importorskip("pandas").DataFrame({"text": TEXTS, "label": range(len(TEXTS))})
    for encode in (encoder.encode, encoder.encode_batches, encoder.encode_query):
        with pytest.raises(InputError, match="got DataFrame, a table; give its column of texts"):
            encode(frame)
        with pytest.raises(InputError, match=r"got dict; give its values\(\)"):
            encode(dict(enumerate(TEXTS)))
    np.testing.assert_array_equal(encoder.encode(frame["text"]), encoder.encode(TEXTS))
    np.testing.assert_array_equal(encoder.encode(dict(enumerate(TEXTS)).values()), encoder.encode(TEXTS))


def test_a_pickle_is_its_source(write_toy_bundle, tmp_path):
    path = write_toy_bundle(tmp_path / "toy.onnx")
    encoder = Encoder.load(path, threads=1, providers=iter(["CPUExecutionProvider"]))
    content = pickle.dumps(encoder)
    assert len(content) < 1000
    np.testing.assert_array_equal(pickle.loads(content).encode(TEXTS), encoder.encode(TEXTS))
    write_toy_bundle(path, prompts={"query": "q: "})
    with pytest.raises(ModelError, match="is not the model that was pickled"):
        pickle.loads(content)
    with pytest.raises(ModelError, match=r"only a model made by Encoder\.load can be pickled"):
        pickle.dumps(Encoder(read_bundle(path)))


@pytest.mark.usefixtures("small_chunks")
def test_positions_in_messages_are_those_of_the_caller(encoder):
    with pytest.raises(InputError, match=r"texts\[6\] is float, expected str"):
        encoder.encode(["a"] * 6 + [float("nan")])


# Similarity


def test_similarity_is_the_cosine(encoder):
    a, b = np.random.default_rng(0).standard_normal((2, 3, 16))
    expected = [[x @ y / np.linalg.norm(x) / np.linalg.norm(y) for y in b] for x in a]
    found = encoder.similarity(a, b)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert found.dtype == np.float32
    assert encoder.similarity(a[0], b).shape == (1, 3)
    np.testing.assert_array_equal(encoder.similarity(np.zeros(16), b), np.zeros((1, 3)))
    assert encoder.similarity(a[:0], b).shape == (0, 3)
    assert (encoder.similarity([], b).shape, encoder.similarity([], []).shape) == ((0, 3), (0, 0))


# Verification


def test_a_good_bundle_is_verified(encoder):
    found = encoder.verify()
    assert found["passed"] is True
    assert found["same_tokens"] is True
    assert found["texts"] == 3
    assert found["difference"] < 1e-6
    assert json.loads(json.dumps(found)) == found


def test_other_embeddings_or_tokens_are_found(toy_bundle, toy_model_bytes, tmp_path):
    good = read_bundle(toy_bundle)
    vectors = good.golden.values.copy()
    vectors[1, 2] += 0.01
    ids = [[2, 9, 3], *good.golden.token_ids[1:]]
    for name, golden in {
        "vectors": replace(good.golden, values=vectors),
        "tokens": replace(good.golden, token_ids=ids),
    }.items():
        path = tmp_path / f"{name}.onnx"
        write_bundle(path, toy_model_bytes, good.manifest, good.tokenizer_json, golden)
        found = Encoder.load(path).verify()
        assert found["passed"] is False
        assert found["same_tokens"] is (name == "vectors")
    assert Encoder.load(tmp_path / "vectors.onnx").verify()["difference"] == pytest.approx(0.01, abs=1e-5)


# Folders and mismatches


def test_a_folder_with_one_bundle_is_that_bundle(write_toy_bundle, tmp_path):
    write_toy_bundle(tmp_path / "one.onnx")
    assert Encoder.load(tmp_path).name == "toy"
    write_toy_bundle(tmp_path / "two.onnx", name="second")
    with pytest.raises(ModelError, match=r"2 \.onnx files"):
        Encoder.load(tmp_path)
    assert Encoder.load(tmp_path, file="two.onnx").name == "second"


def test_a_graph_of_another_width_than_declared_is_refused(toy_bundle, tmp_path):
    good = read_bundle(toy_bundle)
    manifest = replace(good.manifest, dimension=8)
    golden = replace(good.golden, values=good.golden.values[:, :8])
    write_bundle(tmp_path / "b.onnx", good.model, manifest, good.tokenizer_json, golden)
    with pytest.raises(ModelError, match=r"b\.onnx: the graph returns 16 dimensions, but the manifest declares 8"):
        Encoder.load(tmp_path / "b.onnx")


def test_a_graph_that_gives_another_width_than_declared_is_refused(toy_bundle, tmp_path, monkeypatch):
    good = read_bundle(toy_bundle)
    manifest = replace(good.manifest, dimension=8)
    golden = replace(good.golden, values=good.golden.values[:, :8])
    write_bundle(tmp_path / "b.onnx", good.model, manifest, good.tokenizer_json, golden)
    monkeypatch.setattr(onnx_backend, "_choose_output", lambda session, names: ("sentence_embedding", None))
    encoder = Encoder.load(tmp_path / "b.onnx")
    for texts in ("a", ["a", "b"]):
        with pytest.raises(ModelError, match=r"the graph gave \(\d, 16\), expected \(\d, 8\)"):
            encoder.encode(texts)


@pytest.mark.parametrize("max_length", [1, 2])
def test_a_length_without_room_is_an_error_of_the_model(toy_bundle, tmp_path, max_length):
    good = read_bundle(toy_bundle)
    golden = replace(good.golden, token_ids=[[2]] * 3)
    manifest = replace(good.manifest, max_length=max_length)
    write_bundle(tmp_path / "b.onnx", good.model, manifest, good.tokenizer_json, golden)
    with pytest.raises(ModelError, match="max_length must be at least 3"):
        Encoder.load(tmp_path / "b.onnx")


# Progress


def test_a_bar_is_shown_on_request(encoder, monkeypatch):
    monkeypatch.setattr("embedkit.progress._BAR_SECONDS", 0.0)
    for wish, shown in ((True, True), (None, False), (False, False)):
        terminal = Terminal()
        monkeypatch.setattr(sys, "stderr", terminal)
        encoder.encode(TEXTS, show_progress_bar=wish)
        assert ("5/5 texts" in terminal.getvalue()) is shown


@pytest.mark.parametrize(("text", "share"), [("", 0), ("a dog", 0), ("a \ua66e", 0.5), ("\ua66e \ua66b", 1)])
def test_the_share_of_unknown_tokens_is_that_of_each_text(encoder, text, share):
    found = encoder.unknown_share([text, "\ua66e", "a dog", text])
    assert found.dtype == np.float32
    assert found.tolist() == [share, 1, 0, share]


def test_texts_that_cannot_be_read_are_reported_once(encoder, caplog):
    encoder.encode(["a dog", "\ua66e"] * 5)  # half of it is known
    assert caplog.messages == []
    encoder.encode(["\ua66e \ua66b", "the sea", "\ua66b", "\ua66e"])
    encoder.encode("\ua66e")
    assert len(caplog.messages) == 1
    assert "does not cover 75 % of the tokens of 4 texts" in caplog.text


@pytest.mark.parametrize("method", ["windows", "token_spans", "tokenize", "unknown_share"])
def test_invalid_unicode_is_named_by_every_reader_of_texts(toy_bundle, method):
    with pytest.raises(InputError, match=r"texts\[1\] is not valid Unicode"):
        getattr(Encoder.load(toy_bundle), method)(["a dog", "a\ud800"])


def test_true_is_no_token_id(toy_bundle):
    with pytest.raises(InputError, match="expected token ids"):
        Encoder.load(toy_bundle).check_token_ids([[2, True, 3]])


def test_no_cosine_is_above_1(encoder):
    rows = np.random.default_rng(0).standard_normal((300, 384)).astype(np.float32)
    cosines = encoder.similarity(rows, rows)
    assert cosines.max() <= 1
    assert encoder.similarity(rows, -rows).min() >= -1
