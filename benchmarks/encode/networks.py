"""MPNet-Base and ModernBERT-Base at equal instructions: embedkit's kernel beside sentence-transformers.

    python benchmarks/encode/networks.py --data DIR --python VENV/bin/python

The networks have random weights, since only their shape matters; --python has sentence-transformers. --data holds
train/stackoverflow-titles.txt.xz and train/wikipedia.txt.xz. Everything runs on one thread, in turns over the same
titles (see run.py), held to the instructions of a target as by instructions.py. Before the first turn, embeddings
are compared. Writes networks.json and networks.md beside this file.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from instructions import HOLDS
from run import HERE, Peer, describe, read_texts, take_turns
from transformers import AutoConfig, AutoModel

from embedkit.export.graph import build_graph
from embedkit.export.quantize import Int8Arithmetic, largest_weight
from embedkit.export.untrained import bert_tokenizer
from embedkit.export.writer import Arithmetic, FloatArithmetic
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.runtime.bundle import write_bundle
from embedkit.runtime.manifest import Golden, Manifest
from embedkit.runtime.native_network import NativeNetwork, native_instructions
from embedkit.runtime.tokenization import Tokenizer

MAX_LENGTH = 128
TEXTS = ["Bees dance.", "Ants follow a scent."]
# Title -> type in transformers, settings beside its defaults, which are those of the base size; and pooling.
NETWORKS: Mapping[str, tuple[str, Mapping[str, Any], str]] = {
    "MPNet-Base": ("mpnet", {"pad_token_id": 1}, "mean"),
    "ModernBERT-Base": ("modernbert", {"pad_token_id": 0}, "cls"),
}
PEERS = {"embedkit fp32": "fp32.onnx", "embedkit int8": "int8.onnx", "sentence-transformers": "model"}


def main() -> None:
    """Time each network on each target that this processor has."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--python", required=True, help="with sentence-transformers")
    parser.add_argument("--texts", type=int, default=128)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--targets", nargs="+", choices=HOLDS, default=["avx512", "avx2"])
    arguments = parser.parse_args()
    arguments.threads = 1
    texts = {"titles": read_texts(arguments.data / "train", arguments.texts)["titles"]}
    rows = []
    for name in NETWORKS:
        with tempfile.TemporaryDirectory() as folder:
            write_network(name, Path(folder))
            for target in arguments.targets:
                if target in native_instructions():
                    rows += [
                        {"network": name, "target": target, **row}
                        for row in timed(target, folder, texts, arguments)
                    ]
    write({"about": describe(arguments, texts), "rows": rows})


def write_network(name: str, folder: Path) -> None:
    """Write the same random weights as a folder of sentence-transformers and as two bundles, without gates."""
    kind, settings, pooling = NETWORKS[name]
    tokenizer = Tokenizer(bert_tokenizer().json, MAX_LENGTH)
    torch.manual_seed(0)
    specials = dict.fromkeys(("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"))
    config = AutoConfig.for_model(kind, vocab_size=tokenizer.vocabulary_size, **specials, **settings)
    model = SentenceEncoder(AutoModel.from_config(config), tokenizer, pooling=pooling, name=kind).eval()
    model.save(folder / "model")
    largest = largest_weight("cpu-avx2")
    arithmetics: dict[str, Arithmetic] = {"fp32": FloatArithmetic(), "int8": Int8Arithmetic(largest)}
    for precision, arithmetic in arithmetics.items():
        content = build_graph(model, arithmetic).SerializeToString()
        tokens = tokenizer.tokenize(TEXTS)
        network = NativeNetwork.find(content)
        assert network is not None
        golden = Golden(TEXTS, list(tokens.ids), network.run(tokens), 1e-3)
        sizes = {"dimension": model.dimension, "max_length": MAX_LENGTH}
        manifest = Manifest(name=kind, pooling=pooling, precision=precision, **sizes)
        write_bundle(folder / f"{precision}.onnx", content, manifest, tokenizer.json, golden)


def timed(
    target: str, folder: str, texts: dict[str, list[str]], arguments: argparse.Namespace
) -> list[dict[str, Any]]:
    """Return a row for each precision."""
    hold = {**HOLDS[target], "EMBEDKIT_INSTRUCTIONS": target}
    with ExitStack() as stack:
        peers = {
            name: stack.enter_context(
                Peer(
                    name,
                    Path(folder) / place,
                    sys.executable if "embedkit" in name else arguments.python,
                    1,
                    **hold,
                )
            )
            for name, place in PEERS.items()
        }
        seconds = take_turns(peers, texts, arguments.turns)
    rows = []
    for kind, found in seconds.items():
        theirs = found["sentence-transformers"]
        for precision in ("fp32", "int8"):
            ours = found[f"embedkit {precision}"]
            ratios = [other / own for own, other in zip(ours, theirs, strict=True)]
            times = {
                "embedkit_ms": 1e3 * statistics.median(ours) / len(texts[kind]),
                "sentence_transformers_ms": 1e3 * statistics.median(theirs) / len(texts[kind]),
                "times": statistics.median(ratios),
            }
            rows.append(
                {"texts": kind, "precision": precision, **{name: round(each, 3) for name, each in times.items()}}
            )
            print(rows[-1], flush=True)
    return rows


def write(report: dict[str, Any]) -> None:
    """Write both files."""
    (HERE / "networks.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    head = "Networks with random weights at equal instructions (see networks.py): median milliseconds a text."
    columns = {
        "network": "network",
        "target": "target",
        "precision": "precision",
        "embedkit_ms": "embedkit",
        "sentence_transformers_ms": "sentence-transformers, fp32",
        "times": "times embedkit",
    }
    lines = [head, "", *(f"- {name}: {value}" for name, value in report["about"].items()), ""]
    lines += [f"| {' | '.join(columns.values())} |", "|---|---|---|---:|---:|---:|"]
    lines += [f"| {' | '.join(str(row[name]) for name in columns)} |" for row in report["rows"]]
    (HERE / "networks.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
