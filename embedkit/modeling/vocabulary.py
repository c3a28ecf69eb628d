"""A model's vocabulary and tokenizer files: reads any format, writes the common one."""

from __future__ import annotations

import json
from pathlib import Path

import tokenizers
from transformers import AutoTokenizer

from embedkit.errors import ModelError
from embedkit.runtime.tokenization import PairTokenizer, Tokenizer

__all__ = ["load_tokenizer", "real_words", "write_tokenizer"]

# Roles of special tokens in transformers, and their spelling in each tokenizer family.
_ROLES = {
    "pad_token": ("[PAD]", "<pad>"),
    "unk_token": ("[UNK]", "<unk>"),
    "cls_token": ("[CLS]", "<s>"),
    "sep_token": ("[SEP]", "</s>"),
    "mask_token": ("[MASK]", "<mask>"),
}
_OLD_VOCABULARIES = ("vocab.txt", "vocab.json", "sentencepiece.bpe.model", "spiece.model", "tokenizer.model")


def load_tokenizer(folder: Path, max_length: int, *, lowercase: bool = False) -> Tokenizer:
    """Load the tokenizer of a model folder, converting older formats without ``tokenizer.json``.

    Args:
        folder: a transformers folder.
        max_length: maximum length of a text in tokens, including special tokens.
        lowercase: whether the model expects lowercased texts.

    Raises:
        ModelError: there is no tokenizer, it cannot be read, or it preserves case although it should not.
    """
    if (folder / "tokenizer.json").is_file():
        tokenizer = Tokenizer.load(folder, max_length)
    else:
        tokenizer = Tokenizer(_convert(folder), max_length)
    if lowercase and tokenizer.tokenize(["Ab"]).ids != tokenizer.tokenize(["ab"]).ids:
        raise ModelError(
            f"{folder} lowercases texts before its tokenizer, which embedkit does not support; "
            "put the lowercasing into tokenizer.json"
        )
    return tokenizer


def write_tokenizer(folder: Path, tokenizer: Tokenizer | PairTokenizer) -> None:
    """Write ``tokenizer.json`` and the ``tokenizer_config.json`` that transformers needs."""
    pair_inputs = ["token_type_ids"] if isinstance(tokenizer, PairTokenizer) else []
    (folder / "tokenizer.json").write_text(tokenizer.json, encoding="utf-8")
    pieces = {token["content"] for token in json.loads(tokenizer.json).get("added_tokens", [])}
    roles = {role: next((s for s in spellings if s in pieces), None) for role, spellings in _ROLES.items()}
    settings = {
        # The generic class uses tokenizer.json unchanged; a BertTokenizer would override its lowercasing.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": tokenizer.max_length,
        "model_input_names": ["input_ids", *pair_inputs, "attention_mask"],
        **{role: piece for role, piece in roles.items() if piece is not None},
    }
    text = json.dumps(settings, indent=2, ensure_ascii=False) + "\n"
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")


def real_words(tokenizer: Tokenizer | PairTokenizer) -> list[int]:
    """Return the ids of words and word pieces, ascending, without special tokens and ``[unused]`` rows."""
    pieces = tokenizers.Tokenizer.from_str(tokenizer.json).get_vocab(with_added_tokens=True)
    return sorted(
        number
        for piece, number in pieces.items()
        if number not in tokenizer.special_ids and not piece.startswith("[unused")
    )


def _convert(folder: Path) -> str:
    # Without any vocabulary, transformers 5 would create an empty tokenizer.
    if not any((folder / name).is_file() for name in _OLD_VOCABULARIES):
        raise ModelError(f"{folder} has neither a tokenizer.json nor an older vocabulary file")
    try:
        return str(AutoTokenizer.from_pretrained(folder).backend_tokenizer.to_str())
    except (OSError, ValueError, TypeError, AttributeError, ImportError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ModelError(
            f"{folder} has no tokenizer.json, and converting its vocabulary failed: {reason}"
        ) from error
