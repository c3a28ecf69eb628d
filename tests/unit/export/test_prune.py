import json

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from embedkit.errors import ExportError, GateError, InputError, ModelError
from embedkit.evaluation.sts import ScoredPairs
from embedkit.export.pipeline import export
from embedkit.export.transforms import prune_vocabulary
from embedkit.modeling import pruning
from embedkit.modeling.torch_encoder import TorchCrossEncoder, TorchEncoder
from embedkit.runtime.encoder import Encoder
from embedkit.runtime.tokenization import Tokenizer

CORPUS = ["the cat sleeps in the house", "the dog walks to the sea, not far", "Ünknown Ω signs", "the cats walked"]
_SIGNS = 2 * 36  # letters and digits, at the start and inside words
_PUNCTUATION = 11
_SPECIAL = 5


def pieces_of(tokenizer, text):
    names = {number: piece for piece, number in vocabulary(tokenizer.json).items()}
    return [names[number] for number in tokenizer.tokenize([text]).ids[0]]


def vocabulary(content):
    return tokenizers.Tokenizer.from_str(content).get_vocab(with_added_tokens=True)


def test_texts_of_the_corpus_keep_their_pieces_and_embeddings(make_encoder):
    encoder = make_encoder(head=6)

    pruned, gate = prune_vocabulary(encoder, CORPUS)

    assert gate.passed
    assert gate.figures["share_of_tokens_kept"] == gate.figures["share_of_texts_unchanged"] == 1.0
    assert pruned.tokenizer.vocabulary_size == gate.figures["pieces"] < encoder.tokenizer.vocabulary_size
    assert pruned.backbone.config.vocab_size == gate.figures["pieces"]
    for text in CORPUS:
        assert pieces_of(pruned.tokenizer, text) == pieces_of(encoder.tokenizer, text)
    np.testing.assert_allclose(
        TorchEncoder(pruned).encode(CORPUS), TorchEncoder(encoder).encode(CORPUS), atol=1e-6
    )


def test_pieces_of_prompts_are_kept_and_counted(make_encoder):
    encoder = make_encoder()
    encoder.prompts = {"query": "where is the train to ", "document": ""}

    pruned, gate = prune_vocabulary(encoder, CORPUS)
    small, _ = prune_vocabulary(encoder, CORPUS, size=gate.figures["pieces"] - 4)

    query = encoder.prompts["query"]
    assert pieces_of(pruned.tokenizer, query) == pieces_of(small.tokenizer, query)
    assert pieces_of(pruned.tokenizer, query) == pieces_of(encoder.tokenizer, query)
    assert gate.figures["share_of_texts_unchanged"] == 1.0


def test_every_row_goes_with_its_piece(make_encoder):
    encoder = make_encoder(memory=10)

    pruned, _ = prune_vocabulary(encoder, CORPUS)

    old, new = vocabulary(encoder.tokenizer.json), vocabulary(pruned.tokenizer.json)
    assert sorted(new.values()) == list(range(len(new)))
    for name in ("backbone.embeddings.word_embeddings.weight", "memory.rows.weight"):
        before, after = (model.get_parameter(name).detach() for model in (encoder, pruned))
        assert len(after) == len(new)
        for piece, number in new.items():
            np.testing.assert_array_equal(after[number], before[old[piece]])


def test_unused_pieces_are_removed_and_spelled(make_encoder):
    encoder = make_encoder()

    pruned, _ = prune_vocabulary(encoder, CORPUS)

    assert pieces_of(encoder.tokenizer, "zoo") == ["[CLS]", "zoo", "[SEP]"]
    assert pieces_of(pruned.tokenizer, "zoo") == ["[CLS]", "z", "##o", "##o", "[SEP]"]


def test_a_size_keeps_the_most_frequent_pieces(make_encoder):
    encoder = make_encoder()
    least = _SPECIAL + _SIGNS + _PUNCTUATION

    pruned, gate = prune_vocabulary(encoder, CORPUS, size=least + 1)

    assert gate.figures["pieces"] == least + 1
    assert "the" in vocabulary(pruned.tokenizer.json)
    assert "cat" not in vocabulary(pruned.tokenizer.json)
    assert 0 < gate.figures["share_of_tokens_kept"] < 1
    assert gate.figures["share_of_texts_unchanged"] == 0.25  # the text without a known word
    with pytest.raises(InputError, match=f"{least - 1} pieces is too small: .* need {least}"):
        prune_vocabulary(encoder, CORPUS, size=least - 1)


@given(st.text(max_size=40))
def test_nothing_becomes_unknown(toy_tokenizer_json, text):
    content = json.loads(toy_tokenizer_json)
    pieces = pruning._read_pieces(content)
    kept = sorted(pruning._required(content, pieces))
    smaller = json.dumps(pruning._renumber(content, pieces, kept))
    before, after = Tokenizer(toy_tokenizer_json, 40), Tokenizer(smaller, 400)

    unknown = after.tokenize([text]).ids[0].count(1)

    assert unknown <= before.with_max_length(400).tokenize([text]).ids[0].count(1)


def test_the_only_piece_with_a_character_is_kept():
    content = {"model": {"type": "WordPiece", "continuing_subword_prefix": "##", "unk_token": "[UNK]"}}
    pieces = {piece: number for number, piece in enumerate(["[UNK]", "a", "##b", "ab", "aß", "##bß", "ba"])}

    required = pruning._required(content, pieces)

    assert {piece for piece, number in pieces.items() if number in required} == {
        "[UNK]",
        "a",
        "##b",
        "aß",
        "##bß",
        "ba",
    }


@pytest.mark.parametrize("kind", ["BertProcessing", "Sequence"])
def test_every_kind_of_frame_is_renumbered(make_encoder, kind):
    encoder = make_encoder()
    content = json.loads(encoder.tokenizer.json)
    numbers = vocabulary(encoder.tokenizer.json)
    # The words first, so that the special tokens get other ids.
    last = len(numbers) - 1
    content["model"]["vocab"] = {piece: last - number for piece, number in numbers.items()}
    content["added_tokens"] = [token | {"id": last - token["id"]} for token in reversed(content["added_tokens"])]
    content["padding"]["pad_id"] = last
    frame = {"type": "BertProcessing", "sep": ["[SEP]", last - 3], "cls": ["[CLS]", last - 2]}
    sequence = {"type": "Sequence", "processors": [frame]}
    content["post_processor"] = frame if kind == "BertProcessing" else sequence
    encoder.backbone.config.pad_token_id = last
    encoder.tokenizer = Tokenizer(json.dumps(content), 20)

    pruned, gate = prune_vocabulary(encoder, CORPUS)

    assert gate.passed
    assert pieces_of(pruned.tokenizer, "the cat") == ["[CLS]", "the", "cat", "[SEP]"]
    assert pruned.tokenizer.pad_id == gate.figures["pieces"] - 1 == pruned.backbone.config.pad_token_id


def test_unigram_keeps_its_scores(make_encoder):
    encoder = make_encoder()
    scores = [("<unk>", 0.0), *[(letter, -9.0) for letter in "▁abcdehnostu"]]
    scores += [("▁the", -2.0), ("▁cat", -3.0), ("▁sea", -3.0), ("s", -4.0), ("▁house", -5.0)]
    scores = list(dict(scores).items())
    raw = tokenizers.Tokenizer(tokenizers.models.Unigram(scores, unk_id=0, byte_fallback=False))
    raw.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    encoder.tokenizer = Tokenizer(raw.to_str(), 20)

    pruned, gate = prune_vocabulary(encoder, ["the cats", "the sea ?"])

    assert gate.passed
    assert gate.figures["unknown_tokens"] == gate.figures["unknown_tokens_before"] == 1
    kept = dict(json.loads(pruned.tokenizer.json)["model"]["vocab"])
    assert kept == {piece: score for piece, score in scores if piece != "▁house"}
    assert pieces_of(pruned.tokenizer, "the cats") == ["▁the", "▁cat", "s"]


def test_other_tokenizers_are_refused(make_encoder):
    encoder = make_encoder()
    words = tokenizers.models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]")
    encoder.tokenizer = Tokenizer(tokenizers.Tokenizer(words).to_str(), 20)

    with pytest.raises(ModelError, match="a WordLevel tokenizer cannot be pruned; expected WordPiece, U"):
        prune_vocabulary(encoder, CORPUS)


def test_an_empty_corpus_is_refused(make_encoder):
    with pytest.raises(ExportError, match="without texts"):
        prune_vocabulary(make_encoder(), [])


def test_a_cross_encoder_scores_pairs_of_the_corpus_as_before(make_pair_encoder, tmp_path):
    model = make_pair_encoder(initializer_range=0.1)
    pairs = list(zip(CORPUS[:2], CORPUS[2:], strict=True))

    pruned, gate = prune_vocabulary(model, CORPUS)

    assert gate.passed
    np.testing.assert_allclose(
        TorchCrossEncoder(pruned).predict(pairs), TorchCrossEncoder(model).predict(pairs), atol=1e-6
    )
    report = export(model, tmp_path / "toy.onnx", precision="fp32", vocabulary=CORPUS)
    assert report.manifest.gates["vocabulary"] == gate.figures


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_a_pruned_bundle_is_smaller_and_records_it(make_encoder, tmp_path, precision):
    encoder = make_encoder(head=16, memory=8, initializer_range=0.1)
    whole = export(encoder, tmp_path / "whole.onnx", precision=precision)

    report = export(encoder, tmp_path / "toy.onnx", precision=precision, vocabulary=CORPUS)

    assert report.size_bytes < whole.size_bytes
    assert report.manifest.gates["vocabulary"]["share_of_texts_unchanged"] == 1.0
    bundle = Encoder.load(tmp_path / "toy.onnx")
    assert bundle.verify()["passed"]
    np.testing.assert_allclose(bundle.encode(CORPUS), TorchEncoder(encoder).encode(CORPUS), atol=0.1)


def test_retention_compares_with_the_whole_vocabulary(make_encoder, tmp_path):
    encoder = make_encoder(initializer_range=0.1)
    first = ["a king and a queen", "we swim in summer", "the small red bird", "my brother runs", "cold rain"]
    second = ["the queen", "winter is cold", "a bird sings", "the train stops", "rain and snow in winter"]
    rows = TorchEncoder(encoder)
    scores = (rows.encode(first) * rows.encode(second)).sum(axis=1).astype(np.float64)
    dev = ScoredPairs("own", first, second, scores)

    with pytest.raises(GateError) as caught:
        export(encoder, tmp_path / "toy.onnx", precision="fp32", dev=dev, vocabulary=["the sea"])

    assert caught.value.figures["retention"]["torch"] == 1.0
    assert [name for name, gate in caught.value.figures.items() if not gate["passed"]] == ["retention"]


def test_a_wrongly_rewritten_tokenizer_is_found(make_encoder, tmp_path, monkeypatch):
    renumber = pruning._renumber

    def swap(content, pieces, kept):
        wrong = renumber(content, pieces, kept)
        words = wrong["model"]["vocab"]
        words["the"], words["cat"] = words["cat"], words["the"]
        return wrong

    monkeypatch.setattr(pruning, "_renumber", swap)

    with pytest.raises(GateError, match=r"failed 1 of 6 gates: vocabulary: .*texts broken 3"):
        export(make_encoder(), tmp_path / "toy.onnx", precision="fp32", vocabulary=CORPUS)
    assert list(tmp_path.iterdir()) == []
