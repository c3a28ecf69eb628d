import numpy as np
import onnx
import pytest

from embedkit.errors import ExportError, GateError
from embedkit.export import quantize
from embedkit.export.gates import Candidate
from embedkit.export.graph import build_graph
from embedkit.export.pipeline import export
from embedkit.export.quantize import WORD_TABLES, Int4WordTable, MixedArithmetic, pack
from embedkit.export.writer import FloatArithmetic
from embedkit.modeling.int4 import quantize_blocks, restore_blocks
from embedkit.modeling.torch_encoder import TorchEncoder
from embedkit.runtime.encoder import Encoder

TEXTS = ["the cat is asleep", "a good dog", "where is the train to the city today", ""]


def test_halves_of_a_row_share_bytes():
    assert pack(np.array([[-8, -7, 7, 6]], dtype=np.int8)).tolist() == [[0 + 16 * 15, 1 + 16 * 14]]


@pytest.mark.parametrize("hidden", [32, 40, 64])
def test_a_graph_looks_up_the_rounded_values(make_encoder, hidden):
    encoder = make_encoder(hidden_size=hidden)
    words = encoder.get_parameter("backbone.embeddings.word_embeddings.weight")
    graph = build_graph(encoder, MixedArithmetic(FloatArithmetic(), Int4WordTable()))
    rounded = restore_blocks(*quantize_blocks(words.detach().numpy()))
    words.data.copy_(words.data.new_tensor(rounded))

    rows = Candidate(graph.SerializeToString(), encoder.tokenizer).run(TEXTS)

    np.testing.assert_allclose(rows, TorchEncoder(encoder).encode(TEXTS), atol=1e-5)


def test_int4_words_take_half_a_byte_and_two_for_a_scale(make_encoder):
    encoder = make_encoder()
    graph = build_graph(encoder, MixedArithmetic(FloatArithmetic(), Int4WordTable()))

    sizes = {tensor.name: len(tensor.raw_data) for tensor in graph.graph.initializer}

    words = encoder.tokenizer.vocabulary_size
    assert sizes["embeddings.word_embeddings.weight_int4"] == words * 32 / 2
    assert sizes["embeddings.word_embeddings.weight_scale"] == words * 2
    assert {node.domain for node in graph.graph.node} == {""}
    assert onnx.helper.make_opsetid("", 20) == graph.opset_import[0]


@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize("words", WORD_TABLES)
def test_any_word_table_works_with_any_precision(make_encoder, tmp_path, precision, words):
    encoder = make_encoder(head=16, activation="linear", memory=64, initializer_range=0.1)

    report = export(encoder, tmp_path / "toy.onnx", precision=precision, word_table=words)

    usual = (precision, words) in (("fp32", "float32"), ("int8", "int8"))
    assert report.manifest.precision == (precision if usual else f"{precision} with {words} words")
    assert Encoder.load(tmp_path / "toy.onnx").verify()["passed"]
    allowed = report.manifest.gates["batch_invariance"]["largest_difference_allowed"]
    assert allowed == (1e-5 if precision == "fp32" else None)


def test_a_cross_encoder_may_have_int4_words(make_pair_encoder, tmp_path):
    model = make_pair_encoder(initializer_range=0.1)

    report = export(model, tmp_path / "toy.onnx", precision="fp32", word_table="int4")

    parity = report.manifest.gates["parity"]
    assert parity["largest_error_allowed"].keys() == {"random_words", "probe_pairs"}
    assert all(error <= parity["largest_error_allowed"][name] for name, error in parity["largest_error"].items())


def test_words_packed_wrongly_are_found(make_encoder, tmp_path, monkeypatch):
    monkeypatch.setattr(quantize, "pack", lambda integers: pack(integers[:, ::-1]))

    with pytest.raises(GateError, match="parity"):
        export(make_encoder(), tmp_path / "toy.onnx", precision="fp32", word_table="int4")


def test_a_row_of_odd_width_is_refused(make_encoder):
    encoder = make_encoder(hidden_size=33, num_attention_heads=3)

    with pytest.raises(ExportError, match="rows of 33 values"):
        build_graph(encoder, MixedArithmetic(FloatArithmetic(), Int4WordTable()))


def test_halves_are_split_by_operators_that_other_runtimes_round_alike(make_encoder):
    graph = build_graph(make_encoder(), MixedArithmetic(FloatArithmetic(), WORD_TABLES["int4"]))

    # OpenVINO 2026 rounds the results of BitShift and Div of uint8 to the nearest integer.
    assert not {node.op_type for node in graph.graph.node} & {"BitShift", "Mod"}
