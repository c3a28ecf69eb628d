"""Whitening of the embeddings of a trained encoder by its last layer.

Embeddings of many encoders have a large common part and a few strong directions, which raise all cosines and
hide finer differences. Whitening (Su et al. 2021, arXiv 2103.15316) subtracts the mean and divides each principal
component by its standard deviation, here by a power of it. Components are then rotated back, so that each
dimension keeps its meaning, and leading dimensions theirs for truncation.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from embedkit.errors import ExportError
from embedkit.modeling.encoder import DenseHead, SentenceEncoder, chain
from embedkit.modeling.torch_encoder import TorchEncoder

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
