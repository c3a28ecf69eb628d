"""Sparse gradients of word tables.

A batch uses few rows of a word table. Torch fills a gradient of the whole table for each chunk of each view and
adds them up, which is slow compared with a small network's step. Here chunks return the gradients of the rows they
used, and the table's gradient is filled once per step.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from embedkit.modeling.cross_encoder import PairEncoder
from embedkit.modeling.encoder import SentenceEncoder

__all__ = ["DenseGradients", "by_rows", "word_tables"]


@contextlib.contextmanager
def by_rows(module: nn.Module) -> Iterator[None]:
    """Make the word tables of all encoders inside ``module`` produce sparse gradients within the block.

    The values equal those of dense gradients up to the order of summation over chunks. This applies to the CPU
    only: a GPU fills memory fast enough. torch.compile supports dense gradients only.
    """
    with contextlib.ExitStack() as changed:
        for table in word_tables(module):
            if table.weight.device.type == "cpu":
                changed.callback(setattr, table, "sparse", table.sparse)
                table.sparse = True
        yield


def word_tables(module: nn.Module) -> list[nn.Embedding]:
    """Return the word tables and memories of all encoders inside ``module``."""
    encoders = [part for part in module.modules() if isinstance(part, SentenceEncoder | PairEncoder)]
    tables: list[nn.Module] = [encoder.body.get_input_embeddings() for encoder in encoders]
    memories = [part.memory for part in encoders if isinstance(part, SentenceEncoder) and part.memory is not None]
    return [table for table in (*tables, *(each.rows for each in memories)) if isinstance(table, nn.Embedding)]


class DenseGradients:
    """Dense gradients of word tables, as required by clipping, process groups and the optimizer.

    Their memory is kept from step to step, because newly allocated memory is slow to fill.

    Args:
        module: the module whose tables may have sparse gradients.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._memory: dict[nn.Parameter, Tensor] = {}

    def fill(self) -> None:
        """Convert sparse gradients to dense; the next call overwrites them."""
        for parameter in self._module.parameters():
            if parameter.grad is not None and parameter.grad.is_sparse:
                if parameter not in self._memory:
                    self._memory[parameter] = torch.empty_like(parameter)
                parameter.grad = self._memory[parameter].zero_().add_(parameter.grad)
