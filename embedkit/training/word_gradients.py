"""Sparse gradients of word tables.

A batch uses few rows of a word table. Torch fills a gradient of the whole table for each chunk of each view and
adds them up, which is slow compared with a small network's step. Here chunks return the gradients of the rows they
used, and the table's gradient is filled once per step.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from torch import nn

from embedkit.modeling.cross_encoder import PairEncoder
from embedkit.modeling.encoder import SentenceEncoder

__all__ = ["by_rows", "fill_gradients"]


@contextlib.contextmanager
def by_rows(module: nn.Module) -> Iterator[None]:
    """Make the word tables of all encoders inside ``module`` produce sparse gradients within the block.

    The values equal those of dense gradients up to the order of summation over chunks. This applies to the CPU
    only: a GPU fills memory fast enough. torch.compile supports dense gradients only.
    """
    encoders = [part for part in module.modules() if isinstance(part, SentenceEncoder | PairEncoder)]
    tables = [table for encoder in encoders if encoder.device.type == "cpu" for table in _tables(encoder)]
    with contextlib.ExitStack() as changed:
        for table in tables:
            if isinstance(table, nn.Embedding):
                changed.callback(setattr, table, "sparse", table.sparse)
                table.sparse = True
        yield


def _tables(encoder: SentenceEncoder | PairEncoder) -> list[nn.Module]:
    memory = encoder.memory if isinstance(encoder, SentenceEncoder) else None
    return [encoder.body.get_input_embeddings(), *([] if memory is None else [memory.rows])]


def fill_gradients(module: nn.Module) -> None:
    """Convert sparse gradients to dense, as required by clipping, process groups and the optimizer."""
    for parameter in module.parameters():
        if parameter.grad is not None and parameter.grad.is_sparse:
            parameter.grad = parameter.grad.to_dense()
