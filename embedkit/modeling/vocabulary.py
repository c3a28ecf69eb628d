"""A model's vocabulary and tokenizer files, read in any format, and word tables in four bits a value."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tokenizers
import torch
from torch import Tensor
from transformers import AutoTokenizer

from embedkit.errors import ModelError
from embedkit.modeling.pretrained import loading
from embedkit.protocols import FloatArray
from embedkit.runtime.folder_layout import Layout
from embedkit.runtime.folder_tokenizer import read_tokenizer, set_left_truncation, set_lowercase, set_one_type
from embedkit.runtime.tokenization import PairTokenizer, Tokenizer

# Roles in transformers of special tokens that have no role in a tokenizer.json, and their spelling in each family.
_ROLES = {
    "cls_token": ("[CLS]", "<s>"),
    "sep_token": ("[SEP]", "</s>"),
    "mask_token": ("[MASK]", "<mask>"),
}
_OLD_VOCABULARIES = (
    "vocab.txt",
    "vocab.json",
    "sentencepiece.bpe.model",
    "spiece.model",
    "spm.model",
    "tokenizer.model",
)


def load_tokenizer(
    layout: Layout, max_length: int, *, trust_remote_code: bool = False, with_types: bool = False
) -> Tokenizer:
    """Load the tokenizer of a model folder as transformers reads it.

    ``tokenizer_config.json`` overrides the settings of ``tokenizer.json`` for case, accents, added tokens and
    truncation, differently in each class of transformers, which therefore applies it. Older formats are converted.
    ``with_types`` is for a network that reads the types of a pair's tokens, which transformers may not give it.

    Raises:
        ModelError: there is no tokenizer, or it cannot be read.
    """
    folder = layout.backbone
    if (folder / "tokenizer.json").is_file():
        Tokenizer.load(folder, max_length)  # its errors are clearer
    # Without any vocabulary, transformers 5 would create an empty tokenizer.
    elif not any((folder / name).is_file() for name in _OLD_VOCABULARIES):
        raise ModelError(f"{folder} has neither a tokenizer.json nor an older vocabulary file")
    if layout.static:
        return Tokenizer(read_tokenizer(layout), max_length)
    library = library_tokenizer(folder, trust_remote_code=trust_remote_code)
    content = json.loads(library.backend_tokenizer.to_str())
    changed = _without_lengths(content) != _without_lengths(_parse(folder / "tokenizer.json"))
    if layout.lowercase:
        changed |= set_lowercase(content)
    if library.truncation_side == "left":
        changed |= set_left_truncation(content)
    if with_types and "token_type_ids" not in library.model_input_names:
        changed |= set_one_type(content)
    if not changed:  # the folder's own spelling, on which fingerprints depend
        return Tokenizer.load(folder, max_length)
    return Tokenizer(json.dumps(content, ensure_ascii=False), max_length)


def _parse(path: Path) -> Any:
    """Return ``tokenizer.json`` as the tokenizers package writes it again, or nothing where it is missing."""
    return json.loads(tokenizers.Tokenizer.from_file(str(path)).to_str()) if path.is_file() else {}


def _without_lengths(content: Any) -> dict[str, Any]:
    """Return the content without truncation and padding, which are overridden."""
    return {name: value for name, value in content.items() if name not in ("truncation", "padding")}


def library_tokenizer(folder: Path, *, trust_remote_code: bool = False) -> Any:
    """Return transformers' own fast tokenizer of a folder.

    Raises:
        ModelError: transformers does not load it, or has no fast tokenizer for it.
    """
    with loading(folder, "tokenizer"):
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code)
        tokenizer.backend_tokenizer  # noqa: B018 - tokenizers in Python have none
    return tokenizer


def write_tokenizer(folder: Path, tokenizer: Tokenizer | PairTokenizer, *, with_types: bool = True) -> None:
    """Write ``tokenizer.json`` and the ``tokenizer_config.json`` that transformers needs.

    ``with_types`` is for a network that reads the types of a pair's tokens; others do not accept them.
    """
    pair_inputs = ["token_type_ids"] if isinstance(tokenizer, PairTokenizer) and with_types else []
    (folder / "tokenizer.json").write_text(tokenizer.json, encoding="utf-8")
    pieces = {token["id"]: token["content"] for token in json.loads(tokenizer.json).get("added_tokens", [])}
    roles = {"pad_token": pieces.get(tokenizer.pad_id), "unk_token": pieces.get(tokenizer.unknown_id)}
    for role, spellings in _ROLES.items():
        roles[role] = next((spelling for spelling in spellings if spelling in pieces.values()), None)
    settings = {
        # The generic class uses tokenizer.json unchanged; a BertTokenizer would override its lowercasing.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": tokenizer.max_length,
        "model_input_names": ["input_ids", *pair_inputs, "attention_mask"],
        **{role: piece for role, piece in roles.items() if piece is not None},
    }
    text = json.dumps(settings, indent=2, ensure_ascii=False) + "\n"
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")


def unknown_id(tokenizer: Tokenizer | PairTokenizer) -> int | None:
    """Return the id of unknown words, None if there is none."""
    model = json.loads(tokenizer.json)["model"]
    if model.get("unk_token") is None:
        number: int | None = model.get("unk_id")  # of Unigram
        return number
    return tokenizers.Tokenizer.from_str(tokenizer.json).token_to_id(model["unk_token"])


def real_words(tokenizer: Tokenizer | PairTokenizer) -> list[int]:
    """Return the ids of words and word pieces, ascending, without special tokens and ``[unused]`` rows."""
    pieces = tokenizers.Tokenizer.from_str(tokenizer.json).get_vocab(with_added_tokens=True)
    return sorted(
        number
        for piece, number in pieces.items()
        if number not in tokenizer.special_ids and not piece.startswith("[unused")
    )


_BLOCK = 32
_CLIPPED = (0.95, 0.9, 0.85)  # clipping thresholds to try, as shares of the largest magnitude

INT4_ZERO = 8
"""The stored value that represents 0: stored values 0 to 15 represent -8 to 7."""
INT4_ERROR = INT4_ZERO / _CLIPPED[-1] - (INT4_ZERO - 1)
"""Maximum error of a clipped value in steps; for other values it is half a step."""


def quantize_blocks(table: FloatArray) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float16]]:
    """Round rows ``(V, H) float32`` to integers in [-8, 7], int8, with a scale for each block of 32 values.

    A scale has the sign that makes the largest magnitude negative, because there are more negative integers than
    positive ones. It maps that magnitude to -8, or beyond if clipping reduces the squared error of the block.
    Scales are ``(V, H / 32, 1) float16``, or ``(V, 1, 1)`` if 32 does not divide H; a block of zeros has scale 1.
    """
    blocks = table.reshape(_blocks(table.shape))
    largest = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=-1)[..., None], axis=-1)
    best, scales = _round_blocks(blocks, largest)
    error = _squared_error(blocks, best, scales)
    for share in _CLIPPED:
        integers, clipped = _round_blocks(blocks, np.float32(share) * largest)
        squares = _squared_error(blocks, integers, clipped)
        better = squares < error
        best, scales = np.where(better, integers, best), np.where(better, clipped, scales)
        error = np.minimum(squares, error)
    return best.reshape(table.shape), scales


def round_blocks(table: Tensor) -> Tensor:
    """Return rows ``(V, H) float32`` as :func:`quantize_blocks` rounds them, computed where they are.

    It serves a GPU, to which NumPy has no access. Among clipping thresholds of equal error, up to the order of
    summation, it may choose another one.
    """
    blocks = table.reshape(_blocks(table.shape))
    largest = blocks.gather(-1, blocks.abs().argmax(dim=-1, keepdim=True))
    shares = torch.tensor([1.0, *_CLIPPED], dtype=torch.float32, device=table.device)
    scales = (largest * shares / -INT4_ZERO).half()
    scales = torch.where(scales == 0, 1.0, scales.float())[..., None, :]
    restored = (blocks[..., None] / scales).round().clamp(-INT4_ZERO, INT4_ZERO - 1) * scales
    errors = (restored - blocks[..., None]).square().sum(dim=-2)
    best = errors.argmin(dim=-1)[..., None, None].expand(*blocks.shape, 1)
    return restored.gather(-1, best).reshape(table.shape)


def _blocks(shape: Sequence[int]) -> tuple[int, int, int]:
    """Return the shape of rows in blocks."""
    rows, width = shape
    block = _BLOCK if width % _BLOCK == 0 else width
    return rows, width // block, block


def _round_blocks(blocks: FloatArray, largest: FloatArray) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float16]]:
    """Return integers, and the scales that map ``largest`` of each block to -8."""
    scales = (largest / -INT4_ZERO).astype(np.float16)
    scales = np.where(scales == 0, np.float16(1.0), scales)
    return np.rint(blocks / scales.astype(np.float32)).clip(-INT4_ZERO, INT4_ZERO - 1).astype(np.int8), scales


def _squared_error(
    blocks: FloatArray, integers: npt.NDArray[np.int8], scales: npt.NDArray[np.float16]
) -> FloatArray:
    """Return the squared error of each block: ``(V, blocks, 1)``."""
    error: FloatArray = np.square(integers * scales.astype(np.float32) - blocks).sum(axis=-1, keepdims=True)
    return error
