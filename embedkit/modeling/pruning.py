"""Smaller vocabularies: the pieces that texts use, with a matching tokenizer and word table.

A text whose pieces were all kept is tokenized as before: WordPiece takes the longest piece at each position,
Unigram the most likely segmentation, and BPE the first possible merge, where all merges on the way to a kept piece
are kept; pruning adds no alternatives. In any other text, missing pieces are split into shorter ones, down to
single characters or bytes, which are all kept. Pieces with a character that the vocabulary does not contain on its
own are kept, too, so no text gets more unknown tokens.
"""

from __future__ import annotations

import copy
import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from embedkit.errors import InputError, ModelError
from embedkit.modeling.cross_encoder import PairEncoder
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.runtime.token_ids import TokenIds
from embedkit.runtime.tokenization import PairTokenizer, Tokenizer

_ALGORITHMS = ("WordPiece", "Unigram", "BPE")
_BYTE_PIECE = re.compile(r"<0x[0-9A-F]{2}>")

Counts = npt.NDArray[np.int64]
Weights = npt.NDArray[np.float64]
Model = TypeVar("Model", bound=SentenceEncoder | PairEncoder)
AnyTokenizer = TypeVar("AnyTokenizer", bound=Tokenizer | PairTokenizer)


def count_pieces(tokenizer: Tokenizer, chunks: Iterable[Sequence[str]], *, prompt: str = "") -> Counts:
    """Count how often texts, some at a time and each after the prompt, use each piece: ``(V,) int64``, by id.

    Of texts longer than the tokenizer's maximum length, only the part that it keeps counts.

    Raises:
        InputError: an item is not a string.
    """
    counts = np.zeros(1 + max(_read_pieces(json.loads(tokenizer.json)).values()), dtype=np.int64)
    first = 0
    for chunk in chunks:
        ids = TokenIds.of(tokenizer.tokenize(chunk, prompt=prompt, first=first).ids)
        counts += np.bincount(ids.flat, minlength=len(counts))
        first += len(chunk)
    return counts


def piece_probabilities(tokenizer: Tokenizer) -> Weights:
    """Return the probability of each piece by the text that a Unigram tokenizer was made from: ``(V,) float64``.

    Added tokens have none.

    Raises:
        ModelError: the tokenizer is not Unigram.
    """
    model = json.loads(tokenizer.json)["model"]
    if model.get("type") != "Unigram":
        raise ModelError(f"only Unigram tokenizers hold probabilities of their pieces, not {model.get('type')}")
    # Added tokens are in the list, too, with a logarithm of 0.
    logarithms = np.array([score or -np.inf for _, score in model["vocab"]])
    weights: Weights = np.zeros(tokenizer.vocabulary_size)
    weights[: len(logarithms)] = np.exp(logarithms)
    weights /= weights.sum()
    return weights


def smooth_counts(counts: Counts, probabilities: Weights, share: float) -> Weights:
    """Mix the shares of pieces in counted text with :func:`piece_probabilities`, which weigh ``share``."""
    mixed: Weights = (1 - share) * counts / counts.sum() + share * probabilities
    return mixed


def required_pieces(tokenizer: Tokenizer | PairTokenizer, size: int | None = None) -> set[int]:
    """Return the ids that every vocabulary keeps: special tokens, and the pieces needed to spell everything else.

    Raises:
        InputError: ``size`` is the size of a vocabulary that is too small for them.
        ModelError: the tokenizer is neither WordPiece nor Unigram nor a BPE without suffixes.
    """
    content = json.loads(tokenizer.json)
    return _always_kept(tokenizer, content, _read_pieces(content), size)


def _always_kept(
    tokenizer: Tokenizer | PairTokenizer, content: Mapping[str, Any], pieces: Mapping[str, int], size: int | None
) -> set[int]:
    required = _required(content, pieces) | tokenizer.special_ids
    if size is not None and size < len(required):
        raise InputError(
            f"a vocabulary of {size} pieces is too small: special tokens and single characters need "
            f"{len(required)}"
        )
    return required


def choose_pieces(
    tokenizer: Tokenizer | PairTokenizer, weights: Counts | Weights, size: int | None = None
) -> list[int]:
    """Return the ids to keep, ascending, so that special tokens stay at the start as usual.

    The required pieces are always kept. With a ``size``, those of the largest weights, such as their counts, are
    kept up to that number, otherwise all whose weight is not 0.

    Raises:
        InputError, ModelError: see :func:`required_pieces`.
    """
    content = json.loads(tokenizer.json)
    pieces = _read_pieces(content)
    kept = _always_kept(tokenizer, content, pieces, size)
    merges = _Merges(content["model"].get("merges") or ())
    names = {number: piece for piece, number in pieces.items()}
    for number in np.argsort(-weights, kind="stable").tolist():
        if not weights[number]:
            break
        needed = {number, *(pieces[part] for part in merges.path(names[number]))} - kept
        if size is None or len(kept) + len(needed) <= size:
            kept |= needed
    return sorted(kept)


def prune_tokenizer(tokenizer: AnyTokenizer, kept: Sequence[int]) -> AnyTokenizer:
    """Return the tokenizer with only the kept pieces, renumbered from 0 in the order of ``kept``."""
    content = json.loads(tokenizer.json)
    smaller = _renumber(content, _read_pieces(content), kept)
    return type(tokenizer)(json.dumps(smaller, ensure_ascii=False, separators=(",", ":")), tokenizer.max_length)


def prune_model(model: Model, kept: Sequence[int]) -> Model:
    """Return a copy of a model with the kept pieces and their rows of the word table and the word memory.

    Raises:
        ModelError: the model counts positions from its padding token, whose id would change.
    """
    network = model.network if isinstance(model, PairEncoder) else model.backbone
    pad_id = None if network.config.pad_token_id is None else kept.index(network.config.pad_token_id)
    if network.config.model_type != "bert" and pad_id != network.config.pad_token_id:
        raise ModelError(f"{model.name} counts positions from its padding token, whose id would change")
    words: Any = network.get_input_embeddings()
    # The copy takes the smaller tables in place of the whole ones, which are never copied.
    smaller: dict[int, Any] = {id(words): _keep_rows(words, kept, pad_id)}
    if isinstance(model, SentenceEncoder) and model.memory is not None:
        smaller[id(model.memory.rows)] = _keep_rows(model.memory.rows, kept)
    smaller[id(model.tokenizer)] = prune_tokenizer(model.tokenizer, kept)
    pruned = copy.deepcopy(model, smaller)
    config = (pruned.network if isinstance(pruned, PairEncoder) else pruned.backbone).config
    config.vocab_size, config.pad_token_id = len(kept), pad_id
    return pruned


def _keep_rows(table: nn.Embedding, kept: Sequence[int], pad_id: int | None = None) -> nn.Embedding:
    rows = table.weight.detach()[torch.tensor(kept, device=table.weight.device)]
    freeze = not table.weight.requires_grad
    smaller: nn.Embedding = nn.Embedding.from_pretrained(rows, freeze=freeze, padding_idx=pad_id)
    return smaller


def _read_pieces(content: Mapping[str, Any]) -> dict[str, int]:
    """Return the id of each piece, including added tokens."""
    model = content["model"]
    algorithm = model.get("type")
    if algorithm not in _ALGORITHMS:
        raise ModelError(
            f"the vocabulary of a {algorithm} tokenizer cannot be pruned; expected {', '.join(_ALGORITHMS)}"
        )
    if algorithm == "BPE" and (model.get("end_of_word_suffix") or model.get("continuing_subword_prefix")):
        raise ModelError("the vocabulary of a BPE tokenizer that marks the parts of words cannot be pruned")
    vocabulary = model["vocab"]
    if not isinstance(vocabulary, dict):  # Unigram: a list of pieces with their scores
        vocabulary = {piece: number for number, (piece, _) in enumerate(vocabulary)}
    return vocabulary | {token["content"]: token["id"] for token in content.get("added_tokens", [])}


def _required(content: Mapping[str, Any], pieces: Mapping[str, int]) -> set[int]:
    """Return ids that are always kept: added and unknown tokens, and pieces that others cannot spell."""
    model = content["model"]
    prefix = model.get("continuing_subword_prefix") or ""
    stay = {token["content"] for token in content.get("added_tokens", [])} | {model.get("unk_token")}
    if model.get("byte_fallback"):
        stay |= set(filter(_BYTE_PIECE.fullmatch, pieces))
    required = {
        number
        for piece, number in pieces.items()
        if piece in stay or not _is_spelled(piece, _spell(piece, prefix), pieces)
    }
    return required if model.get("unk_id") is None else required | {model["unk_id"]}


def _spell(piece: str, prefix: str) -> list[str]:
    """Spell a piece as pieces of one character, which may be the piece itself."""
    body = piece.removeprefix(prefix)
    start = prefix if len(body) < len(piece) else ""
    return [start + body[:1], *(prefix + character for character in body[1:])]


def _is_spelled(piece: str, spelling: Sequence[str], pieces: Mapping[str, int]) -> bool:
    return spelling != [piece] and all(part in pieces for part in spelling)


class _Merges:
    """The merges of BPE in their order, none for other algorithms."""

    def __init__(self, merges: Iterable[str | list[str]]) -> None:
        self._ranks = {_pair(merge): rank for rank, merge in enumerate(merges)}

    def path(self, piece: str) -> set[str]:
        """Return the pieces that BPE makes on its way from single characters to a piece."""
        parts, made = list(piece), set()
        while joinable := [pair for pair in itertools.pairwise(parts) if pair in self._ranks]:
            first = min(joinable, key=self._ranks.__getitem__)
            place = list(itertools.pairwise(parts)).index(first)
            parts[place : place + 2] = ["".join(first)]
            made.add(parts[place])
        return made


def _pair(merge: str | list[str]) -> tuple[str, ...]:
    return tuple(merge.split(" ") if isinstance(merge, str) else merge)


def _renumber(content: dict[str, Any], pieces: Mapping[str, int], kept: Sequence[int]) -> dict[str, Any]:
    """Return the ``tokenizer.json`` with only the kept pieces, renumbered from 0."""
    numbers = {old: new for new, old in enumerate(kept)}
    model = dict(content["model"])
    if isinstance(model["vocab"], dict):
        ascending = sorted(model["vocab"].items(), key=lambda entry: int(entry[1]))
        model["vocab"] = {piece: numbers[old] for piece, old in ascending if old in numbers}
    else:
        model["vocab"] = [entry for entry in model["vocab"] if pieces[entry[0]] in numbers]
        model["unk_id"] = None if model.get("unk_id") is None else numbers[model["unk_id"]]
    if "merges" in model:
        pairs = ((merge, _pair(merge)) for merge in model["merges"])
        known = model["vocab"]
        model["merges"] = [merge for merge, pair in pairs if {*pair, "".join(pair)} <= known.keys()]
    renumbered = content | {"model": model, "post_processor": _renumber_frame(content["post_processor"], numbers)}
    renumbered["added_tokens"] = [
        token | {"id": numbers[token["id"]]} for token in content.get("added_tokens", [])
    ]
    if content.get("padding"):
        renumbered["padding"] = content["padding"] | {"pad_id": numbers[content["padding"]["pad_id"]]}
    return renumbered


def _renumber_frame(processor: dict[str, Any] | None, numbers: Mapping[int, int]) -> dict[str, Any] | None:
    """Renumber the post-processor, which adds special tokens to a text."""
    if processor is None:
        return None
    renumbered = dict(processor)
    if "processors" in processor:
        renumbered["processors"] = [_renumber_frame(part, numbers) for part in processor["processors"]]
    if "special_tokens" in processor:
        renumbered["special_tokens"] = {
            name: token | {"ids": [numbers[old] for old in token["ids"]]}
            for name, token in processor["special_tokens"].items()
        }
    for role in ("cls", "sep"):  # of BertProcessing and RobertaProcessing
        if role in processor:
            token, old = processor[role]
            renumbered[role] = [token, numbers[old]]
    return renumbered
