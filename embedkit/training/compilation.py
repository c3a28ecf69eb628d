"""Compilation of encoders by torch.compile, in place."""

from __future__ import annotations

import torch
from torch import nn

from embedkit.errors import ConfigError
from embedkit.modeling.cross_encoder import PairEncoder
from embedkit.modeling.encoder import SentenceEncoder

__all__ = ["compile_encoders"]


def compile_encoders(module: nn.Module, device: torch.device) -> None:
    """Compile the forward pass of every encoder inside ``module``, for any batch size and length.

    Parameters, their names and saved files do not change. Compilation happens during the first passes, which
    are much slower than later ones.

    Raises:
        ConfigError: compilation is not possible here, for example because there is no C++ compiler.
    """
    _try(device)
    for part in module.modules():
        if isinstance(part, SentenceEncoder):
            part.backbone.compile(dynamic=True)
        elif isinstance(part, PairEncoder):
            part.network.compile(dynamic=True)


def _try(device: torch.device) -> None:
    """Compile a trivial function, so that a missing compiler is reported before training begins."""
    try:
        torch.compile(torch.sin)(torch.ones(2, device=device))
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        raise ConfigError(f"optim.compile cannot be used here ({reason}); leave it out") from error
