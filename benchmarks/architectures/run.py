"""Export small look-alikes of architectures, with random weights, and write down which pass their gates.

Each is written to a folder as its library writes it, exported at every precision, and used as a teacher. A cell of
the table is the engine that runs the bundle, or "no"; the reasons for every "no" are below the table. With names,
only their rows are made again.

    python benchmarks/architectures/run.py [NAME ...]
"""

from __future__ import annotations

import dataclasses
import json
import logging
import shutil
import string
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import tokenizers
import torch
from safetensors.torch import save_file
from tokenizers import models, normalizers, pre_tokenizers, processors
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    PreTrainedTokenizerFast,
)

from embedkit import CrossEncoder, Encoder
from embedkit.errors import EmbedkitError
from embedkit.export.pipeline import export_source
from embedkit.export.probes import GOLDEN_TEXTS
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.modeling.torch_encoder import TorchEncoder

RESULTS = Path(__file__).with_name("results.md")
OWN_CODE = Path(__file__).with_name("own_code.py")
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
_WINDOWS = {"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]}
_GEMMA_2 = {
    **_SIZES,
    **_DECODER,
    **_WINDOWS,
    "global_head_dim": 64,
    "num_global_key_value_heads": 1,
    "hidden_size_per_layer_input": 16,
    "embedding_dim": 96,  # of a token's state
}
_T5 = {"d_model": 128, "d_kv": 32, "d_ff": 256, "num_layers": 2, "num_heads": 4, "pad_token_id": 0}
_MODERN = {"local_attention": 16, "global_attn_every_n_layers": 2}
_DEBERTA = {
    "relative_attention": True,
    "position_buckets": 16,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "pos_att_type": ["p2c", "c2p"],
    "position_biased_input": False,
}


@dataclasses.dataclass(frozen=True)
class LookAlike:
    """A small model with random weights, in the form of known ones.

    Attributes:
        form: its type in transformers; ``"own code"`` brings Python code, ``"static"`` is a table of words.
        settings: of its configuration; of a static model, the library whose form it has.
        use: the pooling of an encoder; ``"score"``, a classifier; ``"answer"``, a language model that re-ranks.
        dense: widths of dense layers without bias, after the pooling.
        padding: the side on which the library's tokenizer pads.
    """

    form: str
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    use: str = "mean"
    dense: tuple[int, ...] = ()
    padding: str = "right"


LOOK_ALIKES: Mapping[str, LookAlike] = {
    "BERT": LookAlike("bert"),
    "BERT, first token": LookAlike("bert", use="cls"),
    "BERT, maximum": LookAlike("bert", use="max"),
    "BERT, weighted mean": LookAlike("bert", use="weightedmean"),
    "BERT, mean and maximum": LookAlike("bert", use="mean+max"),
    "BERT cross-encoder": LookAlike("bert", use="score"),
    "RoBERTa, XLM-RoBERTa": LookAlike("xlm-roberta", {"type_vocab_size": 1}),
    "XLM-RoBERTa cross-encoder": LookAlike("xlm-roberta", {"type_vocab_size": 1}, "score"),
    "RoBERTa-PreLayerNorm": LookAlike("roberta-prelayernorm", {"type_vocab_size": 1}),
    "DistilBERT": LookAlike("distilbert", {"dim": 128, "n_layers": 2, "n_heads": 4, "hidden_dim": 256}),
    "ELECTRA": LookAlike("electra", {"embedding_size": 128}),
    "ELECTRA cross-encoder": LookAlike("electra", {"embedding_size": 128}, "score"),
    "ALBERT": LookAlike("albert", {"embedding_size": 32}),
    "MPNet": LookAlike("mpnet"),
    "DeBERTa-v3": LookAlike("deberta-v2", _DEBERTA),
    "DeBERTa-v3 cross-encoder": LookAlike("deberta-v2", _DEBERTA, "score"),
    "ModernBERT": LookAlike("modernbert", _MODERN, "cls"),
    "ModernBERT cross-encoder": LookAlike("modernbert", _MODERN, "score"),
    "GTE, multilingual": LookAlike("gte", use="cls"),
    "GTE, multilingual, cross-encoder": LookAlike("gte", use="score"),
    "Nomic BERT": LookAlike("nomic_bert"),
    "Jina v3": LookAlike("jina_embeddings_v3"),
    "EuroBERT": LookAlike("eurobert", _DECODER),
    "T5 encoder, dense layer": LookAlike("t5", _T5, dense=(64,)),
    "Qwen3-Embedding": LookAlike("qwen3", _DECODER, "lasttoken", padding="left"),
    "Qwen3 cross-encoder": LookAlike("qwen3", _DECODER, "score"),
    "Qwen3-Reranker": LookAlike("qwen3", _DECODER, "answer", padding="left"),
    "Llama, last token": LookAlike("llama", _DECODER, "lasttoken"),
    "GPT-2, last token": LookAlike("gpt2", {"n_positions": LENGTH + 2, "n_inner": 256, **_DECODER}, "lasttoken"),
    "EmbeddingGemma": LookAlike(
        "gemma3_text", {**_DECODER, **_WINDOWS, "use_bidirectional_attention": True}, dense=(256, 96)
    ),
    "EmbeddingGemma 2": LookAlike("embedding_gemma2", {"image_token_id": 4, "video_token_id": 5}),
    "a model with Python code": LookAlike("own code", {"n_heads": 4}),
    "StaticEmbedding": LookAlike("static", {"library": "sentence-transformers"}),
    "model2vec": LookAlike("static", {"library": "model2vec"}),
}


def main(names: list[str]) -> None:
    """Run all look-alikes, or those named, and write the table."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    lines = RESULTS.read_text(encoding="utf-8").splitlines() if names else []
    rows = {line.split(" | ")[0][2:]: line for line in lines if line.startswith("| ")}
    reasons = [line for line in lines if line.startswith("- ") and not line.startswith(_starts(names))]
    for title in names or LOOK_ALIKES:
        cells = []
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder) / "look-alike"
            build(place, LOOK_ALIKES[title])
            for column, cell in measure(place, LOOK_ALIKES[title]):
                cells.append("no" if cell.startswith("no: ") else cell)
                if cell.startswith("no: "):
                    reasons.append(f"- {title}, {column}: {cell[4:].replace(folder, '').strip()}")
                    print(reasons[-1], flush=True)
        rows[title] = f"| {title} | {' | '.join(cells)} |"
        print(rows[title], flush=True)
    header = ["| architecture | fp32 | fp16 | int8 | teacher |", "|---|---|---|---|---|"]
    table = [rows[title] for title in LOOK_ALIKES if title in rows]
    notes = [f"- {title}: {note}" for title, note in NOTES.items()]
    reasons = [reason for reason in reasons if reason not in notes]
    RESULTS.write_text("\n".join([TITLE, *header, *table, "", *sorted(reasons), *notes]) + "\n", encoding="utf-8")


def _starts(names: list[str]) -> tuple[str, ...]:
    """Return how the reasons of these rows begin."""
    return tuple(f"- {name}, {column}: " for name in names for column in (*PRECISIONS, "teacher"))


# What the cells do not say.
NOTES = {
    "EmbeddingGemma 2": "sentence-transformers 6.2 does not load it without preprocessors of images and sound. A "
    "look-alike has none, so the gate `texts` compares transformers' tokens and no embeddings.",
    "GTE, multilingual, cross-encoder": "the scores of random weights hardly differ between pairs. Their logits "
    "have a standard deviation of 0.06, and rounding changes them by 0.02. Trained weights spread more.",
}


TITLE = """# Architectures

Small look-alikes with random weights, written in the forms of transformers, sentence-transformers and model2vec,
exported with all gates by `python benchmarks/architectures/run.py`. A cell names the engine that runs the bundle.
Random weights are harder on int8 than trained ones: a "no" of a gate there need not hold for a trained model.
"""


def build(folder: Path, look: LookAlike) -> None:
    """Write a model with random weights, its tokenizer and, unless it is a classifier, its modules."""
    torch.manual_seed(0)
    tokenizer = make_tokenizer(look.padding)
    folder.mkdir()
    if look.form == "static":
        _build_static(folder, look.settings["library"], tokenizer)
        return
    tokenizer.save_pretrained(folder)
    if look.form == "own code":
        _build_own_code(folder, len(tokenizer), look.settings)
        width = 128
    else:
        width = _build_network(folder, look, len(tokenizer))
    if look.use == "answer":
        (folder / "1_LogitScore").mkdir()
        _write(folder / "1_LogitScore" / "config.json", {"true_token_id": 5, "false_token_id": 6})
        _write(folder / "config_sentence_transformers.json", {"model_type": "CrossEncoder"})
        _write(folder / "sentence_bert_config.json", {"transformer_task": "text-generation"})
        _write_modules(folder, ["base.modules.transformer.Transformer", "cross_encoder.modules.LogitScore"])
    elif look.use != "score":
        _build_pooling(folder, look, width)


def _build_network(folder: Path, look: LookAlike, words: int) -> int:
    """Write the network, and return the width of its states."""
    settings = {**_SIZES, "vocab_size": words, "num_labels": 1, **look.settings}
    if look.form == "embedding_gemma2":
        parts = {"vision_config": None, "audio_config": None, "text_config": {**_GEMMA_2, "vocab_size": words}}
        config = AutoConfig.for_model(look.form, **parts, **look.settings)
    else:
        config = AutoConfig.for_model(look.form, **settings)
    auto = {"score": AutoModelForSequenceClassification, "answer": AutoModelForCausalLM}.get(look.use, AutoModel)
    model = auto.from_config(config)
    _disturb(model)
    model.save_pretrained(folder)
    text = config.get_text_config()
    return int(getattr(text, "embedding_dim", None) or text.hidden_size)


def _disturb(model: torch.nn.Module) -> None:
    """Make every weight matter: biases start at 0 and scales of norms at 1."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_((0.08 if parameter.ndim > 1 else 0.1) * torch.randn_like(parameter))


def _build_own_code(folder: Path, words: int, settings: Mapping[str, Any]) -> None:
    """Write a network whose code is in its folder."""
    shutil.copy(OWN_CODE, folder / "modeling_own.py")
    sys.path.insert(0, str(OWN_CODE.parent))
    import own_code  # noqa: PLC0415 - as a package of someone else

    model = own_code.OwnModel(own_code.OwnConfig(vocab_size=words, **settings))
    _disturb(model)
    model.save_pretrained(folder)
    names = {"AutoConfig": "modeling_own.OwnConfig", "AutoModel": "modeling_own.OwnModel"}
    described = json.loads((folder / "config.json").read_text()) | {"auto_map": names}
    _write(folder / "config.json", described)


def _build_pooling(folder: Path, look: LookAlike, width: int) -> None:
    """Write the modules after the network."""
    kinds = ["Transformer", "Pooling", *("Dense" for _ in look.dense), "Normalize"]
    _write_modules(folder, [f"models.{kind}" for kind in kinds])
    (folder / "1_Pooling").mkdir()
    modes = look.use.split("+")
    _write(folder / "1_Pooling" / "config.json", {"embedding_dimension": width, "pooling_mode": modes})
    width *= len(modes)
    for number, dimension in enumerate(look.dense, start=2):
        place = folder / f"{number}_Dense"
        place.mkdir()
        activation = "torch.nn.modules.linear.Identity"
        described = {"in_features": width, "out_features": dimension, "bias": False}
        _write(place / "config.json", {**described, "activation_function": activation})
        save_file({"linear.weight": torch.randn(dimension, width) / width**0.5}, place / "model.safetensors")
        width = dimension


def _build_static(folder: Path, library: str, tokenizer: PreTrainedTokenizerFast) -> None:
    """Write a table of word vectors."""
    rows = torch.randn(len(tokenizer), 128)
    place = folder if library == "model2vec" else folder / "0_StaticEmbedding"
    place.mkdir(exist_ok=True)
    tokenizer.backend_tokenizer.save(str(place / "tokenizer.json"))
    if library == "model2vec":
        described = {"model_type": "model2vec", "normalize": True, "hidden_dim": 128, "embedding_dtype": "float32"}
        _write(folder / "config.json", described)
        save_file({"embeddings": rows}, folder / "model.safetensors")
        return
    save_file({"embedding.weight": rows}, place / "model.safetensors")
    _write_modules(folder, ["models.StaticEmbedding"], first="0_StaticEmbedding")


def _write_modules(folder: Path, kinds: list[str], *, first: str = "") -> None:
    paths = [f"{number}_{kind.rpartition('.')[2]}" if number else first for number, kind in enumerate(kinds)]
    modules = [
        {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.{kind}"}
        for number, (path, kind) in enumerate(zip(paths, kinds, strict=True))
    ]
    _write(folder / "modules.json", modules)


def _write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")


def make_tokenizer(padding: str) -> PreTrainedTokenizerFast:
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
    return PreTrainedTokenizerFast(tokenizer_object=made, model_max_length=LENGTH, padding_side=padding, **roles)


def measure(folder: Path, look: LookAlike) -> Iterator[tuple[str, str]]:
    """Yield each column of the table with the engine, or with the reason for a "no"."""
    trusted = {"trust_remote_code": look.form == "own code"}
    scores = look.use in ("score", "answer")
    for precision in PRECISIONS:
        output = folder.parent / f"{precision}.onnx"
        try:
            target = "gpu" if precision == "fp16" else "cpu-avx2"
            export_source(str(folder), output, precision=precision, target=target, **trusted)
            provider = (CrossEncoder if scores else Encoder).load(output).provider
        except EmbedkitError as error:
            yield precision, f"no: {error}"
        else:
            yield precision, "kernel" if provider.startswith("Embedkit") else "ONNX Runtime"
    if scores:
        yield "teacher", "-"
        return
    try:
        TorchEncoder(SentenceEncoder.load(folder, **trusted)).encode(["a text"])
    except EmbedkitError as error:
        yield "teacher", f"no: {error}"
    else:
        yield "teacher", "yes"


if __name__ == "__main__":
    main(sys.argv[1:])
