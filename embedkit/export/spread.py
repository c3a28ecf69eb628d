"""Changes to the embeddings of a trained encoder by its last layer: whitening, and another space of its teachers.

Embeddings of many encoders have a large common part and a few strong directions, which raise all cosines and
hide finer differences. Whitening (Su et al. 2021, arXiv 2103.15316) subtracts the mean and divides each principal
component by its standard deviation, here by a power of it. Components are then rotated back, so that each
dimension keeps its meaning, and leading dimensions theirs for truncation.

Students of joined teachers share a space, which whitening each of them would end. They change it together
instead: to another one that joins the same teachers.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from embedkit.errors import ExportError, InputError
from embedkit.export.card import Card
from embedkit.modeling.encoder import DenseHead, SentenceEncoder, chain
from embedkit.modeling.torch_encoder import TorchEncoder
from embedkit.runtime.joined import JoinedSpace

_LEAST_SHARE = 1e-6  # of the mean variance: components with less are noise, and are not enlarged further


def spread_embeddings(model: SentenceEncoder, texts: Sequence[str], spread: float) -> SentenceEncoder:
    """Return a copy whose embeddings have the mean 0 over texts, and more alike components.

    Each principal component is divided by its standard deviation to the power of ``spread``, from 0 (only the
    mean is subtracted) to 1 (whitening). The copy shares all weights but those of its head.

    Raises:
        ExportError: there are fewer texts than dimensions.
    """
    if len(texts) < model.dimension:
        raise ExportError(
            f"spread needs at least as many calibration texts as dimensions, {model.dimension}, not {len(texts)}",
            parameters=["spread", "calibration"],
        )
    outputs = _Outputs(model).encode_ids(model.tokenizer.tokenize(texts).ids).astype(np.float64)
    mean = outputs.mean(axis=0)
    variances, axes = np.linalg.eigh(np.cov(outputs, rowvar=False, bias=True))
    scales = np.maximum(variances, _LEAST_SHARE * variances.mean()) ** (-spread / 2)
    weight = (axes * scales / scales.mean()) @ axes.T
    return _append(model, weight, -weight @ mean)


def change_space(
    model: SentenceEncoder, card: Card, old: JoinedSpace, new: JoinedSpace
) -> tuple[SentenceEncoder, Card]:
    """Return a copy of a student of joined teachers in another space of these, and its card, which records it.

    It may also be a student of such a student. The copy shares all weights but those of its head.

    Raises:
        ExportError: ``old`` is not the space that the model was taught, or ``new`` not one of the same teachers.
    """
    teacher = _replace_space(card.teacher, old, new)
    try:
        matrix = old.change_to(new)
    except InputError as error:
        raise ExportError(f"the model cannot change its space: {error}", parameters=["space"]) from error
    changed = _append(model, matrix.T, np.zeros(new.dimension))
    return changed, dataclasses.replace(card, teacher=teacher)


def _replace_space(teacher: Mapping[str, Any], old: JoinedSpace, new: JoinedSpace) -> Mapping[str, Any]:
    """Return the record of a teacher with the joined teachers, itself or its own, in another space."""
    if "joined" not in teacher and "teacher" in teacher:
        return {**teacher, "teacher": _replace_space(teacher["teacher"], old, new)}
    parts = [part["fingerprint"] for part in teacher.get("joined", {}).get("teachers", [])]
    if teacher.get("fingerprint") != old.fingerprint(parts):
        raise ExportError("the first space is not that of the model's teachers", parameters=["space"])
    return {**teacher, "fingerprint": new.fingerprint(parts)}


def _append(model: SentenceEncoder, weight: npt.NDArray[Any], bias: npt.NDArray[Any]) -> SentenceEncoder:
    """Return a copy with a linear layer after its head, which shares all weights but those of the head."""
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
