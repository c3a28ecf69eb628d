"""Small random encoders over the toy vocabulary, with weights large enough to matter."""

import string

import pytest
import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers, processors
from toy_networks import toy_cross_encoder, toy_encoder

from embedkit.modeling.cross_encoder import PairEncoder
from embedkit.runtime.tokenization import Tokenizer

HIDDEN, LAYERS, MAX_LENGTH = 32, 2, 20


@pytest.fixture(scope="session")
def tokenizer(toy_tokenizer_json: str) -> Tokenizer:
    return Tokenizer(toy_tokenizer_json, MAX_LENGTH)


@pytest.fixture
def make_encoder(tokenizer):
    """``make_encoder(pooling="mean", head=None, memory=None, ...)``: both are widths; in evaluation mode."""
    settings = {
        "vocab_size": tokenizer.vocabulary_size + 3,
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "max_position_embeddings": 40,
        "pad_token_id": 0,
        "initializer_range": 0.3,
        "layer_norm_eps": 1e-12,
    }
    return lambda **changes: toy_encoder(tokenizer, seed=11, **settings | changes)


@pytest.fixture
def make_pair_encoder(make_encoder):
    """``make_pair_encoder(family="bert", **config)``: a cross-encoder whose scores spread, in evaluation mode."""

    def make(*, family="bert", **changes):
        model = PairEncoder.from_encoder(make_encoder(family=family, **changes), max_length=MAX_LENGTH, seed=2)
        with torch.no_grad():
            model.network.get_parameter(
                "classifier.weight" if family == "bert" else "classifier.out_proj.weight"
            ).mul_(2)
        return model.eval()

    return make


# Architectures beyond the BERT family: other names of sizes, positions that count from the padding token,
# relative or rotary positions, no token types, layers that share their weights.
ARCHITECTURES = {
    "distilbert": {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48},
    "mpnet": {"pad_token_id": 1},
    "modernbert": {"local_attention": 8, "global_attn_every_n_layers": 2, "pad_token_id": 0},
    "electra": {"embedding_size": 16},
    "albert": {"embedding_size": 16},
    "deberta-v2": {
        "relative_attention": True,
        "position_buckets": 8,
        "pos_att_type": ["p2c", "c2p"],
        "norm_rel_ebd": "layer_norm",  # a LayerNormalization of constants
    },
    "gpt2": {"n_positions": 42, "n_inner": 48, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0},
    "qwen3": {"num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0},
    "gemma3_text": {
        "num_key_value_heads": 2,
        "head_dim": 8,
        "pad_token_id": 0,
        "use_bidirectional_attention": True,
        "sliding_window": 4,
        "layer_types": ["sliding_attention", "full_attention"],
    },
}
_SIZES = {
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 42,
    "layer_norm_eps": 1e-12,
}
_SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]


@pytest.fixture(scope="session")
def make_tokenizer(toy_tokenizer_json):
    """``make_tokenizer(kind)``: "wordpiece" with [PAD] first; "unigram" and "bytes" with <pad> second."""

    def make(kind):
        if kind == "wordpiece":
            return Tokenizer(toy_tokenizer_json, MAX_LENGTH)
        if kind == "unigram":
            pieces = [
                *_SPECIAL,
                *(f"\u2581{word}" for word in ("the", "cat", "dog", "is")),
                *string.printable[:90],
            ]
            made = tokenizers.Tokenizer(models.Unigram([(piece, -1.0) for piece in pieces], unk_id=3))
            made.pre_tokenizer = pre_tokenizers.Metaspace()
        else:
            pieces = [*_SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet()), "th", "the"]
            vocabulary = {piece: number for number, piece in enumerate(pieces)}
            made = tokenizers.Tokenizer(models.BPE(vocabulary, [("t", "h"), ("th", "e")]))
            made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
            made.decoder = decoders.ByteLevel()
        made.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
        made.add_special_tokens(_SPECIAL)
        return Tokenizer(made.to_str(), MAX_LENGTH)

    return make


@pytest.fixture
def make_any(make_tokenizer):
    """``make_any(architecture, kind="encoder", ...)``: a model outside the BERT family, in evaluation mode."""

    def make(architecture, kind="encoder", **changes):
        pads_second = ARCHITECTURES[architecture].get("pad_token_id") == 1
        tokenizer = make_tokenizer("unigram" if pads_second else "wordpiece")
        build, parts = (toy_encoder, {}) if kind == "encoder" else (toy_cross_encoder, {"spread": 0.2})
        settings = _SIZES | {"vocab_size": tokenizer.vocabulary_size + 3} | ARCHITECTURES[architecture]
        about = {"seed": 11, "family": architecture, "name": architecture, "noise": 0.05}
        return build(tokenizer, **about | parts | settings | changes)

    return make
