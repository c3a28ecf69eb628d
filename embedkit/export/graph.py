"""The ONNX graph of any encoder or cross-encoder.

``input_ids, attention_mask (B, L) int64 -> sentence_embedding (B, D) float32, unit rows``; for a cross-encoder
``input_ids, attention_mask, token_type_ids (B, L) int64 -> score (B,) float32`` in (0, 1), after the sigmoid.

The BERT family is written operator by operator; every other architecture is traced by torch, whose tracer keeps
each LayerNormalization, Gelu and linear product as one operator. The traced nodes are copied one by one, except
for products with weights and word lookups, which the arithmetic writes, so that every precision and word table is
available for every architecture. The gates verify that the traced graph equals the network for batch sizes and
lengths other than those of the trace.
"""

from __future__ import annotations

import contextlib
import itertools
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import torch
from onnx import numpy_helper

from embedkit.errors import ExportError, first_line
from embedkit.export.bert import is_bert, write_bert
from embedkit.export.probes import GOLDEN_PAIRS, GOLDEN_TEXTS
from embedkit.export.writer import (
    OPSET,
    PAIR_INPUTS,
    TEXT_INPUTS,
    Arithmetic,
    FloatArithmetic,
    GraphWriter,
    digest,
)
from embedkit.modeling.cross_encoder import PairEncoder
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.modeling.pretrained import evaluating, plain_attention


def build_graph(model: SentenceEncoder | PairEncoder, arithmetic: Arithmetic) -> onnx.ModelProto:
    """Write the graph of an encoder or a cross-encoder.

    Raises:
        ExportError: a weight is not finite, or the network cannot be traced.
    """
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise ExportError(
                f"{name} of {model.name} contains values that are not finite; was the training stable?"
            )
    return write_bert(model, arithmetic) if is_bert(model) else trace_graph(model, arithmetic)


_OUTPUT = "traced"
_RESERVED = (*PAIR_INPUTS, "score", "sentence_embedding")  # of every bundle; a module may have the same name
_PRODUCTS = ("MatMul", "Gemm")  # torch writes Gemm only as values @ weight + bias, the weight transposed or not


def trace_graph(model: SentenceEncoder | PairEncoder, arithmetic: Arithmetic) -> onnx.ModelProto:
    """Trace an encoder or a cross-encoder, and write its graph.

    Raises:
        ExportError: torch cannot trace the network.
    """
    traced = _trace(model)
    graph = _SharingWriter()
    output = _Copier(graph, traced, arithmetic, model.tokenizer.vocabulary_size).copy()
    if isinstance(model, PairEncoder):
        return graph.finish("cross_encoder", PAIR_INPUTS, graph.add("Sigmoid", "score", output))
    return graph.finish("sentence_encoder", TEXT_INPUTS, graph.unit_rows(output), model.dimension)


def example_inputs(model: SentenceEncoder | PairEncoder) -> tuple[torch.Tensor, ...]:
    """Return the model's inputs for two texts or pairs of different lengths: ``(2, L) int64`` each."""
    tokens = (
        model.tokenizer.tokenize(GOLDEN_PAIRS[:2])
        if isinstance(model, PairEncoder)
        else model.tokenizer.tokenize(GOLDEN_TEXTS[:2])
    )
    batch = tokens.batch([0, 1], model.tokenizer.pad_id)
    values = (batch.input_ids, batch.attention_mask, batch.token_type_ids)
    return tuple(torch.from_numpy(value).to(model.device) for value in values if value is not None)


def _trace(model: SentenceEncoder | PairEncoder) -> onnx.ModelProto:
    """Return torch's trace of the model, up to the pooled embedding or the logit."""
    names = PAIR_INPUTS if isinstance(model, PairEncoder) else TEXT_INPUTS
    inputs, shape = example_inputs(model), {0: "batch", 1: "length"}
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about values fixed by the trace: the gates test other shapes
        path = Path(folder) / "traced.onnx"
        try:
            with evaluating(model), torch.inference_mode(), plain_attention(model.body), _quiet_tracer():
                torch.onnx.export(
                    model,
                    inputs,
                    path,
                    input_names=list(names),
                    output_names=[_OUTPUT],
                    dynamic_axes=dict.fromkeys(names, shape) | {_OUTPUT: {0: "batch"}},
                    opset_version=OPSET,
                    dynamo=False,
                )
        except Exception as error:  # an architecture's own code raises anything while it is prepared and traced
            reason = first_line(error).partition("  [Caused by the value")[0]  # with its line of the graph
            raise ExportError(f"torch cannot trace {model.name}, a {model.config.model_type}: {reason}") from error
        return onnx.load(path)


@contextlib.contextmanager
def _quiet_tracer() -> Iterator[None]:
    """Keep torch from printing its whole graph when a trace fails, which none of its options prevents."""
    name = "_jit_onnx_log"
    log = getattr(torch._C, name, None)  # noqa: SLF001 - the only place where the messages can be dropped
    setattr(torch._C, name, lambda *_: None)  # noqa: SLF001
    try:
        yield
    finally:
        setattr(torch._C, name, log)  # noqa: SLF001


class _SharingWriter(GraphWriter):
    """Stores equal constants once, because layers may share weights."""

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[bytes, str] = {}

    def constant(self, name: str, value: npt.NDArray[np.generic]) -> str:
        return super().constant(self._known.setdefault(digest(value), name), value)


class _Copier:
    """Copies a traced graph, writing large weights with a given arithmetic."""

    def __init__(
        self, graph: GraphWriter, traced: onnx.ModelProto, arithmetic: Arithmetic, vocabulary_size: int
    ) -> None:
        self.graph, self.arithmetic = graph, arithmetic
        self.vocabulary_size = vocabulary_size
        self.tensors = {tensor.name: numpy_helper.to_array(tensor) for tensor in traced.graph.initializer}
        self.nodes = [node for node in traced.graph.node if not self._is_weight(node)]

    def copy(self) -> str:
        """Write all nodes, products and word lookups named after their modules; return the name of the output."""
        large = [node for node in self.nodes if self._is_product(node) or self._is_word_table(node)]
        taken = set(_RESERVED)
        names = {node.output[0]: _unused(_module(node.name), taken) for node in large}
        _rename(self.nodes, names)
        for node in self.nodes:
            if self._is_word_table(node):
                table = self.tensors[node.input[0]][: self.vocabulary_size]
                self.arithmetic.gather(self.graph, node.output[0], table, node.input[1])
            elif self._is_product(node):
                self._multiply(node)
            else:
                self._keep(node)
        return names.get(_OUTPUT, _OUTPUT)

    def _is_weight(self, node: onnx.NodeProto) -> bool:
        """Whether a node only passes on a weight shared by several modules, possibly transposed."""
        source = self.tensors.get(node.input[0]) if node.input else None
        if source is not None and node.op_type == "Identity":
            self.tensors[node.output[0]] = source
        elif source is not None and node.op_type == "Transpose" and source.ndim == 2:
            self.tensors[node.output[0]] = source.T
        return node.output[0] in self.tensors

    def _is_word_table(self, node: onnx.NodeProto) -> bool:
        return node.op_type == "Gather" and self._is_matrix(node.input[0]) and node.input[1] == TEXT_INPUTS[0]

    def _is_product(self, node: onnx.NodeProto) -> bool:
        return node.op_type in _PRODUCTS and self._is_matrix(node.input[1])

    def _is_matrix(self, name: str) -> bool:
        tensor = self.tensors.get(name)
        return tensor is not None and tensor.dtype == np.float32 and tensor.ndim == 2

    def _multiply(self, node: onnx.NodeProto) -> None:
        """Write MatMul by a weight, or Gemm, which torch uses for products of rows and which adds a bias."""
        name, weight = node.output[0], self.tensors[node.input[1]]
        value = self._constant(node.input[0]) if node.input[0] in self.tensors else node.input[0]
        # A single column, as in a cross-encoder: int8 would save 3H bytes and blur every score.
        arithmetic = self.arithmetic if min(weight.shape) > 1 else FloatArithmetic()
        if node.op_type == "MatMul":
            arithmetic.matmul(self.graph, name, value, weight)
            return
        is_transposed = any(attribute.name == "transB" and attribute.i for attribute in node.attribute)
        weight = weight.T if is_transposed else weight  # GPT-2's are not
        product = arithmetic.matmul(self.graph, f"{name}.product", value, weight)
        self.graph.add("Add", name, product, self._constant(node.input[2]))

    def _keep(self, node: onnx.NodeProto) -> None:
        used = {name for inner in _walk([node]) for name in inner.input if name in self.tensors}
        _rename([node], {name: self._constant(name) for name in used})
        self.graph.copy(node)

    def _constant(self, name: str) -> str:
        return self.graph.constant(name, self.tensors[name])


def _walk(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Yield nodes, including those in branches."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            yield from _walk(attribute.g.node)


def _rename(nodes: Iterable[onnx.NodeProto], names: Mapping[str, str]) -> None:
    """Rename values wherever they are written and read."""
    for node in _walk(nodes):
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]


def _unused(name: str, taken: set[str]) -> str:
    """Return the name, followed by a number if it is taken, and take it."""
    numbered = (f"{name}.{number}" for number in itertools.count(2))
    free = next(candidate for candidate in itertools.chain([name], numbered) if candidate not in taken)
    taken.add(free)
    return free


def _module(node_name: str) -> str:
    """Convert ``/backbone/layers.0/attn/Wo/MatMul`` to ``layers.0.attn.Wo``."""
    _, *path, _ = node_name.split("/")
    return ".".join(path).removeprefix("backbone.").removeprefix("network.")
