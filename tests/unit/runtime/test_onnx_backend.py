"""Sessions: ONNX Runtime's refusals are reported, and nothing silently falls back to another provider."""

from __future__ import annotations

import gc
import os
import subprocess
import sys

import numpy as np
import onnx
import pytest
from onnx import helper
from toys import graph_bytes

from embedkit.errors import InputError, ModelError, ProviderError
from embedkit.runtime import onnx_backend
from embedkit.runtime.find import BUNDLED
from embedkit.runtime.kernel_backend import NATIVE, KernelBackend
from embedkit.runtime.network import read_network
from embedkit.runtime.onnx_backend import Session
from embedkit.runtime.tokenization import TokenBatch

BATCH = TokenBatch(np.array([[2, 5, 3]]), np.ones((1, 3), dtype=np.int64))


def open_session(model, **options):
    return Session(model, outputs=["sentence_embedding"], **options)


def identity(inputs, output=onnx.TensorProto.FLOAT):
    """Return a graph that adds its inputs up as floats."""
    nodes = [helper.make_node("Cast", [name], [f"{name}_float"], to=onnx.TensorProto.FLOAT) for name in inputs] + [
        helper.make_node("Sum", [f"{name}_float" for name in inputs], ["sum"]),
        helper.make_node("Cast", ["sum"], ["sentence_embedding"], to=output),
    ]
    taken = [(name, kind, ["b", "l"]) for name, kind in inputs.items()]
    return graph_bytes(nodes, taken, [("sentence_embedding", output, ["b", "l"])], {})


def test_it_describes_its_provider_and_threads(toy_model_bytes):
    session = open_session(toy_model_bytes, threads=1)
    assert session.threads == 1
    assert session.providers == ["CPUExecutionProvider"]
    assert (session.output, session.width) == ("sentence_embedding", 16)
    assert session.run(BATCH).shape == (1, 16)


def test_graphs_that_are_large_without_shared_tables_have_no_lanes(toy_model_bytes, monkeypatch):
    monkeypatch.setattr(onnx_backend, "_LANE_BYTES", len(toy_model_bytes) - 1)
    assert not open_session(toy_model_bytes).has_lanes
    monkeypatch.setattr(onnx_backend, "_SHARED_BYTES", 1000)
    assert open_session(toy_model_bytes).has_lanes


def test_lanes_are_as_many_as_threads_unless_they_hold_too_much(toy_model_bytes, monkeypatch):
    assert open_session(toy_model_bytes, threads=5).lanes == 5
    monkeypatch.setattr(onnx_backend, "_ALL_LANES_BYTES", 3 * len(toy_model_bytes))
    assert open_session(toy_model_bytes, threads=5).lanes == 3
    monkeypatch.setattr(onnx_backend, "_ALL_LANES_BYTES", 1)
    assert open_session(toy_model_bytes, threads=5).lanes == 1
    monkeypatch.setattr(onnx_backend, "_LANE_BYTES", 1)
    assert open_session(toy_model_bytes, threads=5).lanes == 1


def test_shared_tables_change_no_bit(toy_model_bytes, monkeypatch):
    expected = open_session(toy_model_bytes, threads=1).run(BATCH)
    monkeypatch.setattr(onnx_backend, "_SHARED_BYTES", 1)
    session = open_session(toy_model_bytes, threads=2)
    assert session._shared
    del toy_model_bytes
    gc.collect()  # what the sessions read must still exist
    for lane in (None, 0, 1):
        np.testing.assert_array_equal(session.run(BATCH, lane=lane), expected)


@pytest.mark.parametrize("backend", ["kernel", "one thread", "two lanes"])
def test_no_backend_keeps_the_bytes_of_the_file(monkeypatch, backend):
    """What they need of a file they copy, so that it is not in memory twice."""
    content = (BUNDLED / "tiny.onnx").read_bytes()
    monkeypatch.setattr(onnx_backend, "_SHARED_BYTES", 1)
    references = sys.getrefcount(content)
    if backend == "kernel":
        opened = KernelBackend.choose(read_network(content), providers=[NATIVE])
    else:
        opened = open_session(content, threads=1 if backend == "one thread" else 2)
        for lane in range(opened.lanes):
            opened.run(BATCH, lane=lane)
    gc.collect()
    assert opened is not None
    assert sys.getrefcount(content) == references


def test_inputs_have_the_types_of_the_graph():
    int32, int64 = onnx.TensorProto.INT32, onnx.TensorProto.INT64
    for inputs in (
        {"input_ids": int64},
        {"input_ids": int32, "attention_mask": int64},
        {"input_ids": int64, "attention_mask": int32, "token_type_ids": int64},
    ):
        rows = open_session(identity(inputs)).run(BATCH)
        np.testing.assert_array_equal(rows, BATCH.input_ids + (len(inputs) > 1))


def test_half_floats_become_floats():
    rows = open_session(identity({"input_ids": onnx.TensorProto.INT64}, onnx.TensorProto.FLOAT16)).run(BATCH)
    assert rows.dtype == np.float32


@pytest.mark.parametrize("name", ["pixels", "position_ids"])
def test_inputs_that_no_encoder_has_are_refused(name):
    with pytest.raises(ModelError, match=f"the graph requires '{name}'"):
        open_session(identity({name: onnx.TensorProto.INT64}))


def test_inputs_of_another_kind_are_refused():
    with pytest.raises(ModelError, match=r"tensor\(float\)"):
        open_session(identity({"input_ids": onnx.TensorProto.FLOAT}))


def test_the_first_existing_output_is_used(toy_model_bytes):
    session = Session(toy_model_bytes, outputs=["last_hidden_state", "sentence_embedding"])
    assert session.output == "sentence_embedding"
    with pytest.raises(ModelError, match="returns sentence_embedding; expected a or b"):
        Session(toy_model_bytes, outputs=["a", "b"])


@pytest.mark.parametrize("model", [b"", b"\x08\x08", b"no model", bytes(100)])
def test_what_is_no_model_is_refused(model):
    with pytest.raises(ModelError, match="ONNX Runtime cannot load the graph"):
        open_session(model)


def test_a_graph_that_fails_says_on_which_batch(toy_model_bytes):
    beyond = TokenBatch(np.array([[10**6]]), np.ones((1, 1), dtype=np.int64))
    with pytest.raises(ModelError, match=r"failed on batch \(1, 1\)"):
        open_session(toy_model_bytes).run(beyond)


def test_a_missing_provider_is_an_error(toy_model_bytes):
    with pytest.raises(ProviderError, match=r"NoneSuch is not among .*CPUExecutionProvider"):
        open_session(toy_model_bytes, providers=["NoneSuch", "CPUExecutionProvider"])


def test_a_provider_that_does_not_start_is_an_error(toy_model_bytes, monkeypatch):
    class Lost:
        def __init__(self, *arguments, **options):
            pass

        def get_providers(self):
            return ["CPUExecutionProvider"]

    monkeypatch.setattr(onnx_backend, "InferenceSession", Lost)
    monkeypatch.setattr(onnx_backend, "available_providers", lambda: ["CUDAExecutionProvider"])
    with pytest.raises(ProviderError, match="CUDAExecutionProvider did not start"):
        open_session(toy_model_bytes, providers=["CUDAExecutionProvider"])


@pytest.mark.parametrize("providers", [[], "CPUExecutionProvider"])
def test_providers_are_a_list_of_names(toy_model_bytes, providers):
    with pytest.raises(InputError, match="providers"):
        open_session(toy_model_bytes, providers=providers)


@pytest.mark.parametrize(
    "content",
    ["raise ModuleNotFoundError(\"No module named 'onnxruntime'\")", "", "raise ImportError('DLL load failed')"],
)
def test_a_missing_or_damaged_onnx_runtime_is_one_sentence(tmp_path, content):
    (tmp_path / "onnxruntime").mkdir()
    (tmp_path / "onnxruntime/__init__.py").write_text(content)
    script = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from embedkit.errors import MissingExtraError\n"
        "from embedkit import Encoder\n"
        "try:\n    Encoder.load('tiny', providers=['CPUExecutionProvider'])\n"
        "except MissingExtraError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "onnxruntime" in done.stdout
    assert "pip install" in done.stdout
    assert len(done.stdout.splitlines()) == 1


def test_onnx_runtime_stores_no_telemetry(tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    script = "from embedkit import Encoder; Encoder.load('tiny').encode(['a'])"
    homes = {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    subprocess.run([sys.executable, "-c", script], env=environment | homes, check=True)
    assert not list(tmp_path.iterdir())


def test_onnx_runtime_writes_no_names_of_a_file_to_stderr(capfd):
    int64 = onnx.TensorProto.INT64
    nodes = [
        helper.make_node("Reshape", ["input_ids", "shape"], ["wrong"], name="\x1b[2Jnode"),
        helper.make_node("Cast", ["wrong"], ["sentence_embedding"], to=onnx.TensorProto.FLOAT),
    ]
    shape = onnx.numpy_helper.from_array(np.array([7, 7]), "shape")
    outputs = [helper.make_tensor_value_info("sentence_embedding", onnx.TensorProto.FLOAT, [7, 7])]
    taken = [helper.make_tensor_value_info("input_ids", int64, ["b", "l"])]
    graph = helper.make_graph(nodes, "g", taken, outputs, [shape])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    with pytest.raises(ModelError):
        open_session(model.SerializeToString()).run(BATCH)
    assert "\x1b" not in capfd.readouterr().err
