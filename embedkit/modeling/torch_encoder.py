"""Texts encoded and pairs scored with torch, for development scores, teacher vectors and exports' references."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from embedkit.errors import ConfigError, first_line
from embedkit.modeling.cross_encoder import PairEncoder
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.modeling.pretrained import evaluating
from embedkit.protocols import FloatArray
from embedkit.runtime.batching import batch_by_length
from embedkit.runtime.cross_encoder import sigmoid
from embedkit.runtime.options import Role, with_prompt
from embedkit.runtime.tokenization import TokenBatch, Tokens

PRECISIONS = ("fp32", "bf16")

_TOKENS_PER_BATCH = 8192
_GPU_TOKENS_PER_BATCH = 65_536

Model = TypeVar("Model", SentenceEncoder, PairEncoder)


class _Wrapper(Generic[Model]):
    """Runs a model in batches of similar length, in evaluation mode, so it may be in training."""

    def __init__(self, model: Model, *, precision: str = "fp32", device: str | None = None) -> None:
        if precision not in PRECISIONS:
            raise ConfigError(f"precision must be one of {', '.join(PRECISIONS)}, not {precision!r}")
        self.model: Model = model
        self.precision = precision
        if device is not None:
            to_device(model, device)

    @property
    def name(self) -> str:
        """Name of the model."""
        return self.model.name

    @property
    def fingerprint(self) -> str:
        """Hex SHA-256 of the model in its current state, and of the precision if it changes it."""
        return self._with(["bf16"] if self.precision == "bf16" else [])

    def _with(self, parts: Sequence[str]) -> str:
        """Return the model's fingerprint, or one that covers ``parts`` as well."""
        fingerprint = self.model.fingerprint()
        return hashlib.sha256(" ".join([fingerprint, *parts]).encode()).hexdigest() if parts else fingerprint

    @property
    def max_length(self) -> int:
        """Maximum length of a text or pair in tokens; longer ones are truncated."""
        return self.model.max_length

    def _fill(self, rows: FloatArray, tokens: Tokens) -> FloatArray:
        """Write the model's outputs for all tokens into ``rows``."""
        device = self.model.device
        budget = _TOKENS_PER_BATCH if device.type == "cpu" else _GPU_TOKENS_PER_BATCH
        with evaluating(self.model), torch.inference_mode():
            for chosen in batch_by_length(tokens.lengths, most_tokens=budget):
                batch = tokens.batch(chosen, self.model.tokenizer.pad_id)
                inputs = (torch.from_numpy(values).to(device) for values in self._inputs(batch))
                with torch.autocast(device.type, dtype=torch.bfloat16, enabled=self.precision == "bf16"):
                    outputs = self.model(*inputs)
                rows[chosen] = self._finish(outputs).cpu().numpy()
        return rows

    def _inputs(self, batch: TokenBatch) -> tuple[npt.NDArray[np.int64], ...]:
        return batch.input_ids, batch.attention_mask

    def _finish(self, outputs: Tensor) -> Tensor:
        return outputs


class TorchEncoder(_Wrapper[SentenceEncoder]):
    """A :class:`~embedkit.protocols.TextEncoder` that wraps a :class:`SentenceEncoder` without copying it.

    The model is switched to evaluation mode during each call, so it may be in training. ``precision`` and
    ``device`` are those of :class:`TorchCrossEncoder`.

    Raises:
        ConfigError: unknown precision, or a device that is not available.
    """

    @property
    def fingerprint(self) -> str:
        """Hex SHA-256 of the model in its current state, and of precision and prompt if they change it."""
        parts = ["bf16"] if self.precision == "bf16" else []
        return self._with([*parts, json.dumps(self._prompt)] if self._prompt else parts)

    @property
    def _prompt(self) -> str:
        return self.model.prompts.get(self.model.default_prompt or "", "")

    @property
    def dimension(self) -> int:
        """D, width of an embedding."""
        return self.model.dimension

    def encode(self, texts: Sequence[str], /) -> FloatArray:
        """Encode texts, with the model's default prompt: ``(N, D) float32, unit rows``, in input order.

        Raises:
            InputError: an item is not a ``str``.
        """
        return self.encode_ids(self.model.tokenizer.tokenize(texts, prompt=self._prompt).ids)

    def encode_query(self, texts: Sequence[str], /, *, show_progress_bar: bool | None = None) -> FloatArray:  # noqa: ARG002
        """:meth:`encode` with the model's prompt for queries, if it has one, instead of the default one."""
        return self._encode_as("query", texts)

    def encode_document(self, texts: Sequence[str], /, *, show_progress_bar: bool | None = None) -> FloatArray:  # noqa: ARG002
        """:meth:`encode` with the model's prompt for documents, if it has one, instead of the default one."""
        return self._encode_as("document", texts)

    def _encode_as(self, role: Role, texts: Sequence[str]) -> FloatArray:
        name = with_prompt({}, role, self.model.prompts)["prompt_name"]
        prompt = self.model.prompts[name] if name else ""
        return self.encode_ids(self.model.tokenizer.tokenize(texts, prompt=prompt).ids)

    def encode_ids(self, ids: Sequence[list[int]], /) -> FloatArray:
        """Encode texts given as token ids, including special tokens: ``(N, D) float32, unit rows``."""
        rows = np.empty((len(ids), self.dimension), dtype=np.float32)
        return self._fill(rows, Tokens(ids, []))

    def _finish(self, outputs: Tensor) -> Tensor:
        return functional.normalize(outputs.float(), dim=1)


class TorchCrossEncoder(_Wrapper[PairEncoder]):
    """A :class:`~embedkit.protocols.PairScorer` that wraps a :class:`PairEncoder` without copying it.

    The model is switched to evaluation mode during each call, so it may be in training. The precision ``"bf16"``
    runs matrix products in bfloat16: faster on GPUs and on CPUs with AMX, but scores differ in the third digit.
    The model is moved to ``device`` unless that is None.

    Raises:
        ConfigError: unknown precision, or a device that is not available.
    """

    def predict(self, pairs: Sequence[tuple[str, str]], /) -> FloatArray:
        """Score pairs: ``(N,) float32`` in (0, 1), the sigmoid of the logits, in input order.

        Raises:
            InputError: an item is not two ``str``.
        """
        return self.predict_tokens(self.model.tokenizer.tokenize(pairs))

    def predict_tokens(self, tokens: Tokens, /) -> FloatArray:
        """Score tokenized pairs: ``(N,) float32`` in (0, 1)."""
        return sigmoid(self.logits(tokens))

    def logits(self, tokens: Tokens, /) -> FloatArray:
        """Score tokenized pairs before the sigmoid: ``(N,) float32``."""
        return self._fill(np.empty(len(tokens.ids), dtype=np.float32), tokens)

    def _inputs(self, batch: TokenBatch) -> tuple[npt.NDArray[np.int64], ...]:
        types = np.zeros_like(batch.input_ids) if batch.token_type_ids is None else batch.token_type_ids
        return batch.input_ids, batch.attention_mask, types


def to_device(module: nn.Module, device: str | None) -> None:
    """Move a network to a device; if None, to the GPU if available, else to the CPU.

    Raises:
        ConfigError: the device cannot be used.
    """
    try:
        module.to(torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu")))
    except (RuntimeError, AssertionError) as error:  # torch raises an AssertionError if it was built without CUDA
        raise ConfigError(f"device {device!r} cannot be used here: {first_line(error)}") from error
