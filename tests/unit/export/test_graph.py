"""Networks of architectures other than BERT's, from a folder to a bundle."""

import dataclasses

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper

from embedkit.errors import ExportError, GateError
from embedkit.export.bert import is_bert
from embedkit.export.gates import PAIR_THRESHOLDS, THRESHOLDS, Candidate, measure_gates
from embedkit.export.graph import build_graph
from embedkit.export.pipeline import export, export_source
from embedkit.export.probes import PROBE_PAIRS, PROBE_TEXTS
from embedkit.export.quantize import Int8Arithmetic
from embedkit.export.writer import OPSET, FloatArithmetic, GraphWriter
from embedkit.modeling.torch_encoder import TorchCrossEncoder, TorchEncoder
from embedkit.runtime.cross_encoder import CrossEncoder
from embedkit.runtime.encoder import Encoder
from embedkit.runtime.kernel_backend import NATIVE, native_instructions
from embedkit.runtime.onnx_backend import Session
from embedkit.runtime.tokenization import TokenBatch

GRID = [(batch, length) for batch in (1, 2, 7, 32) for length in (1, 2, 3, 8, 17, 20)]


def run(model, ids, mask):
    session = Session(model.SerializeToString(), outputs=["sentence_embedding"], threads=1)
    return session.run(TokenBatch(ids, mask))


@torch.inference_mode()
def run_torch(encoder, ids, mask):
    rows = encoder(torch.from_numpy(ids), torch.from_numpy(mask)).numpy()
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def make_batch(tokenizer, size, length):
    generator = np.random.default_rng(length)
    ids = generator.integers(5, tokenizer.vocabulary_size, (size, length))
    mask = (np.arange(length) < generator.integers(1, length + 1, (size, 1))).astype(np.int64)
    mask[0] = 1
    return np.where(mask, ids, tokenizer.pad_id), mask


@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize(
    "parts",
    [
        *({"family": family, "head": head} for family in ("bert", "roberta") for head in (None, 6)),
        *({"head": head, "memory": 10} for head in (None, 6)),
        {"head": 6, "activation": "linear", "memory": 10},
        *({"hidden_act": activation} for activation in ("gelu_new", "gelu_pytorch_tanh")),
    ],
)
def test_the_graph_is_the_model(make_encoder, tokenizer, pooling, parts):
    encoder = make_encoder(pooling=pooling, **parts)
    graph = build_graph(encoder, FloatArithmetic())

    for size, length in GRID:
        ids, mask = make_batch(tokenizer, size, length)
        np.testing.assert_allclose(run(graph, ids, mask), run_torch(encoder, ids, mask), atol=1e-5)


@pytest.mark.parametrize("memory", [None, 10])
def test_ids_of_padding_do_not_matter(make_encoder, tokenizer, memory):
    graph = build_graph(make_encoder(memory=memory), FloatArithmetic())
    ids, mask = make_batch(tokenizer, 5, 12)
    others = np.where(mask, ids, 77)

    np.testing.assert_allclose(run(graph, ids, mask), run(graph, others, mask), atol=1e-7)


@pytest.mark.parametrize("memory", [None, 10])
def test_a_row_of_only_padding_is_finite(make_encoder, memory):
    nothing = np.zeros((2, 4), np.int64)

    rows = run(build_graph(make_encoder(memory=memory), FloatArithmetic()), nothing, nothing)

    assert np.isfinite(rows).all()


def test_a_zero_embedding_stays_zero(make_encoder):
    encoder = make_encoder(head=6)
    with torch.no_grad():
        encoder.head.linear.weight.zero_()
        encoder.head.linear.bias.zero_()

    rows = run(build_graph(encoder, FloatArithmetic()), np.full((1, 3), 7), np.ones((1, 3), np.int64))

    assert rows.tolist() == [[0.0] * 6]


def test_inputs_and_output_are_those_of_a_bundle(make_encoder):
    graph = build_graph(make_encoder(head=6), FloatArithmetic())

    described = {
        value.name: (
            value.type.tensor_type.elem_type,
            [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim],
        )
        for value in [*graph.graph.input, *graph.graph.output]
    }
    assert described == {
        "input_ids": (onnx.TensorProto.INT64, ["batch", "length"]),
        "attention_mask": (onnx.TensorProto.INT64, ["batch", "length"]),
        "sentence_embedding": (onnx.TensorProto.FLOAT, ["batch", 6]),
    }
    assert [(item.domain, item.version) for item in graph.opset_import] == [("", OPSET)]


def test_constants_are_merged_and_trimmed(make_encoder, tokenizer):
    graph = build_graph(make_encoder(memory=10), FloatArithmetic())

    shapes = {tensor.name: list(tensor.dims) for tensor in graph.graph.initializer}
    assert shapes["embeddings.word_embeddings.weight"] == [tokenizer.vocabulary_size, 32]
    assert shapes["memory.rows.weight"] == [tokenizer.vocabulary_size, 10]
    assert shapes["embeddings.position_embeddings.weight"] == [tokenizer.max_length, 32]
    assert shapes["encoder.layer.0.attention.self.projection.weight"] == [32, 96]
    assert not any("token_type" in name for name in shapes)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("where", ["backbone.embeddings.word_embeddings.weight", "head.linear.bias"])
def test_weights_that_are_not_finite_are_refused_by_name(make_encoder, value, where):
    encoder = make_encoder(head=6)
    with torch.no_grad():
        encoder.get_parameter(where).view(-1)[3] = value

    with pytest.raises(ExportError, match=rf"{where.removeprefix('backbone.')} .*not finite"):
        build_graph(encoder, FloatArithmetic())


# Cross-encoders


def make_pairs(tokenizer, size, length):
    ids, mask = make_batch(tokenizer, size, length)
    return TokenBatch(ids, mask, np.where(mask, np.arange(length) > length // 2, 0).astype(np.int64))


@torch.inference_mode()
def score_torch(model, batch):
    values = (batch.input_ids, batch.attention_mask, batch.token_type_ids)
    return torch.sigmoid(model(*map(torch.from_numpy, values))).numpy()


def score(graph, batch):
    return Session(graph.SerializeToString(), outputs=["score"], threads=1).run(batch)


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_the_graph_of_a_cross_encoder_is_the_model(make_pair_encoder, tokenizer, family):
    types = {"bert": {}, "roberta": {"type_vocab_size": 1}}[family]
    model = make_pair_encoder(family=family, **types)
    graph = build_graph(model, FloatArithmetic())

    for size, length in GRID:
        batch = make_pairs(tokenizer, size, length)
        np.testing.assert_allclose(score(graph, batch), score_torch(model, batch), atol=1e-5)


def test_the_last_product_of_a_cross_encoder_stays_in_float(make_pair_encoder):
    graph = build_graph(make_pair_encoder(), Int8Arithmetic(64)).graph
    stored = {tensor.name for tensor in graph.initializer}

    assert {"pooler.dense.weight_int8", "classifier.weight"} <= stored
    assert "classifier.weight_int8" not in stored


ARCHITECTURES = ["distilbert", "mpnet", "modernbert", "electra", "albert", "deberta-v2"]
FORMS = {"fp32": 1e-5, "int8": 0.2}  # precision -> largest difference
TEXTS = [*PROBE_TEXTS[:9], "", "the cat", "the dog is " * 20]


def loose(precision):
    """Use gates for random weights, whose ranking suffers more from rounding than that of trained ones."""
    return dataclasses.replace(THRESHOLDS[precision], agreement=0.9, cosine=0.9)


def check_same(path, model, tolerance=1e-5):
    found = Encoder.load(path).encode(TEXTS)
    np.testing.assert_allclose(found, TorchEncoder(model).encode(TEXTS), atol=tolerance)


def initializers(model):
    return {tensor.name: tensor for tensor in model.graph.initializer}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_folder_of_any_architecture_becomes_a_bundle(make_any, tmp_path, architecture):
    model = make_any(architecture)
    model.save(tmp_path / "model")

    report = export_source(str(tmp_path / "model"), tmp_path / "toy.onnx", precision="fp32")

    check_same(tmp_path / "toy.onnx", model)
    bundle = Encoder.load(tmp_path / "toy.onnx")
    assert bundle.verify()["passed"]
    assert (bundle.dimension, bundle.max_length, report.manifest.pooling) == (32, 20, "mean")
    assert report.manifest.gates["parity"]["largest_difference"] <= 1e-5
    assert report.manifest.gates["operators"]["expected"]["layer_norms"] >= 4


def test_masks_that_a_network_adds_are_traced(make_any, tmp_path):
    model = make_any("gemma3_text")

    export(model, tmp_path / "toy.onnx", precision="fp32")

    check_same(tmp_path / "toy.onnx", model)
    model.config.sliding_window = 512
    with pytest.raises(AssertionError):  # the window is in it
        check_same(tmp_path / "toy.onnx", model, 1e-3)


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_weights_that_are_stored_transposed_are_read(make_any, tmp_path, precision):
    model = make_any("gpt2", pooling="lasttoken")

    export(model, tmp_path / "toy.onnx", precision=precision, thresholds=loose(precision))

    check_same(tmp_path / "toy.onnx", model, FORMS[precision])


def test_a_module_may_have_the_name_of_the_output(make_any, tmp_path):
    model = make_any("qwen3", "cross-encoder")
    assert hasattr(model.network, "score")

    export(model, tmp_path / "toy.onnx", precision="fp32")

    found = CrossEncoder.load(tmp_path / "toy.onnx").predict(PROBE_PAIRS)
    np.testing.assert_allclose(found, TorchCrossEncoder(model).predict(PROBE_PAIRS), atol=1e-5)


def test_a_graph_that_is_not_valid_is_reported_in_one_sentence():
    writer = GraphWriter()
    writer.add("Relu", "score", "input_ids")
    writer.add("Relu", "score", "input_ids")

    with pytest.raises(ExportError, match=r"^the graph that was written is not valid ONNX: .*score.*$"):
        writer.finish("twice", ["input_ids"], "score")


@pytest.mark.skipif(not native_instructions(), reason="no kernel")
@pytest.mark.parametrize(
    ("architecture", "sizes", "precision", "tolerance"),
    [
        ("distilbert", {"dim": 64, "hidden_size": 64, "hidden_dim": 128}, "fp32", 1e-5),
        ("electra", {"embedding_size": 64, "hidden_size": 64, "intermediate_size": 128}, "int8", 0.2),
        ("mpnet", {"hidden_size": 64, "intermediate_size": 128}, "int8", 0.2),
        ("modernbert", {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 2}, "fp32", 1e-5),
    ],
)
def test_bert_under_other_names_runs_on_the_kernel(make_any, tmp_path, architecture, sizes, precision, tolerance):
    model = make_any(architecture, **sizes)

    report = export(model, tmp_path / "toy.onnx", precision=precision, thresholds=loose(precision))

    bundle = Encoder.load(tmp_path / "toy.onnx", providers=[NATIVE])
    np.testing.assert_allclose(bundle.encode(TEXTS), TorchEncoder(model).encode(TEXTS), atol=tolerance)
    assert "native" in report.manifest.gates


def test_a_decoder_of_the_family_is_traced_with_its_mask(make_any, tmp_path):
    encoder, decoder = (
        make_any("electra", embedding_size=32, is_decoder=is_decoder) for is_decoder in (False, True)
    )

    export(decoder, tmp_path / "toy.onnx", precision="fp32")

    check_same(tmp_path / "toy.onnx", decoder)
    with pytest.raises(AssertionError):
        check_same(tmp_path / "toy.onnx", encoder, 1e-3)


def test_networks_that_differ_from_bert_are_traced(make_any):
    model = make_any("distilbert")
    assert is_bert(model)
    model.config.activation = "relu"
    assert not is_bert(model)
    assert not is_bert(make_any("electra"))  # projects its words
    assert not is_bert(make_any("distilbert", "cross-encoder"))  # has a ReLU in its classifier
    assert is_bert(make_any("electra", "cross-encoder", embedding_size=32))
    assert not is_bert(make_any("electra", "cross-encoder", embedding_size=32, hidden_act="gelu_new"))
    assert is_bert(make_any("modernbert", "cross-encoder"))
    assert not is_bert(make_any("modernbert", "cross-encoder", classifier_activation="relu"))


@pytest.mark.parametrize("kind", ["unigram", "bytes"])
def test_the_bert_family_takes_other_tokenizers_and_padding(make_encoder, make_tokenizer, tmp_path, kind):
    model = make_encoder(family="roberta", pad_token_id=1)
    model.tokenizer = make_tokenizer(kind)

    export(model, tmp_path / "toy.onnx", precision="fp32")

    check_same(tmp_path / "toy.onnx", model)


@pytest.mark.parametrize(
    ("pooling", "head", "activation"), [("mean", None, "tanh"), ("cls", 6, "tanh"), ("mean", 6, "linear")]
)
def test_a_word_memory_is_traced_with_every_head(make_any, pooling, head, activation):
    model = make_any("electra", pooling=pooling, head=head, activation=activation, memory=10)

    content = build_graph(model, FloatArithmetic()).SerializeToString()

    gates = measure_gates(model, Candidate(content, model.tokenizer), THRESHOLDS["fp32"], quantized=False)
    assert all(gate.passed for gate in gates)


def check_quantized(model, path, precision):
    report = export(
        model,
        path,
        precision=precision,
        calibration=PROBE_TEXTS,
        thresholds=loose(precision),
    )

    gates = report.manifest.gates
    assert is_bert(model) or gates["operators"]["expected"]["products_in_float"] == 0
    rows = Encoder.load(path).encode(TEXTS)
    assert (rows * TorchEncoder(model).encode(TEXTS)).sum(axis=1).min() > 0.9
    return gates["batch_invariance"]["largest_difference"]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_int8_works_with_every_architecture(make_any, tmp_path, architecture):
    assert check_quantized(make_any(architecture, head=6), tmp_path / "toy.onnx", "int8") > 0


@pytest.mark.parametrize("architecture", ["mpnet", "modernbert"])
def test_fixed_scales_work_with_every_architecture(make_any, tmp_path, architecture):
    assert check_quantized(make_any(architecture, head=6), tmp_path / "toy.onnx", "int8-static") < 1e-3


@pytest.mark.parametrize(
    ("architecture", "precision", "tolerance"),
    [*((architecture, "fp32", 1e-5) for architecture in ARCHITECTURES), ("distilbert", "int8", 0.2)],
)
def test_cross_encoders_of_any_architecture(make_any, tmp_path, architecture, precision, tolerance):
    model = make_any(architecture, "cross-encoder")
    model.save(tmp_path / "model")
    limits = dataclasses.replace(PAIR_THRESHOLDS[precision], agreement=-1.0)

    report = export_source(str(tmp_path / "model"), tmp_path / "toy.onnx", precision=precision, thresholds=limits)

    bundle = CrossEncoder.load(tmp_path / "toy.onnx")
    expected = TorchCrossEncoder(model).predict(PROBE_PAIRS)
    np.testing.assert_allclose(bundle.predict(PROBE_PAIRS), expected, atol=tolerance)
    assert np.ptp(expected) > 1e-4
    assert report.manifest.kind == "cross-encoder"


def test_large_weights_are_named_after_their_modules(make_any):
    graph = build_graph(make_any("electra", head=6), Int8Arithmetic(64))

    assert {
        "embeddings.word_embeddings.weight_int8",
        "encoder.layer.1.attention.self.query.weight_int8",
        "head.linear.product.weight_int8",
    } <= initializers(graph).keys()
    assert [(item.domain, item.version) for item in graph.opset_import] == [("", OPSET)]


def test_the_word_table_ends_with_the_tokenizer(make_any):
    model = make_any("electra")

    table = initializers(build_graph(model, FloatArithmetic()))["embeddings.word_embeddings.weight"]

    assert list(table.dims) == [model.tokenizer.vocabulary_size, 16]


@pytest.mark.parametrize("arithmetic", [FloatArithmetic(), Int8Arithmetic(64)])
def test_shared_weights_are_stored_once(make_any, arithmetic):
    one, three = (
        build_graph(make_any("albert", num_hidden_layers=layers), arithmetic).graph.initializer
        for layers in (1, 3)
    )

    assert sum(len(tensor.dims) == 2 for tensor in one) == sum(len(tensor.dims) == 2 for tensor in three)


@pytest.mark.parametrize("architecture", ["albert", "electra"])
def test_one_wrong_weight_is_found(make_any, architecture):
    model = make_any(architecture)
    graph = build_graph(model, FloatArithmetic())
    last = [tensor for tensor in graph.graph.initializer if list(tensor.dims) == [32, 32]][-1]
    value = numpy_helper.to_array(last).copy()
    value[3, 5] += 0.1
    last.CopyFrom(numpy_helper.from_array(value, last.name))

    gates = measure_gates(
        model, Candidate(graph.SerializeToString(), model.tokenizer), THRESHOLDS["fp32"], quantized=False
    )

    assert "parity" in {gate.name for gate in gates if not gate.passed}


def test_a_product_left_in_float_is_found(make_any):
    model = make_any("electra")
    content = build_graph(model, FloatArithmetic()).SerializeToString()

    gates = measure_gates(model, Candidate(content, model.tokenizer), loose("int8"), quantized=True)

    assert {gate.name for gate in gates if not gate.passed} == {"operators"}


def test_a_trace_that_holds_for_one_length_only_misses_the_gates(make_any, tmp_path, monkeypatch):
    model = make_any("electra")

    def forward(input_ids, attention_mask):
        length = torch.tensor(float(input_ids.shape[1]))  # a constant, to the tracer
        return type(model).forward(model, input_ids, attention_mask) + length

    monkeypatch.setattr(model, "forward", forward)

    with pytest.raises(GateError, match="parity"):
        export(model, tmp_path / "toy.onnx", precision="fp32")


def test_an_untraceable_model_is_reported_in_one_sentence(make_any, tmp_path, monkeypatch):
    def fail(*_, **__):
        raise torch.onnx.OnnxExporterError("no such operator\nand much more")

    monkeypatch.setattr(torch.onnx, "export", fail)

    with pytest.raises(ExportError, match=r"^torch cannot trace electra, a electra: no such operator$"):
        export(make_any("electra"), tmp_path / "toy.onnx", precision="fp32")
    assert list(tmp_path.iterdir()) == []


def test_a_failed_trace_prints_no_graph(make_any, tmp_path, monkeypatch, capfd):
    model = make_any("electra")

    def forward(input_ids, attention_mask):
        embeddings = type(model).forward(model, input_ids, attention_mask)
        return torch.nn.functional.adaptive_avg_pool1d(embeddings[None], 7)[0]

    monkeypatch.setattr(model, "forward", forward)

    with pytest.raises(ExportError, match=r"^torch cannot trace electra, a electra: .* output size [^\[]*$"):
        build_graph(model, FloatArithmetic())
    assert "graph(" not in "".join(capfd.readouterr())  # threads of other libraries write there, too


def test_tracing_leaves_the_model_as_it_was(make_any):
    model = make_any("electra").train()
    before = model.backbone.config._attn_implementation

    build_graph(model, FloatArithmetic())

    assert model.training
    assert model.backbone.config._attn_implementation == before


@pytest.mark.parametrize("change", [{"hidden_act": "relu"}, {"position_embedding_type": "relative_key"}])
def test_a_bert_with_other_parts_is_traced(make_encoder, tmp_path, change):
    model = make_encoder(**change)

    export(model, tmp_path / "toy.onnx", precision="fp32")

    check_same(tmp_path / "toy.onnx", model)
