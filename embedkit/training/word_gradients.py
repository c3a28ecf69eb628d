"""Gradients of word tables, row by row.

A batch uses few rows of a table. Torch fills a gradient of the whole table for each chunk of each view and adds
them all, which a small network's step feels. Here chunks give the rows that they used, and the table's gradient
is filled once a step.
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
    """Let backward passes give the word table of every encoder inside ``module`` a sparse gradient meanwhile.

    Its rows are what a dense one would hold, but for the order in which a word's uses in several chunks are added.
    Only on a CPU: a GPU fills memory in no time. torch.compile knows dense ones only.
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
    """Make dense what is sparse, as clipping, other processes and the optimizer want it."""
    for parameter in module.parameters():
        if parameter.grad is not None and parameter.grad.is_sparse:
            parameter.grad = parameter.grad.to_dense()
