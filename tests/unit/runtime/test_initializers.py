"""Reading graphs: external data is found at any depth, weights are listed by size."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from embedkit.errors import BundleError
from embedkit.runtime import protobuf
from embedkit.runtime.protobuf import encode_bytes, large_tables, largest_initializers, refuse_external_data


def tensor(*, external):
    made = numpy_helper.from_array(np.zeros(4, dtype=np.float32), "t")
    if external:
        onnx.external_data_helper.set_external_data(made, "other.bin")
    return made


def located_elsewhere():
    made = tensor(external=False)
    made.data_location = onnx.TensorProto.EXTERNAL
    return made


def graph_with(item):
    return helper.make_graph([helper.make_node("Constant", [], ["c"], value=item)], "inner", [], [])


def models(item):
    """Return a model for every place that can hold a tensor."""
    sparse = helper.make_sparse_tensor(item, tensor(external=False), [4])
    attributes = {
        "attribute": helper.make_attribute("a", item),
        "attributes": helper.make_attribute("a", [item, item]),
        "subgraph": helper.make_attribute("a", graph_with(item)),
        "subgraphs": helper.make_attribute("a", [graph_with(item)]),
        "sparse attribute": helper.make_attribute("a", sparse),
    }
    made = {}
    for name, attribute in attributes.items():
        node = helper.make_node("If", [], ["x"])
        node.attribute.append(attribute)
        made[name] = helper.make_model(helper.make_graph([node], "g", [], []))
        made[f"{name} of a function"] = helper.make_model(helper.make_graph([], "g", [], []))
        made[f"{name} of a function"].functions.add(name="f").node.append(node)
    made["initializer"] = helper.make_model(helper.make_graph([], "g", [], [], [item]))
    made["sparse initializer"] = helper.make_model(helper.make_graph([], "g", [], [], sparse_initializer=[sparse]))
    made["training"] = helper.make_model(helper.make_graph([], "g", [], []))
    made["training"].training_info.add(algorithm=graph_with(item))
    return made


@pytest.mark.parametrize("place", models(tensor(external=False)))
def test_external_data_is_found_at_every_place(place):
    refuse_external_data(models(tensor(external=False))[place].SerializeToString())
    for item in (tensor(external=True), located_elsewhere()):
        with pytest.raises(BundleError, match="external data"):
            refuse_external_data(models(item)[place].SerializeToString())


def test_deeply_nested_graphs_do_not_exhaust_the_stack():
    # A node in a graph in an attribute in a node ...: lengths are filled in from the inside out.
    content = b""
    for _ in range(3000):
        content = encode_bytes(1, encode_bytes(5, encode_bytes(6, content)))
    refuse_external_data(encode_bytes(7, content))


def test_a_graph_of_too_many_fields_is_refused(monkeypatch):
    monkeypatch.setattr(protobuf, "_MOST_FIELDS", 10)
    with pytest.raises(BundleError, match="more than 10 fields"):
        refuse_external_data(b"\x08\x01" * 11)


def test_weights_are_listed_by_size(toy_model_bytes):
    found = largest_initializers(toy_model_bytes, 3)
    assert [weight.name for weight in found] == ["weights", "tokens", "last"]
    assert found[0].size_bytes > 30_000


def gather(table, operator="Gather"):
    return helper.make_node(operator, [table, "ids"], [f"{table}_rows"])


@pytest.mark.parametrize(
    ("operator", "tables"), [("Gather", ["w"]), ("GatherBlockQuantized", ["w"]), ("MatMul", [])]
)
def test_tables_are_what_rows_are_taken_from(operator, tables):
    weight = numpy_helper.from_array(np.zeros((9, 9), dtype=np.float32), "w")
    graph = helper.make_graph([gather("other"), gather("w", operator)], "g", [], [], [weight])
    assert list(large_tables(helper.make_model(graph).SerializeToString(), least_bytes=1)) == tables


def test_large_tables_are_read_in_place_as_onnx_reads_them():
    generator = np.random.default_rng(0)
    kept = {
        "floats": generator.normal(size=(50, 8)).astype(np.float32),
        "halves": generator.normal(size=(800,)).astype(np.float16),
        "bytes": generator.integers(0, 255, (300, 5), dtype=np.uint8),
        "signed": generator.integers(-128, 127, (3, 500, 1), dtype=np.int8),
    }
    left_out = {"positions": np.arange(1000), "few": np.zeros(3, dtype=np.float32)}
    tensors = [numpy_helper.from_array(array, name) for name, array in (kept | left_out).items()]
    tensors.append(helper.make_tensor("typed", onnx.TensorProto.FLOAT, [500], np.ones(500)))  # not raw
    nodes = [gather(tensor.name) for tensor in tensors]
    content = helper.make_model(helper.make_graph(nodes, "g", [], [], tensors)).SerializeToString()
    found = large_tables(content, least_bytes=1000)
    assert found.keys() == kept.keys()
    for name, array in kept.items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].dtype == array.dtype
        assert found[name].flags.aligned
    assert np.shares_memory(found["bytes"], np.frombuffer(content, dtype=np.uint8))


def test_a_shape_may_be_packed_as_other_writers_do():
    raw = np.arange(6, dtype=np.int8).tobytes()
    packed = encode_bytes(1, b"\x02\x03") + b"\x10\x03" + encode_bytes(8, b"w") + encode_bytes(9, raw)
    graph = encode_bytes(1, gather("w").SerializeToString()) + encode_bytes(5, packed)
    (weight,) = large_tables(encode_bytes(7, graph), least_bytes=1).values()
    assert weight.tolist() == [[0, 1, 2], [3, 4, 5]]


def test_tables_whose_bytes_do_not_fit_their_shape_are_left_to_onnx_runtime():
    wrong = numpy_helper.from_array(np.zeros(4, dtype=np.float32), "w")
    wrong.dims[0] = 5
    content = helper.make_model(helper.make_graph([gather("w")], "g", [], [], [wrong])).SerializeToString()
    assert large_tables(content, least_bytes=1) == {}
