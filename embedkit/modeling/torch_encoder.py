"""Texts encoded and pairs scored with torch, for development scores, teacher vectors and exports' references."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from embedkit.errors import ConfigError
from embedkit.modeling.cross_encoder import PairEncoder
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.modeling.pretrained import evaluating, first_line
from embedkit.protocols import FloatArray
from embedkit.runtime.engine import token_batches
from embedkit.runtime.tokenization import TokenBatch, Tokens

PRECISIONS = ("fp32", "bf16")

_TOKENS_PER_BATCH = 8192


class TorchEncoder:
    """A :class:`~embedkit.protocols.TextEncoder` that wraps a :class:`SentenceEncoder` without copying it.

    The model is switched to evaluation mode during each call, so it may be in training. The precision ``"bf16"``
    runs matrix products in bfloat16: faster on CPUs with AMX, but embeddings differ in the third digit. The model
    is moved to ``device`` unless that is None.

    Raises:
        ConfigError: unknown precision, or a device that is not available.
    """

    def __init__(
        self,
        model: SentenceEncoder,
        *,
        precision: str = "fp32",
        device: str | None = None,
    ) -> None:
        if precision not in PRECISIONS:
            raise ConfigError(f"precision must be one of {', '.join(PRECISIONS)}, not {precision!r}")
        self.model = model
        self.precision = precision
        if device is not None:
            to_device(model, device)

    @property
    def name(self) -> str:
        """Name of the model."""
        return self.model.name

    @property
    def fingerprint(self) -> str:
        """Hex SHA-256 of the model in its current state, and of precision and prompt if they change it."""
        parts = [self.precision] if self.precision != "fp32" else []
        parts += [json.dumps(self._prompt)] if self._prompt else []
        fingerprint = self.model.fingerprint()
        return hashlib.sha256(" ".join([fingerprint, *parts]).encode()).hexdigest() if parts else fingerprint

    @property
    def _prompt(self) -> str:
        return self.model.prompts.get(self.model.default_prompt or "", "")

    @property
    def dimension(self) -> int:
        """D, width of an embedding."""
        return self.model.dimension

    @property
    def max_length(self) -> int:
        """Maximum length of a text in tokens; longer texts are truncated."""
        return self.model.max_length

    def encode(self, texts: Sequence[str], /) -> FloatArray:
        """Encode texts, with the model's default prompt: ``(N, D) float32, unit rows``, in input order.

        Raises:
            InputError: an item is not a ``str``.
        """
        return self.encode_ids(self.model.tokenizer.tokenize(texts, prompt=self._prompt).ids)

    def encode_ids(self, ids: Sequence[Sequence[int]], /) -> FloatArray:
        """Encode texts given as token ids, including special tokens: ``(N, D) float32, unit rows``."""
        embeddings = np.empty((len(ids), self.dimension), dtype=np.float32)
        lengths = np.array([len(row) for row in ids], dtype=np.int64)
        with evaluating(self.model):
            for rows in token_batches(lengths, most_tokens=_TOKENS_PER_BATCH):
                embeddings[rows] = self._embed([ids[row] for row in rows])
        return embeddings

    @torch.inference_mode()
    def _embed(self, ids: Sequence[Sequence[int]]) -> FloatArray:
        batch = self.model.tokenizer.pad(ids)
        device = self.model.device
        input_ids = torch.from_numpy(batch.input_ids).to(device)
        attention_mask = torch.from_numpy(batch.attention_mask).to(device)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=self.precision == "bf16"):
            raw = self.model(input_ids, attention_mask)
        unit: FloatArray = functional.normalize(raw.float(), dim=1).cpu().numpy()
        return unit


def to_device(module: nn.Module, device: str | None) -> None:
    """Move a network to a device; if None, to the GPU if available, else to the CPU.

    Raises:
        ConfigError: the device cannot be used.
    """
    try:
        module.to(torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu")))
    except (RuntimeError, AssertionError) as error:  # torch raises an AssertionError if it was built without CUDA
        raise ConfigError(f"device {device!r} cannot be used here: {first_line(error)}") from error


class TorchCrossEncoder:
    """A :class:`~embedkit.protocols.PairScorer` that wraps a :class:`PairEncoder` without copying it.

    The model is switched to evaluation mode during each call, so it may be in training.
    """

    def __init__(self, model: PairEncoder) -> None:
        self.model = model

    @property
    def name(self) -> str:
        """Name of the model."""
        return self.model.name

    @property
    def fingerprint(self) -> str:
        """Hex SHA-256 of the model in its current state."""
        return self.model.fingerprint()

    @property
    def max_length(self) -> int:
        """Maximum length of a pair in tokens; longer pairs are truncated."""
        return self.model.max_length

    def predict(self, pairs: Sequence[tuple[str, str]], /) -> FloatArray:
        """Score pairs: ``(N,) float32`` in (0, 1), the sigmoid of the logits, in input order.

        Raises:
            InputError: an item is not two ``str``.
        """
        return self.predict_tokens(self.model.tokenizer.tokenize(pairs))

    def predict_tokens(self, tokens: Tokens, /) -> FloatArray:
        """Score tokenized pairs: ``(N,) float32`` in (0, 1)."""
        return np.asarray(1 / (1 + np.exp(-self.logits(tokens).astype(np.float64))), dtype=np.float32)

    def logits(self, tokens: Tokens, /) -> FloatArray:
        """Score tokenized pairs before the sigmoid: ``(N,) float32``."""
        scores = np.empty(len(tokens.ids), dtype=np.float32)
        lengths = np.array([len(row) for row in tokens.ids], dtype=np.int64)
        with evaluating(self.model):
            for rows in token_batches(lengths, most_tokens=_TOKENS_PER_BATCH):
                scores[rows] = self._score(tokens.batch(rows, self.model.tokenizer.pad_id))
        return scores

    @torch.inference_mode()
    def _score(self, batch: TokenBatch) -> FloatArray:
        types = np.zeros_like(batch.input_ids) if batch.token_type_ids is None else batch.token_type_ids
        inputs = (batch.input_ids, batch.attention_mask, types)
        logits = self.model(*(torch.from_numpy(values).to(self.model.device) for values in inputs))
        scores: FloatArray = logits.cpu().numpy()
        return scores
