"""A model in ONNX Runtime, fed with padded token batches of texts of like length."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from embedkit.errors import ModelError
from embedkit.protocols import FloatArray
from embedkit.runtime.batching import token_batches
from embedkit.runtime.session import CPU, Session
from embedkit.runtime.tokenization import TokenBatch, Tokens

# On a CPU small batches stay in its caches. In lanes there must be enough of them for every thread, even for few
# texts, and batches must not depend on the threads: an embedding of dynamic int8 depends on its batch.
_LANE_TOKENS_PER_BATCH = range(128, 257)
_BATCHES_OF_FEW = 8
_CPU_TOKENS_PER_BATCH = 1024
# Other devices need large batches for full utilisation.
_DEVICE_TOKENS_PER_BATCH = 16_384
# The bound with which golden texts have always been verified.
_SMALL_GOLDEN_TOKENS_PER_BATCH = 512


class PaddedNetwork:
    """Runs texts or pairs through a session. Safe to share between threads.

    Args:
        session: the graph.
        finish: converts the session's output to the rows of the batch, ``(B, *shape) float32``.
        pad_id: padding id of token batches.
        output: name of the session's output to read; None reads the one that the session chose.

    Attributes:
        lanes: number of threads that may call :meth:`fill` concurrently, each with its own lane.
        numerics: ONNX Runtime's version and provider; other processors may compute other bits.
        provider: the session's first execution provider.
        width: size of a row, or None if the graph does not declare it or returns scores.
    """

    def __init__(
        self,
        session: Session,
        *,
        finish: Callable[[FloatArray, TokenBatch], FloatArray],
        pad_id: int,
        output: str | None = None,
    ) -> None:
        self._output = output
        self._session, self._finish, self._pad_id = session, finish, pad_id
        self.lanes = session.lanes
        self.provider = session.providers[0]
        self.numerics = f"onnxruntime-{session.version}-{self.provider}"
        self.width = session.width

    def reading(self, output: str | None, finish: Callable[[FloatArray, TokenBatch], FloatArray]) -> PaddedNetwork:
        """Return a network of the same session that reads another output."""
        return PaddedNetwork(self._session, finish=finish, pad_id=self._pad_id, output=output)

    def batches(
        self, lengths: npt.NDArray[np.int64], *, most_tokens: int | None, most_items: int | None
    ) -> list[npt.NDArray[np.intp]]:
        """Return positions of the items of each batch; ``None`` chooses a bound of tokens for device and graph."""
        budget = most_tokens or self._choose_tokens_per_batch(int(lengths.sum()))
        return list(token_batches(lengths, most_tokens=budget, most_texts=most_items))

    def golden_batches(
        self, lengths: npt.NDArray[np.int64], *, most_tokens: int | None
    ) -> list[npt.NDArray[np.intp]]:
        """Return the batches of golden items, which stay the same when the batching of other items changes."""
        budget = most_tokens or self._choose_golden_tokens_per_batch()
        return list(token_batches(lengths, most_tokens=budget))

    def fill(
        self, rows: FloatArray, items: slice | npt.NDArray[np.intp], tokens: Tokens, lane: int | None = None
    ) -> None:
        """Put the results of one batch into ``rows[items]``, ``(B, *shape) float32``.

        Raises:
            ModelError: the graph failed, or gave another shape.
        """
        positions = np.arange(len(rows))[items] if isinstance(items, slice) else items
        batch = tokens.batch(positions, self._pad_id)
        found = self._finish(self._session.run(batch, lane=lane, output=self._output), batch)
        expected = (len(positions), *rows.shape[1:])
        if found.shape != expected:  # where the graph leaves its shapes open
            raise ModelError(f"the graph gave {found.shape}, expected {expected}")
        rows[items] = found

    def _choose_tokens_per_batch(self, tokens: int) -> int:
        """Return the bound for a chunk of that many tokens."""
        if self._session.has_lanes:
            return min(max(tokens // _BATCHES_OF_FEW, _LANE_TOKENS_PER_BATCH[0]), _LANE_TOKENS_PER_BATCH[-1])
        return _CPU_TOKENS_PER_BATCH if self._session.providers[0] == CPU else _DEVICE_TOKENS_PER_BATCH

    def _choose_golden_tokens_per_batch(self) -> int:
        if self._session.providers[0] != CPU:
            return _DEVICE_TOKENS_PER_BATCH
        return _SMALL_GOLDEN_TOKENS_PER_BATCH if self._session.is_small else _CPU_TOKENS_PER_BATCH
