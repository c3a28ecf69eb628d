"""What the loop changes in networks while it trains them: word tables and activations.

A batch uses few rows of a word table. Torch fills a gradient of the whole table for each chunk of each view and
adds them up, which is slow compared with a small network's step. :func:`by_rows` makes chunks return the gradients
of the rows they used, and :class:`DenseGradients` fills the table's gradient once per step.

Four bits a value change a word table noticeably. Within :func:`rounded_words` every lookup returns rounded rows,
while gradients reach the unrounded ones, so the network learns to work with the table that export will store.
Sources: straight-through estimator of Bengio et al., 2013; quantization-aware training of Jacob et al., CVPR 2018.

In int8, the largest activation of a product determines the scale of all others. BERT has feed-forward units that
fire for [CLS] alone, several times as strongly as any other; with
:class:`ActivationPenalty` a network finds another way.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from embedkit.modeling.cross_encoder import PairEncoder
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.modeling.int4 import quantize_blocks, round_blocks
from embedkit.runtime.network import restore_blocks


@contextlib.contextmanager
def by_rows(module: nn.Module) -> Iterator[None]:
    """Make the word tables of all encoders inside ``module`` produce sparse gradients within the block.

    The values equal those of dense gradients up to the order of summation over chunks. This applies to the CPU
    only: a GPU fills memory fast enough.
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
    return [table for table in (*tables, *(memory.rows for memory in memories)) if isinstance(table, nn.Embedding)]


class DenseGradients:
    """Dense gradients of word tables, as required by clipping, process groups and the optimizer.

    Their memory is kept from step to step, because newly allocated memory is slow to fill.
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


@contextlib.contextmanager
def rounded_words(module: nn.Module) -> Iterator[None]:
    """Make the word tables of all encoders inside ``module`` return rows rounded to int4 within the block."""
    with contextlib.ExitStack() as changed:
        for table in word_tables(module):
            changed.callback(delattr, table, "forward")
            table.forward = functools.partial(_look_up_rounded, table)  # type: ignore[method-assign]
        yield


@torch.no_grad()
def round_tables(module: nn.Module) -> None:
    """Round the word tables of all encoders inside ``module`` to int4; rounding them again changes nothing."""
    for table in word_tables(module):
        table.weight.copy_(_rounded(table.weight))


def _look_up_rounded(table: nn.Embedding, ids: Tensor) -> Tensor:
    """Return the rounded rows of ids: ``(B, L) -> (B, L, H)``; each used row is rounded once."""
    used, places = ids.unique(return_inverse=True)
    rows = functional.embedding(used, table.weight, table.padding_idx, sparse=table.sparse)
    exact = rows.detach()
    return functional.embedding(places, rows + (_rounded(exact) - exact))


def _rounded(rows: Tensor) -> Tensor:
    if rows.device.type != "cpu":
        return round_blocks(rows)
    return torch.from_numpy(restore_blocks(*quantize_blocks(rows.numpy())))


_WEIGHT = 0.01


class ActivationPenalty:
    """The squares of what exceeds a limit, in magnitude, in the inputs of matrix products, summed over a text."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self._found: list[Tensor] = []
        self._texts = 0

    @contextlib.contextmanager
    def watch(self, module: nn.Module) -> Iterator[None]:
        """Record the products of ``module`` that are trained within the block."""
        with contextlib.ExitStack() as hooks:
            hooks.callback(module.register_forward_pre_hook(self._count, with_kwargs=True).remove)
            for product in module.modules():
                if isinstance(product, nn.Linear):
                    hooks.callback(product.register_forward_pre_hook(self._record).remove)
            yield

    def take(self) -> Tensor:
        """Return the penalty of what was recorded since the last call: the mean over texts, a scalar.

        A text counts as often as it was encoded: once for each view and each pass.
        """
        (excesses, texts), self._found, self._texts = (self._found, self._texts), [], 0
        return _WEIGHT * torch.stack(excesses).sum() / texts if excesses else torch.zeros(())

    def _count(self, _module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        if torch.is_grad_enabled():
            self._texts += len(next(iter((*inputs, *named.values()))))

    def _record(self, _product: nn.Module, inputs: tuple[Any, ...]) -> None:
        activations: Tensor = inputs[0]
        if torch.is_grad_enabled() and activations.detach().abs().amax() > self.limit:
            excess = (activations.float().abs() - self.limit).clamp(min=0)
            self._found.append(excess.square().sum())
