"""The optimizer with its parameter groups and schedule, and other changes to the networks that the loop trains.

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
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from embedkit.config import setting
from embedkit.modeling.cross_encoder import PairEncoder
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.modeling.initialisation import SIZES
from embedkit.modeling.vocabulary import quantize_blocks, round_blocks
from embedkit.runtime.network import restore_blocks

_MOMENTUM = 0.95
_NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)  # a quintic that brings singular values close to 1 in five steps
_NEWTON_SCHULZ_STEPS = 5
_ADAMW_RMS = 0.2  # root mean square of AdamW's update, as a multiple of the learning rate


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """Settings of the optimizer. The defaults are those of SCT's training harness."""

    algorithm: Literal["adamw", "muon"] = setting(
        "adamw", "muon: Muon for the network's matrices, AdamW for word tables and vectors"
    )
    lr: float = setting(5e-4, "peak learning rate", above=0)
    batch_size: int = setting(128, "sentences per batch, over all processes", minimum=1)
    accumulate: int = setting(1, "number of batches whose gradients are averaged into one step", minimum=1)
    epochs: int = setting(10, "number of passes over the corpus", minimum=1)
    steps: int | None = setting(None, "total number of steps; overrides epochs", minimum=1)
    warmup: float = setting(0.1, "share of all steps over which the rate rises from 0", minimum=0, maximum=1)
    schedule: Literal["linear", "cosine", "constant"] = setting(
        "linear", "decay of the learning rate after warm-up"
    )
    weight_decay: float = setting(0.01, "weight decay, except on biases and LayerNorm", minimum=0)
    beta1: float = setting(0.9, "decay of the first moment", minimum=0, below=1)
    beta2: float = setting(0.999, "decay of the second moment", minimum=0, below=1)
    epsilon: float = setting(1e-6, "term added to the root of the second moment", above=0)
    correct_bias: bool = setting(False, "use Adam's bias correction; off in SCT's training harness")
    clip: float = setting(1.0, "maximum global norm of the gradient", above=0)
    activation_limit: float | None = setting(
        None, "penalise larger inputs of matrix products, which int8 represents badly; default: none", above=0
    )
    amp: Literal["off", "bf16"] = setting("off", "autocast of the networks; losses remain float32")
    keep: float = setting(
        0.0,
        "share of the start's weights in the result: it learns less, and forgets much less",
        minimum=0,
        below=1,
    )


TRAINER_OPTIM: Mapping[str, Any] = MappingProxyType(
    {"warmup": 0.0, "weight_decay": 0.0, "epsilon": 1e-8, "correct_bias": True}
)
"""Differences of the harness of SimCSE and its descendants (transformers' Trainer) from those defaults."""


def trainer_presets(*, batch_size: int, epochs: int) -> Mapping[str, Mapping[str, Mapping[str, Any]]]:
    """Return presets of SimCSE and its descendants, those for BERT-base: their papers have no smaller one."""
    preset = {
        "student": {"pooling": "cls", "max_length": 32},
        "optim": {**TRAINER_OPTIM, "lr": 3e-5, "batch_size": batch_size, "epochs": epochs},
        "dev": {"every": 125},
    }
    return dict.fromkeys(SIZES, preset)


class AdamW(torch.optim.Optimizer):
    """AdamW with optional bias correction, which torch's AdamW always applies.

    Without correction the first steps are up to three times larger (Mosbach et al., 2021).

    Source: Loshchilov and Hutter, ICLR 2019.
    """

    def __init__(self, parameters: Any, config: OptimConfig) -> None:
        defaults = {"lr": config.lr, "weight_decay": config.weight_decay}
        super().__init__(parameters, defaults)
        self.config = config

    @torch.no_grad()
    def step(self, _closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient; closures are not supported."""
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            if parameters:
                self._update(parameters, [parameter.grad for parameter in parameters], group)

    def _update(self, parameters: list[Tensor], gradients: list[Tensor], group: dict[str, Any]) -> None:
        firsts, seconds = ([self._moment(p, name) for p in parameters] for name in ("first", "second"))
        steps = group["steps"] = group.get("steps", 0) + 1
        # An infinite number of steps turns off the correction by 1 - beta**steps.
        corrected = torch.tensor(steps if self.config.correct_bias else math.inf, device=parameters[0].device)
        torch._fused_adamw_(  # as in torch's own optimizer: one pass over memory instead of eight
            parameters,
            gradients,
            firsts,
            seconds,
            [],
            [corrected.float()] * len(parameters),
            lr=group["lr"],
            beta1=self.config.beta1,
            beta2=self.config.beta2,
            weight_decay=group["weight_decay"],
            eps=self.config.epsilon,
            amsgrad=False,
            maximize=False,
        )

    def _moment(self, parameter: Tensor, name: str) -> Tensor:
        state: dict[str, Tensor] = self.state[parameter]
        if name not in state:
            state[name] = torch.zeros_like(parameter)
        return state[name]


class Muon(AdamW):
    """Muon for groups marked ``orthogonal``, AdamW for all others.

    A matrix is updated by its orthogonalised momentum, so that no direction is learned much faster than others,
    scaled to the root mean square of AdamW's updates, so that one learning rate serves both.

    With ``amp = "bf16"``, momentum is orthogonalised in bfloat16.

    Source: Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024; scale from
    Liu et al., "Muon is scalable for LLM training", 2025.
    """

    def _update(self, parameters: list[Tensor], gradients: list[Tensor], group: dict[str, Any]) -> None:
        if not group.get("orthogonal"):
            super()._update(parameters, gradients, group)
            return
        dtype = torch.bfloat16 if self.config.amp == "bf16" else torch.float32
        if parameters[0].device.type != "cpu":
            self._update_stacked(parameters, gradients, group, dtype)
            return
        for parameter, gradient in zip(parameters, gradients, strict=True):
            momentum = self._moment(parameter, "first").lerp_(gradient, 1 - _MOMENTUM)
            direction = _orthogonal(gradient.lerp(momentum, _MOMENTUM).to(dtype))
            parameter.mul_(1 - group["lr"] * group["weight_decay"])
            parameter.add_(direction, alpha=-group["lr"] * _ADAMW_RMS * math.sqrt(max(parameter.shape)))

    def _update_stacked(
        self, parameters: list[Tensor], gradients: list[Tensor], group: dict[str, Any], dtype: torch.dtype
    ) -> None:
        """Update all matrices of a shape at once, for a GPU, which waits for Python otherwise."""
        shapes: dict[torch.Size, list[int]] = {}
        for place, parameter in enumerate(parameters):
            shapes.setdefault(parameter.shape, []).append(place)
        for shape, places in shapes.items():
            weights, slopes = ([tensors[place] for place in places] for tensors in (parameters, gradients))
            momenta = [self._moment(parameter, "first") for parameter in weights]
            torch._foreach_lerp_(momenta, slopes, 1 - _MOMENTUM)
            ahead = torch.stack(slopes).lerp(torch.stack(momenta), _MOMENTUM).to(dtype)
            directions = [*_orthogonal(ahead).float()]
            torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
            torch._foreach_add_(weights, directions, alpha=-group["lr"] * _ADAMW_RMS * math.sqrt(max(shape)))


def _orthogonal(matrices: Tensor) -> Tensor:
    """Bring all singular values of a matrix, or of each of several, close to 1 by Newton-Schulz iteration."""
    first, second, third = _NEWTON_SCHULZ
    tall = matrices.shape[-2] > matrices.shape[-1]
    turned: Tensor = matrices.mT if tall else matrices
    turned = turned / turned.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    add_product = torch.addmm if matrices.ndim == 2 else torch.baddbmm
    for _ in range(_NEWTON_SCHULZ_STEPS):
        gram = turned @ turned.mT
        polynomial = add_product(gram, gram, gram, beta=second, alpha=third)
        turned = add_product(turned, polynomial, turned, beta=first)
    return turned.mT if tall else turned


def build_optimizer(module: nn.Module, config: OptimConfig) -> AdamW:
    """Create the optimizer of the trainable parameters; vectors (biases, LayerNorm) have no weight decay."""
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    vectors = {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0}
    if config.algorithm == "adamw":
        return AdamW([{"params": [p for p in parameters if p.ndim > 1]}, vectors], config)
    tables = {part.weight for part in module.modules() if isinstance(part, nn.Embedding)}
    matrices = [p for p in parameters if p.ndim == 2 and p not in tables]
    others = [p for p in parameters if p.ndim > 2 or p in tables]
    return Muon([{"params": others}, vectors, {"params": matrices, "orthogonal": True}], config)


def schedule(config: OptimConfig, step: int, total: int) -> float:
    """Return the learning rate of a step, counted from 0: warm-up from 0, then decay to 0 at ``total``."""
    warmup = round(config.warmup * total)
    if step < warmup:
        return config.lr * step / warmup
    progress = (step - warmup) / max(1, total - warmup)
    if config.schedule == "linear":
        return config.lr * max(0.0, 1 - progress)
    if config.schedule == "cosine":
        return config.lr * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
    return config.lr


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
    """The squared excess over a limit, in magnitude, of the inputs of matrix products, summed over a text."""

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
        """Return the penalty recorded since the last call: the mean over texts, a scalar.

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
