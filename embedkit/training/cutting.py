"""One pass of the networks, and losses of what its embeddings are when they are cut to their first dimensions.

A method asks for its embeddings by :func:`~embedkit.training.method.pooled` and
:func:`~embedkit.training.method.unit_embeddings`, and these ask here. So a method may be told its embeddings at
several widths, one after the other, without knowing it and without a second pass: :class:`Replay` keeps what the
networks made in the first.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["Replay", "cut", "encoded"]


class Replay:
    """What networks made of the views of a batch, in the order in which it was asked for."""

    def __init__(self) -> None:
        self._rows: list[Tensor] = []
        self._next = 0
        self.width: int | None = None

    @contextlib.contextmanager
    def at(self, width: int | None) -> Iterator[None]:
        """Within: embeddings have this width (None: all of it); the first time networks run, then they do not."""
        self._next, self.width = 0, width
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    def rows(self, encode: Callable[[], Tensor]) -> Tensor:
        """The next rows: from the first pass, else made now."""
        if self._next == len(self._rows):
            self._rows.append(encode())
        self._next += 1
        return self._rows[self._next - 1]


_current: ContextVar[Replay | None] = ContextVar("replay", default=None)


def encoded(encode: Callable[[], Tensor]) -> Tensor:
    """What ``encode`` gives; within :meth:`Replay.at`, what it gave when it was called at this place first."""
    replay = _current.get()
    return encode() if replay is None else replay.rows(encode)


def cut(embeddings: Tensor) -> Tensor:
    """Embeddings ``(B, D)`` with zeros behind the wanted width, so that all that follows takes them as ever.

    Cosines of two such embeddings are those of their first dimensions. What is computed without gradient is a
    reference, to which embeddings of any width are compared, and stays whole.
    """
    replay = _current.get()
    if replay is None or replay.width is None or not torch.is_grad_enabled():
        return embeddings
    return functional.pad(embeddings[:, : replay.width], (0, embeddings.shape[1] - replay.width))
