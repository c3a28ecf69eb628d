"""Changes of a trained model before it is written: fewer pieces in its vocabulary, whitened embeddings.

Embeddings of many encoders have a large common part and a few strong directions, which raise all cosines and
hide finer differences. Whitening (Su et al. 2021, arXiv 2103.15316) subtracts the mean and divides each principal
component by its standard deviation, here by a power of it. Components are then rotated back, so that each
dimension keeps its meaning, and leading dimensions theirs for truncation.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from embedkit.errors import ExportError
from embedkit.export.gates import Gate
from embedkit.modeling.cross_encoder import PairEncoder
from embedkit.modeling.encoder import DenseHead, SentenceEncoder, chain
from embedkit.modeling.pruning import choose_pieces, count_pieces, prune_model
from embedkit.modeling.torch_encoder import TorchEncoder
from embedkit.modeling.vocabulary import unknown_id
from embedkit.runtime.tokenization import Tokenizer

_TEXTS_PER_CHUNK = 4096

Model = TypeVar("Model", bound=SentenceEncoder | PairEncoder)


def prune_vocabulary(model: Model, texts: Sequence[str], size: int | None = None) -> tuple[Model, Gate]:
    """Keep the pieces that texts use, the special tokens, and the pieces needed to spell everything else.

    The texts count as they are and after each of the model's prompts. With a ``size``, the most frequent pieces
    are kept up to that number. Of texts longer than the model's maximum length, only the part that the model sees
    counts. A copy of the model with the smaller vocabulary is returned with the gate ``vocabulary``, which fails
    if a token of the corpus became unknown, or a text changed although all its pieces were kept.

    Raises:
        ExportError: there are no texts.
        InputError: an item of ``texts`` is not a string, or ``size`` is too small.
        ModelError: the tokenizer is neither WordPiece nor Unigram nor a BPE without suffixes.
    """
    if not texts:
        raise ExportError("the vocabulary cannot be pruned without texts")
    before = Tokenizer(model.tokenizer.json, model.max_length)
    counts = np.sum([count_pieces(before, _chunks(texts), prompt=prompt) for prompt in model.prefixes], axis=0)
    kept = choose_pieces(before, counts, size)
    pruned = prune_model(model, kept)
    after = Tokenizer(pruned.tokenizer.json, model.max_length)
    return pruned, _measure(before, after, texts, model.prefixes, kept)


def _measure(
    before: Tokenizer, after: Tokenizer, texts: Sequence[str], prompts: Sequence[str], kept: Sequence[int]
) -> Gate:
    """Tokenize the corpus after each prompt by both tokenizers and count the differences."""
    known = set(kept)
    unknown = unknown_id(before)
    counts: Counter[str] = Counter()
    both = (_tokenize(tokenizer, texts, prompts) for tokenizer in (before, after))
    for old, new in zip(*both, strict=True):
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
            "share_of_texts_unchanged": _share(counts["texts_same"], len(texts) * len(prompts)),
            "texts_broken": counts["broken"],
            "unknown_tokens": counts["unknown"],
            "unknown_tokens_before": counts["unknown_before"],
        },
    )


def _chunks(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(texts), _TEXTS_PER_CHUNK):
        yield texts[start : start + _TEXTS_PER_CHUNK]


def _tokenize(tokenizer: Tokenizer, texts: Sequence[str], prompts: Sequence[str]) -> Iterator[list[int]]:
    for prompt in prompts:
        for chunk in _chunks(texts):
            yield from tokenizer.tokenize(chunk, prompt=prompt).ids


def _share(part: int, whole: int) -> float:
    return round(part / whole, 6) if whole else 1.0


_LEAST_SHARE = 1e-6  # of the mean variance: components with less are noise, and are not enlarged further


def whiten_embeddings(model: SentenceEncoder, texts: Sequence[str], power: float) -> SentenceEncoder:
    """Return a copy whose embeddings have the mean 0 over texts, and more alike components.

    Each principal component is divided by its standard deviation to the ``power``, from 0 (only the
    mean is subtracted) to 1 (whitening). The copy shares all weights but those of its head.

    Raises:
        ExportError: there are fewer texts than dimensions.
    """
    if len(texts) < model.dimension:
        raise ExportError(
            f"whitening_power needs at least {model.dimension} calibration texts, one for each dimension, "
            f"not {len(texts)}",
            parameters=["whitening_power", "calibration"],
        )
    outputs = _Outputs(model).encode_ids(model.tokenizer.tokenize(texts).ids).astype(np.float64)
    mean = outputs.mean(axis=0)
    variances, axes = np.linalg.eigh(np.cov(outputs, rowvar=False, bias=True))
    scales = np.maximum(variances, _LEAST_SHARE * variances.mean()) ** (-power / 2)
    weight = (axes * scales / scales.mean()) @ axes.T
    return append_linear(model, weight, -weight @ mean)


def append_linear(model: SentenceEncoder, weight: npt.NDArray[Any], bias: npt.NDArray[Any]) -> SentenceEncoder:
    """Return a copy with a linear layer ``(D', D)`` after its head, which shares all weights but the head's."""
    layer = DenseHead(model.dimension, len(bias), "linear").to(model.device)
    with torch.no_grad():
        layer.linear.weight.copy_(torch.from_numpy(weight))
        layer.linear.bias.copy_(torch.from_numpy(bias))
    shared: dict[int, object] = {id(parameter): parameter for parameter in model.parameters()}
    changed = copy.deepcopy(model, shared)
    changed.head = chain(changed.head, layer)
    return changed


class _Outputs(TorchEncoder):
    """Embeddings before they are scaled to unit length."""

    def _finish(self, outputs: Tensor) -> Tensor:
        return outputs.float()
