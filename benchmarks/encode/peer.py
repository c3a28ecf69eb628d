"""One way to embed texts, timed in a process of its own; run.py starts it, with whatever Python has the package.

    python peer.py KIND MODEL THREADS

Reads JSON lines and answers each with one: ``{"name", "texts"}`` keeps texts, ``{"time", "turns"}`` gives the
seconds of each turn over the texts of that name, and ``{"vectors"}`` their embeddings. It needs embedkit only
where it measures it. Packages are imported by the peers that they are: no environment has them all.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

# Texts in, (N, D) rows out; None where a part of the work is timed alone.
Embed = Callable[[list[str]], Any]


def main() -> None:
    """Answer until the input ends."""
    kind, model, threads = sys.argv[1], sys.argv[2], int(sys.argv[3])
    answers, sys.stdout = sys.stdout, sys.stderr  # what packages print is no answer
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
    """Seconds that a call takes."""
    began = time.perf_counter()
    go()
    return time.perf_counter() - began


def embedkit(model: str, threads: int, _: str) -> Callable[[list[str]], Callable[[], Any]]:
    """``Encoder.encode``; one text is given as it is, not in a list."""
    from embedkit import Encoder

    encoder = Encoder.load(model, threads=threads)
    return lambda texts: lambda: encoder.encode(texts[0] if len(texts) == 1 else texts).reshape(len(texts), -1)


def ort(model: str, threads: int, way: str) -> Callable[[list[str]], Callable[[], Any]]:
    """ONNX Runtime alone, on batches of all texts sorted by length, tokenized and padded before the clock runs.

    WAY is the tokens of a batch; with ``/apart`` behind, each thread runs batches of its own.
    """
    import numpy as np
    import onnxruntime

    options = onnxruntime.SessionOptions()
    budget, _, apart = way.partition("/")
    options.intra_op_num_threads = 1 if apart else threads
    session = onnxruntime.InferenceSession(model, sess_options=options, providers=["CPUExecutionProvider"])
    wanted = {item.name for item in session.get_inputs()}
    tokenizer = bundled_tokenizer(model)

    def make(texts: list[str]) -> Callable[[], None]:
        rows = sorted((encoding.ids for encoding in tokenizer.encode_batch_fast(texts)), key=len, reverse=True)
        feeds = []
        while rows:
            size = max(1, int(budget) // len(rows[0]))
            batch, rows = rows[:size], rows[size:]
            length = len(batch[0])
            ids = np.array([row + [0] * (length - len(row)) for row in batch])
            mask = np.array([[1] * len(row) + [0] * (length - len(row)) for row in batch])
            feed = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
            feeds.append({name: feed[name] for name in wanted})

        def go() -> None:
            if not apart:
                for feed in feeds:
                    session.run(None, feed)
                return
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(lambda feed: session.run(None, feed), feeds))

        return go

    return make


def tokenization(model: str, _: int, __: str) -> Callable[[list[str]], Callable[[], Any]]:
    """The bundle's tokenizer alone, 4096 texts a call, on RAYON_NUM_THREADS threads."""
    tokenizer = bundled_tokenizer(model)

    def make(texts: list[str]) -> Callable[[], None]:
        def go() -> None:
            for start in range(0, len(texts), 4096):
                tokenizer.encode_batch_fast(texts[start : start + 4096])

        return go

    return make


def bundled_tokenizer(model: str) -> Any:
    """The tokenizer of a bundle, cutting where the model does."""
    from tokenizers import Tokenizer

    from embedkit.runtime.bundle import read_bundle

    bundle = read_bundle(Path(model))
    tokenizer = Tokenizer.from_str(bundle.tokenizer_json)
    tokenizer.no_padding()
    tokenizer.enable_truncation(bundle.manifest.max_length)
    return tokenizer


def plain_transformers(model: str, threads: int, _: str) -> Callable[[list[str]], Callable[[], Any]]:
    """AutoModel with the pooling of a model card, 32 texts a batch as they come; no dense head, if any."""
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
    """What sentence-transformers would cut texts to."""
    return int(json.loads((Path(model) / "sentence_bert_config.json").read_text())["max_seq_length"])


def sentence_transformers(model: str, threads: int, backend: str) -> Callable[[list[str]], Callable[[], Any]]:
    """``SentenceTransformer.encode`` with its defaults; it sorts by length, 32 texts a batch."""
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(threads)
    encoder = SentenceTransformer(model, device="cpu", backend=backend or "torch")
    return lambda texts: lambda: encoder.encode(texts, show_progress_bar=False)


def fastembed(model: str, threads: int, _: str) -> Callable[[list[str]], Callable[[], Any]]:
    """``TextEmbedding.embed`` with its defaults, 256 texts a batch as they come; MODEL is a folder."""
    import numpy as np
    from fastembed import TextEmbedding
    from fastembed.common.model_description import ModelSource, PoolingType

    about = {"pooling": PoolingType.DISABLED, "normalization": False, "dim": 1, "model_file": "model.onnx"}
    TextEmbedding.add_custom_model(model="peer", sources=ModelSource(url="unused"), **about)
    encoder = TextEmbedding("peer", specific_model_path=model, threads=threads)
    return lambda texts: lambda: np.array(list(encoder.embed(texts)))


# How a peer is prepared, and the packages whose versions tell its story.
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
}


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    main()
