import numpy as np
import onnx
import pytest
import torch

from embedkit.errors import ExportError
from embedkit.export.graph import build_graph
from embedkit.export.quantize import Int8Arithmetic
from embedkit.export.writer import OPSET, FloatArithmetic
from embedkit.runtime.session import Session
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


@pytest.mark.parametrize("family", ["bert", "roberta"])
@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("head", [None, 6])
def test_the_graph_is_the_model(make_encoder, tokenizer, family, pooling, head):
    encoder = make_encoder(family=family, pooling=pooling, head=head)
    graph = build_graph(encoder, FloatArithmetic())

    for size, length in GRID:
        ids, mask = make_batch(tokenizer, size, length)
        np.testing.assert_allclose(run(graph, ids, mask), run_torch(encoder, ids, mask), atol=1e-5)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize(("head", "activation"), [(None, "tanh"), (6, "tanh"), (6, "linear")])
def test_a_word_memory_works_with_every_head(make_encoder, tokenizer, pooling, head, activation):
    encoder = make_encoder(pooling=pooling, head=head, activation=activation, memory=10)
    graph = build_graph(encoder, FloatArithmetic())

    for size, length in GRID:
        ids, mask = make_batch(tokenizer, size, length)
        np.testing.assert_allclose(run(graph, ids, mask), run_torch(encoder, ids, mask), atol=1e-5)
    shapes = {tensor.name: list(tensor.dims) for tensor in graph.graph.initializer}
    assert shapes["memory.rows.weight"] == [tokenizer.vocabulary_size, 10]


@pytest.mark.parametrize("activation", ["gelu_new", "gelu_pytorch_tanh"])
def test_the_tanh_form_of_gelu_is_kept(make_encoder, tokenizer, activation):
    encoder = make_encoder(hidden_act=activation)
    ids, mask = make_batch(tokenizer, 3, 9)

    rows = run(build_graph(encoder, FloatArithmetic()), ids, mask)

    np.testing.assert_allclose(rows, run_torch(encoder, ids, mask), atol=1e-5)


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
    graph = build_graph(make_encoder(), FloatArithmetic())

    shapes = {tensor.name: list(tensor.dims) for tensor in graph.graph.initializer}
    assert shapes["embeddings.word_embeddings.weight"] == [tokenizer.vocabulary_size, 32]
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


def test_inputs_and_output_of_a_cross_encoder_are_those_of_a_bundle(make_pair_encoder):
    for model in (make_pair_encoder(), make_pair_encoder(family="roberta", type_vocab_size=1)):
        graph = build_graph(model, FloatArithmetic()).graph
        assert [value.name for value in graph.input] == ["input_ids", "attention_mask", "token_type_ids"]
        (output,) = graph.output
        assert output.name == "score"
        assert [axis.dim_param for axis in output.type.tensor_type.shape.dim] == ["batch"]


def test_the_last_product_of_a_cross_encoder_stays_in_float(make_pair_encoder):
    graph = build_graph(make_pair_encoder(), Int8Arithmetic(64)).graph
    stored = {tensor.name for tensor in graph.initializer}

    assert {"pooler.dense.weight_int8", "classifier.weight"} <= stored
    assert "classifier.weight_int8" not in stored
