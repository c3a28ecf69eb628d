"""Attention as plain matrix products, for tools that cannot trace fused kernels."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from transformers import PreTrainedModel

from embedkit.modeling.quiet import quiet_transformers


@contextlib.contextmanager
def plain_attention(network: PreTrainedModel) -> Iterator[None]:
    """Use attention by matrix products and a softmax within the block, with masks independent of their values.

    A network that does not support this is left unchanged.
    """
    chosen = network.config._attn_implementation  # noqa: SLF001 - there is no public attribute
    with quiet_transformers():  # suppresses a warning for networks without support
        network.set_attn_implementation("eager")
    try:
        yield
    finally:
        with quiet_transformers():
            network.set_attn_implementation(chosen)
