"""Toys that tests of several rooms share, and plain loops for their references."""

from __future__ import annotations

import hashlib
import io
import json
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tokenizers

from embedkit.runtime.tokenization import Tokenizer


def stage_config(**settings: Any) -> Any:
    """Return a run's configuration for the loop, which reads neither its method nor its corpus."""
    from embedkit.training.config import RunConfig
    from embedkit.training.corpus import SourceConfig

    return RunConfig(method="toy", corpus=(SourceConfig(path="toy.txt"),), **settings)


def limit_threads(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """Let that many more threads start, and no further one."""
    start, left = threading.Thread.start, iter(range(most))

    def start_another(thread: threading.Thread) -> None:
        if next(left, None) is None:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_another)


class TableTeacher:
    """A teacher whose vectors are given.

    Args:
        table: ``(N, D)``, for every view, or ``(views, N, D)``.
        name: its name.
    """

    def __init__(self, table: npt.NDArray[Any], name: str = "invented") -> None:
        self.table, self.name, self.dimension = table.astype(np.float32), name, table.shape[-1]
        self.fingerprint = hashlib.sha256(name.encode()).hexdigest()

    @classmethod
    def random(cls, rows: int, dimension: int, name: str = "invented") -> TableTeacher:
        """Another unit vector for each row of both views."""
        return cls(unit_rows(np.random.default_rng(dimension).standard_normal((2, rows, dimension))), name)

    def read(self, rows: npt.NDArray[np.int64], view: int) -> npt.NDArray[np.float32]:
        return (self.table if self.table.ndim == 2 else self.table[view])[rows]


def unit_rows(rows: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Scale vectors to length 1."""
    return (rows / np.linalg.norm(rows, axis=-1, keepdims=True)).astype(np.float32)


class Both:
    """A tokenizer with its kernel, and the one of the package tokenizers that it has to agree with."""

    def __init__(self, content: str, max_length: int = 12) -> None:
        self.quick, self.full = Tokenizer(content, max_length), tokenizers.Tokenizer.from_str(content)
        self.full.no_padding()
        self.full.enable_truncation(max_length)
        assert self.quick._pieces is not None
        self.quick._pieces._missing = 0

    def compare(self, texts: list[str]) -> None:
        expected = [self.full.encode(text) for text in texts]
        found = self.quick.tokenize(texts)
        assert found.ids == [encoding.ids for encoding in expected]
        assert found.overflowing == [row for row, encoding in enumerate(expected) if encoding.overflowing]

    def left(self, texts: list[str]) -> list[str]:
        """Return the texts that the kernel leaves to the tokenizer."""
        found = self.quick._pieces.encode(texts)
        assert found is not None
        return [texts[position] for position in found[2]]


def dot(first: Any, second: Any) -> float:
    """The product of two rows of numbers."""
    return sum(float(x) * float(y) for x, y in zip(first, second, strict=True))


def cosine(first: Any, second: Any) -> float:
    """The cosine of two rows of numbers."""
    return dot(first, second) / math.sqrt(dot(first, first)) / math.sqrt(dot(second, second))


def softmax(values: Sequence[float]) -> list[float]:
    """The share of each number's exponential."""
    weights = [math.exp(value) for value in values]
    return [weight / sum(weights) for weight in weights]


def slope(function: Callable[..., float], tensors: Sequence[Any], number: int, place: Any) -> float:
    """The derivative of a function of tensors by one value of one of them, by differences."""
    values = []
    for step in (1e-4, -1e-4):
        moved = [tensor.detach().double().clone() for tensor in tensors]
        moved[number][place] += step
        values.append(function(*moved))
    return (values[0] - values[1]) / 2e-4


def without_dropout(module: Any) -> Any:
    """Switch dropout off, so that every pass computes the same; return the module."""
    for part in module.modules():
        if type(part).__name__ == "Dropout":
            part.p = 0.0
        if hasattr(part, "dropout_prob"):  # of BERT's attention
            part.dropout_prob = 0.0
    return module


def refuse_conditions(monkeypatch: Any) -> None:
    """Let the calling thread enter no ``threading.Condition``; others, such as the test runner's, may."""
    caller, entered = threading.get_ident(), threading.Condition.__enter__

    def enter(condition: threading.Condition) -> Any:
        assert threading.get_ident() != caller, "a condition was entered"
        return entered(condition)

    monkeypatch.setattr(threading.Condition, "__enter__", enter)


def edit_json(path: Path, **changes: Any) -> None:
    """Change or add settings of a JSON file, which need not exist."""
    content = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    path.write_text(json.dumps(content | changes), encoding="utf-8")


def write_parquet(path: Path, table: Any, **options: Any) -> None:
    """Write columns, records or a table of Arrow; skip the test where pyarrow is not installed."""
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    if isinstance(table, dict):
        table = arrow.table(table)
    elif isinstance(table, list):
        table = arrow.Table.from_pylist(table)
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(table, path, **options)


def graph_bytes(
    nodes: Sequence[Any],
    inputs: Sequence[tuple[str, int, list[Any]]],
    outputs: Sequence[tuple[str, int, list[Any]]],
    constants: Mapping[str, npt.NDArray[Any]],
) -> bytes:
    """Serialise a graph of ONNX; inputs and outputs are names, element types and axes."""
    onnx = pytest.importorskip("onnx")
    values = [[onnx.helper.make_tensor_value_info(*value) for value in side] for side in (inputs, outputs)]
    stored = [onnx.numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = onnx.helper.make_graph(nodes, "toy", *values, stored)
    opsets = [onnx.helper.make_opsetid("", 17)]
    return bytes(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString())


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True
