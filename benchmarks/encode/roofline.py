"""Roofline analysis of encoding: operations per text, relative to the processor's peak.

    python benchmarks/encode/roofline.py --data DIR --run RUN

The peak is measured: the fastest product of large matrices in ONNX Runtime, for floats and for bytes. The
operations of a text are counted at its length, from the shapes of all products in the optimized graph; products of
bytes are related to the peak of bytes, all others to that of floats. Everything else (normalisation, softmax,
Gelu, tables, tokenization, memory) counts as free. The roofline therefore cannot be reached, and the share of it
is the share of time spent on necessary products.

Matrices of a small network are far too small to reach the peak. A second roof therefore times each product of the
graph with weights separately, at its own shape with the rows of a token batch, on one thread each; other products
are related to the peak. --run is a folder of `embedkit train`, exported as fp32 and int8; more bundles may follow.
Use an idle machine. Writes roofline.json and roofline.md next to this file.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper
from run import describe, read_texts

from embedkit import Encoder
from embedkit.export.pipeline import export_source
from embedkit.runtime.bundle import read_bundle

HERE = Path(__file__).parent
SIDES = (256, 512, 1024, 2048)  # of the square matrices; the best one determines the peak
ROWS, COPIES = 256, 16  # tokens per batch; consecutive products, to amortise the call
SECONDS = 1.0  # for each measurement
LEAST_CALLS = 3
NO_PRODUCT = ("Attention", "MultiHeadAttention", "QAttention", "Conv", "Einsum", "LSTM")  # would not be counted


class Kind(NamedTuple):
    """A kind of product: of bytes or of floats, and the shape of the weights; None without weights."""

    of_bytes: bool
    weights: tuple[int, int] | None


# Operations (multiplications and additions) by kind.
Needed = Counter[Kind]
# Operations per second, for floats and bytes.
Peak = tuple[float, float]


def main() -> None:
    """Measure peaks, count operations, time, and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundles", nargs="*", type=Path, help="further bundles")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--run", required=True)
    parser.add_argument("--texts", type=int, default=4096, help="texts of each kind")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("-o", "--output", default="roofline", help="name of the two files")
    arguments = parser.parse_args()
    logging.getLogger("embedkit").setLevel(logging.ERROR)  # truncation is intended
    texts = read_texts(arguments.data / "train", arguments.texts)
    about = describe(arguments, texts) | {"onnxruntime": onnxruntime.__version__}
    peaks = {threads: measure_peak(threads) for threads in arguments.threads}
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for precision in ("fp32", "int8"):
            path = Path(folder) / f"{precision}.onnx"
            export_source(arguments.run, path, precision=precision)
            rows += compare(f"Tiny {precision}", path, texts, peaks, arguments.turns)
    for path in arguments.bundles:
        rows += compare(path.stem, path, texts, peaks, arguments.turns)
    write(rows, peaks, about, HERE / arguments.output)


def measure_peak(threads: int) -> Peak:
    """Return the operations per second that ONNX Runtime reaches with large matrices."""
    of_floats, of_bytes = (
        max(reach(kind, rows=side, shape=(side, side), copies=1, threads=threads) for side in SIDES)
        for kind in (False, True)
    )
    return of_floats, of_bytes


@cache
def reach(of_bytes: bool, *, rows: int, shape: tuple[int, int], copies: int, threads: int) -> float:  # noqa: FBT001
    """Return the operations per second for a number of rows and a shape of weights."""
    go = make_products(of_bytes, rows, shape, copies, threads)
    seconds: list[float] = []
    until = time.perf_counter() + SECONDS
    while time.perf_counter() < until or len(seconds) < LEAST_CALLS:
        began = time.perf_counter()
        go()
        seconds.append(time.perf_counter() - began)
    return 2 * rows * shape[0] * shape[1] * copies / min(seconds)


def make_products(
    of_bytes: bool,  # noqa: FBT001
    rows: int,
    shape: tuple[int, int],
    copies: int,
    threads: int,
) -> Callable[[], object]:
    """Build a graph of one matrix times several constant ones, as weights are."""
    generator = np.random.default_rng(0)
    operator, left, right, result = (
        ("MatMulInteger", np.uint8, np.int8, TensorProto.INT32)
        if of_bytes
        else ("MatMul", np.float32, np.float32, TensorProto.FLOAT)
    )
    weights = [
        onnx.numpy_helper.from_array(generator.integers(-60, 60, shape).astype(right), f"w{n}")
        for n in range(copies)
    ]
    graph = helper.make_graph(
        [helper.make_node(operator, ["x", f"w{n}"], [f"y{n}"]) for n in range(copies)],
        "products",
        [helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(np.dtype(left)), [rows, shape[0]])],
        [helper.make_tensor_value_info(f"y{n}", result, [rows, shape[1]]) for n in range(copies)],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = open_session(model.SerializeToString(), threads)
    feed = {"x": generator.integers(0, 100, (rows, shape[0])).astype(left)}
    return lambda: session.run(None, feed)


def open_session(model: bytes, threads: int) -> onnxruntime.InferenceSession:
    """Open a session with a given number of threads."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(model, sess_options=options, providers=["CPUExecutionProvider"])


class Products:
    """Counts the operations of a graph's products for one text of a given length.

    Raises:
        SystemExit: the graph contains operators with hidden products.
    """

    def __init__(self, content: bytes) -> None:
        model = onnx.load_from_string(content)
        hidden = sorted({node.op_type for node in model.graph.node} & set(NO_PRODUCT))
        if hidden:
            raise SystemExit(f"products within {', '.join(hidden)} cannot be counted")
        self._products = [node for node in model.graph.node if "MatMul" in node.op_type or node.op_type == "Gemm"]
        self._known = {item.name: onnx.numpy_helper.to_array(item) for item in model.graph.initializer}
        self._names = sorted({name for node in self._products for name in (*node.input[:2], node.output[0])})
        self._names = [name for name in self._names if name not in self._known]
        given = {item.name for item in (*model.graph.output, *model.graph.input)}
        model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in self._names if name not in given)
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(
            model.SerializeToString(), sess_options=options, providers=["CPUExecutionProvider"]
        )

    def count(self, length: int) -> Needed:
        """Return the operations for one text of a number of tokens."""
        ones = np.ones((1, length), dtype=np.int64)
        feed = {item.name: ones for item in self._session.get_inputs()}
        found = dict(zip(self._names, self._session.run(self._names, feed), strict=True)) | self._known
        needed: Needed = Counter()
        for node in self._products:
            left, right, result = (found[name] for name in (*node.input[:2], node.output[0]))
            shape = (left.shape[-1], result.shape[-1]) if right.ndim == 2 else None
            needed[Kind(left.dtype in (np.int8, np.uint8), shape)] += 2 * result.size * left.shape[-1]
        return needed


def compare(
    name: str, path: Path, texts: dict[str, list[str]], peaks: dict[int, Peak], turns: int
) -> Iterator[dict[str, Any]]:
    """Return a row for each kind of text and number of threads."""
    products = Products(read_bundle(path).model)
    encoders = {threads: Encoder.load(path, threads=threads) for threads in peaks}
    for kind, rows in texts.items():
        tokens = next(iter(encoders.values())).tokenize(rows)
        needed: Needed = Counter()
        for length, times in zip(*np.unique(tokens.lengths, return_counts=True), strict=True):
            for sort, operations in products.count(int(length)).items():
                needed[sort] += operations * int(times)
        for threads, encoder in encoders.items():
            roof = sum(count / peaks[threads][sort.of_bytes] for sort, count in needed.items())
            own = sum(count / at_own_shape(sort, peaks[threads], threads) for sort, count in needed.items())
            graph, whole = time_turns(
                [partial(encoder.encode_tokens, tokens), partial(encoder.encode, rows)], turns
            )
            yield {
                "model": name,
                "texts": kind,
                "threads": threads,
                "mops_a_text": round(needed.total() / len(rows) / 1e6, 2),
                "of_bytes": round(sum(n for sort, n in needed.items() if sort.of_bytes) / needed.total(), 3),
                "roofline_texts_per_second": round(len(rows) / roof),
                "products_texts_per_second": round(len(rows) / own),
                "graph_texts_per_second": round(len(rows) / graph),
                "encode_texts_per_second": round(len(rows) / whole),
                "products_of_roofline": round(roof / own, 3),
                "graph_of_products": round(own / graph, 3),
                "encode_of_graph": round(graph / whole, 3),
                "encode_of_roofline": round(roof / whole, 3),
            }
            print(f"{name}, {kind}, {threads} threads: {roof / whole:.3f} of the roofline")


def at_own_shape(kind: Kind, peak: Peak, threads: int) -> float:
    """Return the operations per second of products of a kind, with separate products on each thread."""
    if kind.weights is None:
        return peak[kind.of_bytes]
    return threads * reach(kind.of_bytes, rows=ROWS, shape=kind.weights, copies=COPIES, threads=1)


def time_turns(parts: list[Callable[[], object]], turns: int) -> list[float]:
    """Return the median seconds of each part, in turns, after a warm-up turn."""
    seconds: list[list[float]] = [[] for _ in parts]
    for turn in range(turns + 1):
        for part, found in zip(parts, seconds, strict=True):
            began = time.perf_counter()
            part()
            if turn:
                found.append(time.perf_counter() - began)
    return [statistics.median(found) for found in seconds]


def write(rows: list[dict[str, Any]], peaks: dict[int, Peak], about: dict[str, Any], path: Path) -> None:
    """Write both files."""
    giga = {
        threads: {"fp32": round(floats / 1e9, 1), "int8": round(of_bytes / 1e9, 1)}
        for threads, (floats, of_bytes) in peaks.items()
    }
    content = {"about": about, "peak_gops": giga, "rows": rows}
    path.with_suffix(".json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    titles = [name.removesuffix("_texts_per_second").replace("_", " ") for name in rows[0]]
    text = [
        "How much of the processor's peak encoding reaches (see roofline.py): texts a second, medians of turns,",
        "and the share that each has of another.",
        "",
        *(f"- {name}: {value}" for name, value in about.items()),
        *(f"- peak, {threads} threads: {peak['fp32']:,} G operations a second of floats, {peak['int8']:,} of bytes"
          for threads, peak in giga.items()),
        "",
        f"| {' | '.join(titles)} |",
        "|---|---|" + "---:|" * (len(titles) - 2),
        *(f"| {' | '.join(f'{value:,}' if isinstance(value, int) else str(value) for value in row.values())} |"
          for row in rows),
    ]  # fmt: skip
    path.with_suffix(".md").write_text("\n".join(text) + "\n", encoding="utf-8")
    print("\n".join(text))


if __name__ == "__main__":
    main()
