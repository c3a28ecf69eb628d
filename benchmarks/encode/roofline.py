"""How far from the processor's peak encoding is: operations a text needs, and how quickly they could be done.

    python benchmarks/encode/roofline.py --data DIR --run RUN

The peak is measured: the quickest product of large matrices through ONNX Runtime, of floats and of bytes. What a
text needs is counted at its length, from the shapes of every product in the graph as it runs; a product of bytes
takes the peak of bytes, any other that of floats. All else (normalisation, softmax, Gelu, tables, tokens, memory)
is taken to be free; so the roofline cannot be reached, and the share of it says how much of the time goes into
what has to be done. --run is a folder of `embedkit train`, exported as fp32 and int8; further bundles may follow.
Use a machine that does nothing else. Writes roofline.json and roofline.md beside this file.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from onnx import TensorProto, helper
from run import describe, read_texts

from embedkit import Encoder
from embedkit.export.pipeline import export_source
from embedkit.runtime.bundle import read_bundle

HERE = Path(__file__).parent
SIDES = (512, 1024, 2048)  # of the square matrices, of which the best tells the peak
PEAK_SECONDS = 1.0  # for each of them
LEAST_CALLS = 3
NO_PRODUCT = ("Attention", "MultiHeadAttention", "QAttention", "Conv", "Einsum", "LSTM")  # would go uncounted


@dataclass(frozen=True)
class Operations:
    """Multiplications and additions."""

    of_floats: float
    of_bytes: float

    def seconds(self, peak: Operations) -> float:
        """Least time at so many operations a second."""
        return self.of_floats / peak.of_floats + self.of_bytes / peak.of_bytes


def main() -> None:
    """Measure peaks, count, time, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundles", nargs="*", type=Path, help="further bundles")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--run", required=True)
    parser.add_argument("--texts", type=int, default=4096, help="texts of each kind")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("-o", "--output", default="roofline", help="name of the two files")
    arguments = parser.parse_args()
    logging.getLogger("embedkit").setLevel(logging.ERROR)  # that texts are cut is intended
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


def measure_peak(threads: int) -> Operations:
    """Operations a second that ONNX Runtime reaches with large matrices."""
    return Operations(*(max(reach(kind, side, threads) for side in SIDES) for kind in (np.float32, np.uint8)))


def reach(kind: type[np.generic], side: int, threads: int) -> float:
    """Operations a second with square matrices of such a side."""
    go = make_product(kind, side, threads)
    seconds: list[float] = []
    until = time.perf_counter() + PEAK_SECONDS
    while time.perf_counter() < until or len(seconds) < LEAST_CALLS:
        began = time.perf_counter()
        go()
        seconds.append(time.perf_counter() - began)
    return 2 * side**3 / min(seconds)


def make_product(kind: type[np.generic], side: int, threads: int) -> Callable[[], object]:
    """A product of two square matrices, the second of which is known beforehand, as weights are."""
    of_bytes = kind is np.uint8
    weights = onnx.numpy_helper.from_array(
        np.random.default_rng(0).integers(-60, 60, (side, side)).astype(np.int8 if of_bytes else np.float32), "w"
    )
    element, result = (
        (TensorProto.UINT8, TensorProto.INT32) if of_bytes else (TensorProto.FLOAT, TensorProto.FLOAT)
    )
    graph = helper.make_graph(
        [helper.make_node("MatMulInteger" if of_bytes else "MatMul", ["x", "w"], ["y"])],
        "product",
        [helper.make_tensor_value_info("x", element, [side, side])],
        [helper.make_tensor_value_info("y", result, [side, side])],
        [weights],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = open_session(model.SerializeToString(), threads)
    feed = {"x": np.random.default_rng(1).integers(0, 100, (side, side)).astype(kind)}
    return lambda: session.run(None, feed)


def open_session(model: bytes, threads: int) -> onnxruntime.InferenceSession:
    """ONNX Runtime on so many threads."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(model, sess_options=options, providers=["CPUExecutionProvider"])


class Counter:
    """Counts what the products of a graph need for one text of a length.

    Raises:
        SystemExit: the graph has operators that multiply out of sight.
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

    def count(self, length: int) -> Operations:
        """Operations for one text of so many tokens."""
        ones = np.ones((1, length), dtype=np.int64)
        feed = {item.name: ones for item in self._session.get_inputs()}
        found = dict(zip(self._names, self._session.run(self._names, feed), strict=True)) | self._known
        floats = of_bytes = 0.0
        for node in self._products:
            left, result = found[node.input[0]], found[node.output[0]]
            operations = 2.0 * result.size * left.shape[-1]
            if left.dtype in (np.int8, np.uint8):
                of_bytes += operations
            else:
                floats += operations
        return Operations(floats, of_bytes)


def compare(
    name: str, path: Path, texts: dict[str, list[str]], peaks: dict[int, Operations], turns: int
) -> Iterator[dict[str, Any]]:
    """A row for each kind of text and number of threads."""
    counter = Counter(read_bundle(path).model)
    encoders = {threads: Encoder.load(path, threads=threads) for threads in peaks}
    for kind, rows in texts.items():
        tokens = next(iter(encoders.values())).tokenize(rows)
        lengths, times = np.unique(tokens.lengths, return_counts=True)
        needed = total([counter.count(int(length)) for length in lengths], times)
        for threads, encoder in encoders.items():
            graph, whole = time_turns(
                [partial(encoder.encode_tokens, tokens), partial(encoder.encode, rows)], turns
            )
            least = needed.seconds(peaks[threads])
            yield {
                "model": name,
                "texts": kind,
                "threads": threads,
                "mops_a_text": round((needed.of_floats + needed.of_bytes) / len(rows) / 1e6, 2),
                "of_bytes": round(needed.of_bytes / (needed.of_floats + needed.of_bytes), 3),
                "roofline_texts_per_second": round(len(rows) / least),
                "graph_texts_per_second": round(len(rows) / graph),
                "graph_share": round(least / graph, 3),
                "encode_texts_per_second": round(len(rows) / whole),
                "encode_share": round(least / whole, 3),
            }
            print(f"{name}, {kind}, {threads} threads: {least / whole:.2f} of the roofline")


def total(each: list[Operations], times: npt.NDArray[np.int64]) -> Operations:
    """Operations of all texts, of which so many have each length."""
    return Operations(
        sum(operations.of_floats * count for operations, count in zip(each, times.tolist(), strict=True)),
        sum(operations.of_bytes * count for operations, count in zip(each, times.tolist(), strict=True)),
    )


def time_turns(parts: list[Callable[[], object]], turns: int) -> list[float]:
    """Median seconds of each part, in turns, after one that warms up."""
    seconds: list[list[float]] = [[] for _ in parts]
    for turn in range(turns + 1):
        for part, found in zip(parts, seconds, strict=True):
            began = time.perf_counter()
            part()
            if turn:
                found.append(time.perf_counter() - began)
    return [statistics.median(found) for found in seconds]


def write(rows: list[dict[str, Any]], peaks: dict[int, Operations], about: dict[str, Any], path: Path) -> None:
    """The two files."""
    giga = {
        threads: {"fp32": round(peak.of_floats / 1e9, 1), "int8": round(peak.of_bytes / 1e9, 1)}
        for threads, peak in peaks.items()
    }
    content = {"about": about, "peak_gops": giga, "rows": rows}
    path.with_suffix(".json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    titles = ("model", "texts", "threads", "Mop a text", "of bytes", "roofline, texts/s", "graph, texts/s",
              "share", "encode, texts/s", "share")  # fmt: skip
    text = [
        "How much of the processor's peak encoding reaches (see roofline.py): medians of turns.",
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
