"""Word tables that are rounded during training as export will store them.

Four bits a value change a word table noticeably, and the network has never seen the change. Here every lookup
returns rounded rows, while gradients reach the unrounded ones, so the network learns to work with the table
that it will have.

Sources: straight-through estimator of Bengio et al., 2013; quantization-aware training of Jacob et al., CVPR
2018.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from embedkit.modeling.int4 import quantize_blocks, restore_blocks
from embedkit.training.word_gradients import word_tables

__all__ = ["round_tables", "rounded_words"]


@contextlib.contextmanager
def rounded_words(module: nn.Module) -> Iterator[None]:
    """Round the rows that the word tables of all encoders inside ``module`` look up to int4 within the block."""
    with contextlib.ExitStack() as hooks:
        for table in word_tables(module):
            hooks.callback(table.register_forward_hook(_round).remove)
        yield


@torch.no_grad()
def round_tables(module: nn.Module) -> None:
    """Round the word tables of all encoders inside ``module`` to int4; rounding them again changes nothing."""
    for table in word_tables(module):
        table.weight.copy_(_rounded(table.weight))


def _round(table: nn.Embedding, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
    """Return the rounded rows for ids ``(B, L)``: ``(B, L, H)``, with the gradient of ``output``."""
    used, places = inputs[0].unique(return_inverse=True)
    rows = table.weight.detach()[used]
    return output + (_rounded(rows) - rows)[places]


def _rounded(rows: Tensor) -> Tensor:
    return torch.from_numpy(restore_blocks(*quantize_blocks(rows.cpu().numpy()))).to(rows.device)
