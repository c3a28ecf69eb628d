"""Pruning of a vocabulary to the pieces that a corpus uses, with a matching tokenizer and word table.

A text whose pieces were all kept is tokenized as before: WordPiece takes the longest piece at each position and
Unigram the most likely segmentation, and pruning adds no alternatives. In any other text, missing pieces are split
into shorter ones, down to single characters, which are all kept. Pieces with a character that the vocabulary does
not contain on its own are kept, too: nothing that was known before becomes unknown.
"""

from __future__ import annotations

import copy
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from embedkit.errors import ExportError
from embedkit.export.gates import Gate
from embedkit.modeling.cross_encoder import PairEncoder
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.modeling.vocabulary import unknown_id
from embedkit.runtime.tokenization import Tokenizer

__all__ = ["prune_vocabulary"]

_ALGORITHMS = ("WordPiece", "Unigram")
_BYTE_PIECE = re.compile(r"<0x[0-9A-F]{2}>")
_TEXTS_PER_CHUNK = 4096

Model = TypeVar("Model", bound=SentenceEncoder | PairEncoder)


def prune_vocabulary(model: Model, texts: Sequence[str], size: int | None = None) -> tuple[Model, Gate]:
    """Keep the pieces that texts use, the special tokens, and the pieces needed to spell everything else.

    Args:
        model: an encoder or a cross-encoder; not changed.
        texts: the corpus; of texts longer than the model's maximum length, only the part that the model sees
            counts.
        size: maximum number of pieces to keep, the most frequent first; by default all that are used.

    Returns:
        a copy of the model with the smaller vocabulary, and the gate ``vocabulary``, which fails if a token
        of the corpus became unknown, or a text changed although all its pieces were kept.

    Raises:
        ExportError: there are no texts, ``size`` is too small, or the tokenizer is neither WordPiece nor Unigram.
        InputError: an item of ``texts`` is not a string.
    """
    if not texts:
        raise ExportError("the vocabulary cannot be pruned without texts")
    before = Tokenizer(model.tokenizer.json, model.max_length)
    content = json.loads(before.json)
    pieces = _read_pieces(content)
    used = Counter(itertools.chain.from_iterable(_tokenize(before, texts)))
    kept = _choose(used, _required(content, pieces) | before.special_ids, size)
    smaller = json.dumps(_renumber(content, pieces, kept), ensure_ascii=False, separators=(",", ":"))
    after = Tokenizer(smaller, model.max_length)
    return _with_vocabulary(model, smaller, kept), _measure(before, after, texts, kept)


def _read_pieces(content: Mapping[str, Any]) -> dict[str, int]:
    """Return the id of each piece, including added tokens."""
    model = content["model"]
    algorithm = model.get("type")
    if algorithm not in _ALGORITHMS:
        raise ExportError(
            f"the vocabulary of a {algorithm} tokenizer cannot be pruned; expected {' or '.join(_ALGORITHMS)}"
        )
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


def _choose(used: Mapping[int, int], required: set[int], size: int | None) -> list[int]:
    """Return the ids to keep, ascending, so that special tokens stay at the start as usual."""
    if size is not None and size < len(required):
        raise ExportError(
            f"a vocabulary of {size} pieces is too small: special tokens and single characters need "
            f"{len(required)}"
        )
    wanted = sorted(used.keys() - required, key=lambda number: (-used[number], number))
    return sorted([*required, *wanted[: None if size is None else size - len(required)]])


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


def _with_vocabulary(model: Model, tokenizer_json: str, kept: Sequence[int]) -> Model:
    """Return a copy of the model with the kept rows of its word table and word memory."""
    pruned = copy.deepcopy(model)
    network = pruned.network if isinstance(pruned, PairEncoder) else pruned.backbone
    config = network.config
    pad_id = None if config.pad_token_id is None else kept.index(config.pad_token_id)
    if config.model_type != "bert" and pad_id != config.pad_token_id:
        raise ExportError(f"{model.name} counts positions from its padding token, whose id would change")
    rows = _keep_rows(network.get_input_embeddings(), kept)
    network.set_input_embeddings(nn.Embedding.from_pretrained(rows, padding_idx=pad_id))
    if isinstance(pruned, SentenceEncoder) and pruned.memory is not None:
        pruned.memory.rows = nn.Embedding.from_pretrained(_keep_rows(pruned.memory.rows, kept))
    config.vocab_size, config.pad_token_id = len(kept), pad_id
    pruned.tokenizer = type(pruned.tokenizer)(tokenizer_json, model.max_length)
    return pruned


def _keep_rows(table: nn.Module, kept: Sequence[int]) -> Tensor:
    rows = table.get_parameter("weight").detach()
    return rows[torch.tensor(kept, device=rows.device)]


def _measure(before: Tokenizer, after: Tokenizer, texts: Sequence[str], kept: Sequence[int]) -> Gate:
    """Tokenize the corpus by both tokenizers and count the differences."""
    known = set(kept)
    unknown = unknown_id(before)
    counts: Counter[str] = Counter()
    for old, new in zip(_tokenize(before, texts), _tokenize(after, texts), strict=True):
        restored = [kept[number] for number in new]
        words = [number for number in old if number not in before.special_ids]
        counts["tokens"] += len(words)
        counts["tokens_kept"] += sum(number in known for number in words)
        counts["texts_same"] += old == restored
        counts["broken"] += old != restored and known.issuperset(old)
        if unknown is not None:
            counts["unknown_before"] += old.count(unknown)
            counts["unknown"] += restored.count(unknown)
    return Gate(
        "vocabulary",
        counts["broken"] == 0 and counts["unknown"] <= counts["unknown_before"],
        {
            "pieces": len(kept),
            "pieces_before": before.vocabulary_size,
            "texts": len(texts),
            "share_of_tokens_kept": _share(counts["tokens_kept"], counts["tokens"]),
            "share_of_texts_unchanged": _share(counts["texts_same"], len(texts)),
            "texts_broken": counts["broken"],
            "unknown_tokens": counts["unknown"],
            "unknown_tokens_before": counts["unknown_before"],
        },
    )


def _tokenize(tokenizer: Tokenizer, texts: Sequence[str]) -> Iterator[list[int]]:
    for start in range(0, len(texts), _TEXTS_PER_CHUNK):
        yield from tokenizer.tokenize(texts[start : start + _TEXTS_PER_CHUNK], first=start).ids


def _share(part: int, whole: int) -> float:
    return round(part / whole, 6) if whole else 1.0
