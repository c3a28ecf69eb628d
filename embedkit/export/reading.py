"""The gate on texts: a model's own library and its bundle read the same texts, and agree.

All other gates feed token ids, so a setting of the folder that was misread would pass them. Here transformers'
``AutoTokenizer`` reads the folder again, and sentence-transformers encodes the texts if it is installed.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from embedkit.export.candidates import Candidate, run_torch
from embedkit.export.gates import Gate, largest_difference, rounded
from embedkit.modeling.cross_encoder import PairEncoder
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.modeling.pretrained import OFFSET_POSITIONS, longest_text
from embedkit.modeling.vocabulary import library_tokenizer
from embedkit.protocols import FloatArray
from embedkit.runtime.folders import read_json
from embedkit.runtime.tokenization import Tokens

__all__ = ["check_reading"]

_PEER = "sentence_transformers"
_ENOUGH_TOKENS = 1024  # longer texts are compared as tokens only: attention over them takes minutes
_SMALLEST_COSINE = 0.95
_SAME = 1e-4  # sentence-transformers and this package compute the same network in float32

_TEXTS = (
    "",
    "UPPER and Mixed Case",
    "Déjà vu: naïve café, Ünïcödé, Straße, İstanbul",
    "  spaces before,\tbetween\n and   after  ",
    "東京は日本の首都です。 Москва 🎉",
)


def check_reading(
    original: SentenceEncoder | PairEncoder, folder: Path, *, max_length: int | None, candidate: Candidate | None
) -> Gate:
    """Compare a model with its folder as the folder's own library reads it.

    Args:
        original: the model, before its vocabulary was pruned.
        folder: what it was loaded from.
        max_length: the length that the caller chose instead of the folder's, or None.
        candidate: the graph with the model's tokenizer; None if its vocabulary was pruned: its tokens differ.

    Returns:
        a gate that passes if the tokens of every text are equal, the file gives what the torch model gives for the
        library's tokens, to the rounding of its precision (cosine 0.95, which the other gates refine), and
        sentence-transformers, if it is there, gives the same embeddings or scores as the torch model.
    """
    library = library_tokenizer(folder)
    length = max_length or _find_length(folder, library, original)
    items = _items(original, library.all_special_tokens, str(library.pad_token), length)
    expected = _tokenize(library, items, length)
    found = original.tokenizer.tokenize(items)
    differing = [
        row
        for row in range(len(items))
        if expected.ids[row] != list(found.ids[row])
        or (expected.type_ids and found.type_ids and expected.type_ids[row] != list(found.type_ids[row]))
    ]
    figures: dict[str, object] = {
        "library": f"transformers {importlib.metadata.version('transformers')}",
        "texts": len(items),
        "differently_tokenized": len(differing),
    }
    if differing:
        figures["for_example"] = str(items[differing[0]])[:60]
        return Gate("texts", passed=False, figures=figures)
    short = [row for row in range(len(items)) if len(expected.ids[row]) <= _ENOUGH_TOKENS]
    values = run_torch(original)(expected.choose(short))
    chosen = [items[row] for row in short]
    passed = True
    if candidate is not None:
        passed = _agrees(values, candidate.run(chosen), figures)
    if importlib.util.find_spec(_PEER) is not None:
        figures["library"] = f"sentence-transformers {importlib.metadata.version('sentence-transformers')}"
        difference = largest_difference(values, _run_peer(original, folder, max_length, chosen))
        figures |= {"torch_difference": rounded(difference), "torch_difference_allowed": _SAME}
        passed = passed and difference <= _SAME
    return Gate("texts", passed, figures)


def _agrees(expected: FloatArray, got: FloatArray, figures: dict[str, object]) -> bool:
    """Compare embeddings or scores of the file and of the torch model."""
    if expected.ndim == 1:
        difference = largest_difference(expected, got)
        figures |= {"largest_difference": rounded(difference)}
        return bool(np.isfinite(difference))
    cosine = float(np.nan_to_num((expected * got).sum(axis=1), nan=-1.0).min())
    figures |= {"smallest_cosine": round(min(cosine, 1.0), 6), "smallest_cosine_allowed": _SMALLEST_COSINE}
    return cosine >= _SMALLEST_COSINE


def _find_length(folder: Path, library: Any, model: SentenceEncoder | PairEncoder) -> int:
    """Return the length that sentence-transformers uses: its own setting, else the tokenizer's."""
    longest = longest_text(model.config)
    chosen = read_json(folder / "sentence_bert_config.json", optional=True).get("max_seq_length")
    length = int(min(chosen or library.model_max_length, longest))
    return 512 if length == longest_text(model.config) > 100_000 else length  # unlimited


def _items(model: SentenceEncoder | PairEncoder, special: Sequence[str], pad: str, length: int) -> list[Any]:
    """Return texts or pairs that every setting changes."""
    # RoBERTa's positions skip the padding token even within a text, and those of bundles do not.
    named = [token for token in special if token != pad or model.config.model_type not in OFFSET_POSITIONS]
    texts = [*_TEXTS, f"special {' '.join(named)} tokens", "a long text, First to last word " * (length // 6 + 1)]
    if isinstance(model, PairEncoder):
        return [(texts[row], texts[row - 1]) for row in range(len(texts))]
    return texts + [prompt + text for prompt in model.prompts.values() if prompt for text in texts[1:]]


def _tokenize(library: Any, items: Sequence[Any], length: int) -> Tokens:
    is_pairs = isinstance(items[0], tuple)
    texts = ([first for first, _ in items], [second for _, second in items]) if is_pairs else (list(items),)
    found = library(*texts, truncation=True, max_length=length, return_token_type_ids=is_pairs)
    return Tokens(found["input_ids"], [], found["token_type_ids"] if is_pairs else None)


def _run_peer(
    model: SentenceEncoder | PairEncoder, folder: Path, max_length: int | None, items: Sequence[Any]
) -> FloatArray:
    """Return embeddings, of texts that contain their prompts, or scores of sentence-transformers."""
    peer: Any = importlib.import_module(_PEER)
    torch: Any = importlib.import_module("torch")
    if isinstance(model, PairEncoder):
        scorer = peer.CrossEncoder(str(folder), device="cpu", max_length=max_length)
        return np.asarray(scorer.predict(items, activation_fn=torch.nn.Sigmoid()), dtype=np.float32)
    encoder = peer.SentenceTransformer(str(folder), device="cpu")
    if max_length is not None:
        encoder.max_seq_length = max_length
    return np.asarray(encoder.encode(list(items), prompt="", normalize_embeddings=True), dtype=np.float32)
