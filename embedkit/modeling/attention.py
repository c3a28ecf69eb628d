"""Attention as plain operations, for tools that can trace neither fused kernels nor vectorized masks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from transformers import PreTrainedModel, masking_utils

from embedkit.modeling.pretrained import quiet_transformers


@contextlib.contextmanager
def plain_attention(network: PreTrainedModel) -> Iterator[None]:
    """Use attention by matrix products and a softmax within the block, with masks independent of their values.

    A network that does not support this is left unchanged.
    """
    chosen = network.config._attn_implementation  # noqa: SLF001 - there is no public attribute
    with quiet_transformers():  # suppresses a warning for networks without support
        network.set_attn_implementation("eager")
    try:
        with _broadcast_masks():
            yield
    finally:
        with quiet_transformers():
            network.set_attn_implementation(chosen)


@contextlib.contextmanager
def _broadcast_masks() -> Iterator[None]:
    """Compute masks by broadcasting, also those for which transformers uses ``torch.vmap``, as Gemma's."""
    make: Any = masking_utils.sdpa_mask  # which makes the masks of plain attention, too

    def broadcast(*arguments: Any, **options: Any) -> Any:
        return make(*arguments, **options | {"use_vmap": False})

    masking_utils.sdpa_mask = broadcast
    try:
        yield
    finally:
        masking_utils.sdpa_mask = make
