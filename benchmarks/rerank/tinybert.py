"""Time per pair beside flashrank with the shape of its smallest model, TinyBERT-L-2: two layers of 128.

    pip install flashrank
    TOKENIZERS_PARALLELISM=false python benchmarks/rerank/tinybert.py reranker-tiny

flashrank downloads its weights, so both packages run one network with random weights, in float32 and in int8;
models that are named run beside them. All run on one thread and in turns, 100 passages of 100 words a call. Prints
the median milliseconds of processor time for a pair as JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from flashrank import Ranker, RerankRequest
from onnx import helper
from transformers import BertConfig, BertForSequenceClassification

from embedkit import CrossEncoder
from embedkit.export.graph import build_graph
from embedkit.export.quantize import Int8Arithmetic, largest_weight
from embedkit.export.untrained import bert_tokenizer
from embedkit.export.writer import FloatArithmetic
from embedkit.modeling.cross_encoder import PairEncoder
from embedkit.runtime.tokenization import PairTokenizer

NAME, FILE = "ms-marco-TinyBERT-L-2-v2", "flashrank-TinyBERT-L-2-v2.onnx"
QUERY, PASSAGES, ROUNDS = "what does a cross-encoder read", 100, 5
WORDS = "the model reads a query and one of the passages that an index found for it"


def main() -> None:
    """Time everything and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help="cross-encoders to run beside them")
    arguments = parser.parse_args()
    generator = np.random.default_rng(0)
    texts = [" ".join(generator.choice(WORDS.split(), 100)) for _ in range(PASSAGES)]
    with tempfile.TemporaryDirectory() as place:
        ways: dict[str, Callable[[], Any]] = {}
        for precision in ("fp32", "int8"):
            folder = write(Path(place) / precision / NAME, precision)
            ways[f"flashrank, {precision}"] = theirs(folder, texts)
            ways[f"embedkit, {precision}"] = own(CrossEncoder.load(folder, threads=1), texts)
        for name in arguments.models:
            ways[name] = own(CrossEncoder.load(name, threads=1), texts)
        print(json.dumps(measure(ways), indent=1))


def write(folder: Path, precision: str) -> Path:
    """Write the folder that both packages read; flashrank's graph returns a column."""
    tokenizer = PairTokenizer(bert_tokenizer().json, 512)
    config = BertConfig(
        vocab_size=tokenizer.vocabulary_size,
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=512,
    )
    config.num_labels = 1
    model = PairEncoder(BertForSequenceClassification(config), tokenizer)
    folder.parent.mkdir(parents=True)
    model.save(folder)
    int8 = Int8Arithmetic(largest_weight("cpu-vnni"))
    graph = build_graph(model, FloatArithmetic() if precision == "fp32" else int8)
    (folder / "onnx").mkdir()
    onnx.save(graph, folder / "onnx" / "model.onnx")
    onnx.save(with_column(graph), folder / FILE)
    (folder / "special_tokens_map.json").write_text("{}", encoding="utf-8")
    about = {"model_max_length": 512, "pad_token": "[PAD]"}
    (folder / "tokenizer_config.json").write_text(json.dumps(about), encoding="utf-8")
    return folder


def with_column(graph: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy whose first output has the shape ``(B, 1)``."""
    changed = onnx.ModelProto()
    changed.CopyFrom(graph)
    output = changed.graph.output[0].name
    shape = helper.make_tensor("column_shape", onnx.TensorProto.INT64, [2], [-1, 1])
    changed.graph.initializer.append(shape)
    changed.graph.node.append(helper.make_node("Reshape", [output, "column_shape"], ["column"]))
    del changed.graph.output[:]
    column = helper.make_tensor_value_info("column", onnx.TensorProto.FLOAT, [None, 1])
    changed.graph.output.append(column)
    return changed


def theirs(folder: Path, texts: list[str]) -> Callable[[], Any]:
    """Return a call of flashrank on one thread."""
    ranker = Ranker(model_name=NAME, cache_dir=str(folder.parent), log_level="ERROR")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    ranker.session = onnxruntime.InferenceSession(str(folder / FILE), options)
    return lambda: ranker.rerank(RerankRequest(query=QUERY, passages=[{"text": text} for text in texts]))


def own(model: CrossEncoder, texts: list[str]) -> Callable[[], Any]:
    """Return a call of embedkit."""
    return lambda: model.rank(QUERY, texts, show_progress_bar=False)


def measure(ways: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Return the median milliseconds of processor time for a pair, after a first round that is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, run in ways.items():
            began = time.process_time()
            run()
            seconds[name].append(time.process_time() - began)
    return {name: round(1000 * statistics.median(each[1:]) / PASSAGES, 3) for name, each in seconds.items()}


if __name__ == "__main__":
    main()
