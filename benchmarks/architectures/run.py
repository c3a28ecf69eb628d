"""Export small look-alikes of architectures, with random weights, and write down which pass their gates.

Each is written to a folder as transformers writes it, exported at every precision, and used as a teacher. A cell
of the table is the engine that runs the bundle, or "no"; the reasons for every "no" are below the table.

    python benchmarks/architectures/run.py [NAME ...]
"""

from __future__ import annotations

import json
import logging
import string
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import tokenizers
import torch
from tokenizers import models, normalizers, pre_tokenizers, processors
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification, PreTrainedTokenizerFast

from embedkit import CrossEncoder, Encoder
from embedkit.errors import EmbedkitError
from embedkit.export.pipeline import export_source
from embedkit.export.probes import GOLDEN_TEXTS
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.modeling.torch_encoder import TorchEncoder

RESULTS = Path(__file__).with_name("results.md")
PRECISIONS = ("fp32", "fp16", "int8")
LENGTH = 64

_SIZES = {
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 256,
    "max_position_embeddings": LENGTH + 2,
    "pad_token_id": 0,
}
_DECODER = {"num_key_value_heads": 2, "head_dim": 32, "bos_token_id": None, "eos_token_id": None}
_T5 = {"d_model": 128, "d_kv": 32, "d_ff": 256, "num_layers": 2, "num_heads": 4, "pad_token_id": 0}
# Title -> type in transformers, settings, pooling of the encoder; "score" is a cross-encoder.
LOOK_ALIKES: Mapping[str, tuple[str, Mapping[str, Any], str]] = {
    "BERT": ("bert", {}, "mean"),
    "BERT, first token": ("bert", {}, "cls"),
    "BERT, maximum": ("bert", {}, "max"),
    "BERT, mean and maximum": ("bert", {}, "mean+max"),
    "BERT cross-encoder": ("bert", {}, "score"),
    "RoBERTa, XLM-RoBERTa": ("xlm-roberta", {"type_vocab_size": 1}, "mean"),
    "XLM-RoBERTa cross-encoder": ("xlm-roberta", {"type_vocab_size": 1}, "score"),
    "RoBERTa-PreLayerNorm": ("roberta-prelayernorm", {"type_vocab_size": 1}, "mean"),
    "DistilBERT": ("distilbert", {"dim": 128, "n_layers": 2, "n_heads": 4, "hidden_dim": 256}, "mean"),
    "ELECTRA": ("electra", {"embedding_size": 128}, "mean"),
    "ALBERT": ("albert", {"embedding_size": 32}, "mean"),
    "MPNet": ("mpnet", {}, "mean"),
    "DeBERTa-v3": (
        "deberta-v2",
        {
            "relative_attention": True,
            "position_buckets": 16,
            "norm_rel_ebd": "layer_norm",
            "share_att_key": True,
            "pos_att_type": ["p2c", "c2p"],
            "position_biased_input": False,
        },
        "mean",
    ),
    "ModernBERT": ("modernbert", {"local_attention": 16, "global_attn_every_n_layers": 2}, "cls"),
    "ModernBERT cross-encoder": ("modernbert", {"local_attention": 16, "global_attn_every_n_layers": 2}, "score"),
    "T5 encoder": ("t5", _T5, "mean"),
    "Qwen3, last token": ("qwen3", _DECODER, "lasttoken"),
    "Gemma 3, bidirectional": ("gemma3_text", {**_DECODER, "use_bidirectional_attention": True}, "mean"),
    "Llama, last token": ("llama", _DECODER, "lasttoken"),
}


def main(names: list[str]) -> None:
    """Run all look-alikes, or those named, and write the table if none was named."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    rows, reasons = [], []
    for title in names or LOOK_ALIKES:
        cells = []
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder) / "look-alike"
            build(place, *LOOK_ALIKES[title])
            for column, cell in measure(place, LOOK_ALIKES[title][2]):
                cells.append("no" if cell.startswith("no: ") else cell)
                if cell.startswith("no: "):
                    reasons.append(f"- {title}, {column}: {cell[4:].replace(folder, '').strip()}")
        rows.append(f"| {title} | {' | '.join(cells)} |")
        print(rows[-1], flush=True)
    if names:
        return
    header = ["| architecture | fp32 | fp16 | int8 | teacher |", "|---|---|---|---|---|"]
    RESULTS.write_text("\n".join([TITLE, *header, *rows, "", *reasons]) + "\n", encoding="utf-8")


TITLE = """# Architectures

Small look-alikes with random weights, written by transformers, exported with all gates by
`python benchmarks/architectures/run.py`. A cell names the engine that runs the bundle. Random weights are harder
on int8 than trained ones: a "no" of a gate there need not hold for a trained model.
"""


def build(folder: Path, model_type: str, changes: Mapping[str, Any], pooling: str) -> None:
    """Write a model with random weights, its tokenizer and, for an encoder, its pooling."""
    tokenizer = make_tokenizer()
    settings = {**_SIZES, "vocab_size": len(tokenizer), **changes}
    config = AutoConfig.for_model(model_type, **settings, num_labels=1)
    torch.manual_seed(0)
    auto = AutoModelForSequenceClassification if pooling == "score" else AutoModel
    model = auto.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_((0.08 if parameter.ndim > 1 else 0.1) * torch.randn_like(parameter))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    if pooling == "score":
        return
    kinds = ["Transformer", "Pooling", "Normalize"]
    modules = [
        {"path": f"{number}_{kind}" if number else "", "type": f"sentence_transformers.{kind}"}
        for number, kind in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    described = {"embedding_dimension": config.hidden_size, "pooling_mode": pooling.split("+")}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(described))


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Return word pieces of single characters and a few hundred words."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    letters = string.ascii_lowercase + string.digits + string.punctuation
    found = {word for text in GOLDEN_TEXTS for word in text.lower().split()}
    words = sorted(word for word in found if word.isalpha() and len(word) > 1)
    pieces = [*special, *letters, *(f"##{letter}" for letter in letters), *words]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    made = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token=special[1]))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    roles = dict(zip(["pad_token", "unk_token", "cls_token", "sep_token", "mask_token"], special, strict=True))
    return PreTrainedTokenizerFast(tokenizer_object=made, model_max_length=LENGTH, **roles)


def measure(folder: Path, pooling: str) -> Iterator[tuple[str, str]]:
    """Yield each column of the table with the engine, or with the reason for a "no"."""
    for precision in PRECISIONS:
        output = folder.parent / f"{precision}.onnx"
        try:
            target = "gpu" if precision == "fp16" else "cpu-avx2"
            export_source(str(folder), output, precision=precision, target=target)
            provider = (CrossEncoder if pooling == "score" else Encoder).load(output).provider
        except EmbedkitError as error:
            yield precision, f"no: {error}"
        else:
            yield precision, "kernel" if provider.startswith("Embedkit") else "ONNX Runtime"
    if pooling == "score":
        yield "teacher", "-"
        return
    try:
        TorchEncoder(SentenceEncoder.load(folder)).encode(["a text"])
    except EmbedkitError as error:
        yield "teacher", f"no: {error}"
    else:
        yield "teacher", "yes"


if __name__ == "__main__":
    main(sys.argv[1:])
