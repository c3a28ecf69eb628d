"""Networks that paraphrase texts: a masked language model, and back-translation."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from transformers import AutoModelForMaskedLM, AutoModelForSeq2SeqLM, AutoTokenizer

from embedkit.errors import InputError, ModelError
from embedkit.modeling.location import find_folder
from embedkit.modeling.quiet import quiet_transformers

__all__ = ["BackTranslation", "MaskedRefill", "Rewriter"]

_BATCH = 32
_DECISIVE_FILES = ("*.json", "*.txt", "*.model", "*.spm", "*.safetensors", "*.bin")


class Rewriter(Protocol):
    """Paraphrases texts.

    Attributes:
        name: name of the rewriter.
        fingerprint: hex digest of everything that determines the output.
    """

    name: str
    fingerprint: str

    def rewrite(self, texts: Sequence[str]) -> list[str]:
        """Return a paraphrase of each text, possibly unchanged or empty."""


class MaskedRefill:
    """Masks a share of a text's word pieces and fills them in with a masked language model.

    BSL replaces 20 % with RoBERTa-base, SCT's ablation 15 %. The positions depend only on the text and the seed,
    so the same text is always rewritten in the same way. Case and whitespace are those of the model's tokenizer.

    Args:
        source: a transformers folder or hub id.
        share: share of the inner pieces to mask, rounded; at least one is masked.
        max_length: maximum length of a text in tokens; the rest is discarded.
        seed: seed of the positions.
        device: a torch device.

    Raises:
        ModelNotFoundError, ModelError: the model cannot be loaded or is not a masked language model.
        InputError: ``share`` is not in (0, 1].
    """

    def __init__(
        self,
        source: str | os.PathLike[str],
        *,
        share: float = 0.2,
        max_length: int = 128,
        seed: int = 0,
        device: str = "cpu",
    ) -> None:
        if not 0 < share <= 1:
            raise InputError(f"share must be greater than 0 and at most 1, not {share}")
        self._share, self._seed, self._max_length = share, seed, max_length
        self._network = _Network(AutoModelForMaskedLM, source, device)
        if self._network.tokenizer.mask_token_id is None:
            raise ModelError(f"{source} has no mask token, so it is not a masked language model")
        self.name = self._network.name
        self.fingerprint = _digest("masked", share, max_length, seed, self._network.fingerprint)

    def rewrite(self, texts: Sequence[str]) -> list[str]:
        """See :class:`Rewriter`."""
        return [text for batch in _batches(texts) for text in self._rewrite(batch)]

    @torch.inference_mode()
    def _rewrite(self, texts: Sequence[str]) -> list[str]:
        tokenizer = self._network.tokenizer
        tokens = self._network.tokenize(texts, self._max_length, return_special_tokens_mask=True)
        special = tokens.pop("special_tokens_mask").bool()
        ids = tokens["input_ids"]
        masked = torch.stack([self._places(*pair) for pair in zip(texts, special, strict=True)])
        tokens["input_ids"] = ids.masked_fill(masked, tokenizer.mask_token_id)
        logits = self._network.model(**tokens).logits
        logits[..., tokenizer.all_special_ids] = -torch.inf
        filled = torch.where(masked.to(ids.device), logits.argmax(dim=-1), ids)
        written: list[str] = tokenizer.batch_decode(filled, skip_special_tokens=True)
        return written

    def _places(self, text: str, special: torch.Tensor) -> torch.Tensor:
        """Return which pieces of a row are masked: ``(L,) bool``."""
        inner = np.flatnonzero(~special.cpu().numpy())
        words = np.frombuffer(hashlib.sha256(text.encode("utf-8")).digest(), dtype="<u4")
        generator = np.random.default_rng([self._seed, *words.tolist()])
        count = min(len(inner), max(1, round(self._share * len(inner))))
        places = torch.zeros_like(special)
        places[generator.permutation(inner)[:count]] = True
        return places


class BackTranslation:
    """Translates a text and back, with one sequence-to-sequence model for each direction.

    Marian models are supported; models that need a language code (NLLB, mBART) are not.

    Args:
        there: a transformers folder or hub id, from the text's language into another.
        back: a folder or hub id for the opposite direction.
        beams: number of beams; the search is deterministic, so the same text is always rewritten in the same way.
        max_length: maximum length of a text in tokens, on both sides; the rest is discarded.
        device: a torch device.

    Raises:
        ModelNotFoundError, ModelError: a model cannot be loaded or is not a translation model.
    """

    def __init__(
        self,
        there: str | os.PathLike[str],
        back: str | os.PathLike[str],
        *,
        beams: int = 4,
        max_length: int = 128,
        device: str = "cpu",
    ) -> None:
        self._there = _Network(AutoModelForSeq2SeqLM, there, device)
        self._back = _Network(AutoModelForSeq2SeqLM, back, device)
        self._beams, self._max_length = beams, max_length
        self.name = f"{self._there.name} and {self._back.name}"
        models = self._there.fingerprint, self._back.fingerprint
        self.fingerprint = _digest("translated", beams, max_length, *models)

    def rewrite(self, texts: Sequence[str]) -> list[str]:
        """See :class:`Rewriter`."""
        written: list[str] = []
        for batch in _batches(texts):
            written += self._translate(self._back, self._translate(self._there, batch))
        return written

    @torch.inference_mode()
    def _translate(self, way: _Network, texts: Sequence[str]) -> list[str]:
        tokens = way.tokenize(texts, self._max_length)
        ids = way.model.generate(
            **tokens, num_beams=self._beams, do_sample=False, max_new_tokens=self._max_length, max_length=None
        )
        written: list[str] = way.tokenizer.batch_decode(ids, skip_special_tokens=True)
        return written


class _Network:
    """A model in evaluation mode, and its tokenizer."""

    def __init__(self, kind: Any, source: str | os.PathLike[str], device: str) -> None:
        folder = find_folder(source)
        self.name = Path(source).name
        self.fingerprint = _fingerprint(folder)
        self._device = device
        try:
            with quiet_transformers():
                self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
                model, report = kind.from_pretrained(folder, output_loading_info=True)
            self.model: Any = model.to(device).eval()
        except (OSError, ValueError, KeyError, ImportError, RuntimeError, AssertionError) as error:
            reason = str(error).strip().partition("\n")[0]
            raise ModelError(f"cannot load the model in {folder}: {reason}") from error
        missing = sorted(report["missing_keys"])
        if missing:  # transformers would initialise them randomly
            raise ModelError(
                f"{folder} is a model of another kind: it lacks {len(missing)} weights, for example {missing[0]}"
            )

    def tokenize(self, texts: Sequence[str], max_length: int, **options: bool) -> dict[str, Any]:
        """Return padded token tensors, without those that the model does not accept."""
        longest = min(max_length, self.tokenizer.model_max_length)
        tokens = self.tokenizer(
            list(texts), padding=True, truncation=True, max_length=longest, return_tensors="pt", **options
        ).to(self._device)
        tokens.pop("token_type_ids", None)
        return dict(tokens)


def _batches(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(texts), _BATCH):
        yield texts[start : start + _BATCH]


def _fingerprint(folder: Path) -> str:
    """Return a digest of the files that determine a model's output."""
    files = sorted({path for pattern in _DECISIVE_FILES for path in folder.glob(pattern)})
    parts = []
    for path in files:
        with path.open("rb") as file:
            parts.append(f"{path.name} {hashlib.file_digest(file, 'sha256').hexdigest()}")
    return _digest(*parts)


def _digest(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
