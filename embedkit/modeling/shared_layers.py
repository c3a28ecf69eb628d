"""Layers that are applied several times in succession, with the same weights.

Sharing saves bytes, not time. Folders, checkpoints and fingerprints contain each application as a separate layer;
bundles store the weights once. Layers that are loaded again are independent of each other.

Source: immediate block-wise weight sharing of MobileLLM (Liu et al., ICML 2024).
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import PreTrainedModel


def repeat_layers(network: PreTrainedModel, times: int) -> None:
    """Apply every layer of a BERT network ``times`` times in succession, in place."""
    stack: Any = network.encoder
    stack.layer = nn.ModuleList(layer for layer in stack.layer for _ in range(times))
    network.config.num_hidden_layers = len(stack.layer)


def separate(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copy tensors that share memory with another one, which safetensors does not support."""
    seen: set[int] = set()
    separated = {}
    for name, tensor in tensors.items():
        separated[name] = tensor.clone() if tensor.data_ptr() in seen else tensor
        seen.add(tensor.data_ptr())
    return separated


@contextlib.contextmanager
def writing_tensors() -> Iterator[None]:
    """Turn safetensors' own error for a failed write, such as on a full disk, into an OSError."""
    try:
        yield
    except SafetensorError as error:
        code = re.search(r"os error (\d+)", str(error))
        number = int(code.group(1)) if code else errno.EIO
        raise OSError(number, os.strerror(number) if code else str(error)) from error
