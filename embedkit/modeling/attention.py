"""Attention as plain products, for what cannot look into fused kernels."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from transformers import PreTrainedModel

from embedkit.modeling.quiet import quiet_transformers

__all__ = ["plain_attention"]


@contextlib.contextmanager
def plain_attention(network: PreTrainedModel) -> Iterator[None]:
    """Inside, attention is made of products and a softmax, and its masks do not depend on what stands in them.

    A network of a kind that cannot change it stays as it is.
    """
    chosen = network.config._attn_implementation  # noqa: SLF001 - there is no public name to read it by
    with quiet_transformers():  # which would warn of the kinds that cannot
        network.set_attn_implementation("eager")
    try:
        yield
    finally:
        with quiet_transformers():
            network.set_attn_implementation(chosen)
