"""ONNX Runtime sessions, and models run by them in padded batches; no other module imports onnxruntime."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from embedkit.errors import BundleIntegrityError, InputError, MissingExtraError, ModelError, ProviderError
from embedkit.extras import explain_missing_onnxruntime, installed_onnxruntime
from embedkit.protocols import FloatArray
from embedkit.runtime.arguments import check_count, check_names
from embedkit.runtime.batching import batch_by_length
from embedkit.runtime.protobuf import large_tables
from embedkit.runtime.tokenization import TokenBatch, Tokens
from embedkit.threads import available_threads

# At its import it would store an id of this device, and events to be sent to its makers, in the user's folder.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
try:
    import onnxruntime
    from onnxruntime import GraphOptimizationLevel, InferenceSession, OrtValue, SessionOptions
except ImportError as error:
    raise MissingExtraError(f"{explain_missing_onnxruntime()} ({error})") from error

CPU = "CPUExecutionProvider"
_FEEDS = ("input_ids", "attention_mask", "token_type_ids")
_TYPES = {"tensor(int64)": np.int64, "tensor(int32)": np.int32}
_FATAL = 4  # errors are exceptions; their lines on stderr would hold names from the file as they are
# Products of a small graph are too small to be split between threads, even if there is only one batch.
_SMALL_BYTES = 8_000_000
# Word tables of at least this size are shared by all lanes. Each lane has its own copy of the other weights, which
# ONNX Runtime rearranges for its products, so the size of a lane and of all lanes is limited.
_SHARED_BYTES = 1_000_000
_LANE_BYTES = 64_000_000
_ALL_LANES_BYTES = 512_000_000


class Session:
    """A loaded graph: token batches in, floats out. Safe to share between threads.

    On a CPU threads are most efficient if each runs its own batches in a *lane*: a session of one thread, whose
    memory no other thread locks or evicts from its cache. Lanes are opened on first use.

    Args:
        model: a serialised ONNX model without external data.
        outputs: names of possible outputs; the first one that the graph has is used.
        threads: number of threads to use; None uses all that are available to this process.
        providers: ONNX Runtime execution providers in order of preference; None uses the CPU.

    Attributes:
        threads: number of threads, all used by a run outside lanes unless the graph is small.
        has_lanes: whether the graph runs on a CPU, with lanes for several batches; depends on the graph
            and not on the number of threads.
        lanes: number of lanes, 1 if there are none; as many as threads, or fewer if they would need more than
            half a gigabyte.
        output: name of the output used.
        width: size of its last axis, or None where the graph leaves it open or there are no rows but scores.

    Raises:
        ProviderError: a provider is missing or did not start; no other provider is used instead.
        ModelError: ONNX Runtime refuses the graph, or its inputs and outputs are not an encoder's.
    """

    def __init__(
        self,
        model: bytes,
        *,
        outputs: Sequence[str],
        threads: int | None = None,
        providers: Sequence[str] | None = None,
    ) -> None:
        self.threads = check_count(threads, "threads") or available_threads()
        chosen = _check_providers(providers)
        tables = _find_tables(model) if chosen == [CPU] else {}
        own = len(model) - sum(table.nbytes for table in tables.values())
        # For all sessions to read in one place; they must stay here as long as the sessions.
        self._shared = {name: OrtValue.ortvalue_from_numpy(table.copy()) for name, table in tables.items()}
        self.has_lanes = chosen == [CPU] and own <= _LANE_BYTES
        self.lanes = min(self.threads, max(1, _ALL_LANES_BYTES // max(1, own))) if self.has_lanes else 1
        alone = 1 if self.has_lanes and len(model) <= _SMALL_BYTES else self.threads
        self._session = _open(model, _options(alone, self._shared), chosen)
        self._opening = threading.Lock()
        self._model = model if self.lanes > 1 else None  # until all lanes are open
        self._opened: list[InferenceSession | None] = [None] * self.lanes
        if alone == 1:
            self._opened[0] = self._session
        self.providers: list[str] = self._session.get_providers()
        self.version = str(onnxruntime.__version__)
        self._input_types = _read_input_types(self._session)
        self.output, self.width = _choose_output(self._session, outputs)

    def run(self, batch: TokenBatch, *, lane: int | None = None, output: str | None = None) -> FloatArray:
        """Run the graph on one token batch.

        ``lane`` is where to run it on one thread, below ``lanes``, if others run at the same time; ``output``
        names another output than the chosen one.

        Returns:
            The output, ``(B, D)``, ``(B, L, H)`` or, of a cross-encoder, ``(B,) float32``.

        Raises:
            ModelError: the graph failed.
        """
        feeds = {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask}
        if "token_type_ids" in self._input_types:
            types = batch.token_type_ids
            feeds["token_type_ids"] = np.zeros_like(batch.input_ids) if types is None else types
        wanted = {name: feeds[name].astype(kind, copy=False) for name, kind in self._input_types.items()}
        session = self._session if lane is None else self._opened[lane] or self._open_lane(lane)
        try:
            (result,) = session.run([output or self.output], wanted)
        except Exception as error:  # ONNX Runtime's errors have no common ancestor but Exception
            raise ModelError(f"ONNX Runtime failed on batch {batch.input_ids.shape}: {error}") from error
        return np.asarray(result, dtype=np.float32)

    def _open_lane(self, lane: int) -> InferenceSession:
        with self._opening:
            opened = self._opened[lane]
            if opened is None:
                if self._model is None:
                    raise ModelError(f"there is no lane {lane}")
                opened = self._opened[lane] = _open(self._model, _options(1, self._shared), [CPU])
                self._model = self._model if None in self._opened else None
            return opened


def available_providers() -> list[str]:
    """Execution providers that the installed ONNX Runtime was built with."""
    return list(onnxruntime.get_available_providers())


def write_optimized(model: bytes, path: Path) -> None:
    """Write ``model`` as ONNX Runtime rewrites it for this machine's CPU, so that its operators can be seen.

    Raises:
        ModelError: ONNX Runtime refuses the graph.
    """
    options = _options(threads=1)
    options.optimized_model_filepath = str(path)
    _open(model, options, [CPU])


def _check_providers(providers: Sequence[str] | None) -> list[str]:
    wanted = [CPU] if providers is None else check_names(providers, "providers")
    available = available_providers()
    missing = [name for name in wanted if name not in available]
    if not wanted:
        raise InputError("providers is an empty list; pass None for the CPU")
    if missing:
        installed = " and ".join(f"{name} {number}" for name, number in installed_onnxruntime().items())
        raise ProviderError(
            f"{missing[0]} is not among the providers of the installed {installed or 'ONNX Runtime'}: "
            f"{', '.join(available)}"
        )
    return wanted


def _find_tables(model: bytes) -> dict[str, npt.NDArray[Any]]:
    try:
        return large_tables(model, least_bytes=_SHARED_BYTES)
    except BundleIntegrityError:  # not a model, which ONNX Runtime will report
        return {}


def _options(threads: int, shared: Mapping[str, OrtValue] = MappingProxyType({})) -> SessionOptions:
    options = SessionOptions()
    for name, value in shared.items():
        options.add_initializer(name, value)
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.graph_optimization_level = GraphOptimizationLevel.ORT_ENABLE_ALL
    options.enable_mem_pattern = False  # a plan is kept for every shape, and ours are never the same
    options.log_severity_level = _FATAL
    return options


def _open(model: bytes, options: SessionOptions, providers: list[str]) -> InferenceSession:
    try:
        session = InferenceSession(model, sess_options=options, providers=providers)
    except Exception as error:  # as above
        raise ModelError(f"ONNX Runtime cannot load the graph: {error}") from error
    lost = [name for name in providers if name not in session.get_providers()]
    if lost:
        raise ProviderError(
            f"{lost[0]} did not start (its libraries or its device are missing; ONNX Runtime's log says which), "
            f"only {', '.join(session.get_providers())} did"
        )
    session.disable_fallback()
    session._model_bytes = b""  # noqa: SLF001 - kept by the package for the fallback alone
    return session


def _read_input_types(session: InferenceSession) -> dict[str, npt.DTypeLike]:
    types: dict[str, npt.DTypeLike] = {}
    for item in session.get_inputs():
        if item.name not in _FEEDS or item.type not in _TYPES:
            raise ModelError(
                f"the graph requires {item.name!r}, {item.type}; expected integers named {', '.join(_FEEDS)}"
            )
        types[item.name] = _TYPES[item.type]
    return types


def _choose_output(session: InferenceSession, names: Sequence[str]) -> tuple[str, int | None]:
    shapes = {item.name: item.shape for item in session.get_outputs()}
    for name in names:
        if name in shapes:
            width = shapes[name][-1] if shapes[name] else None
            return name, width if isinstance(width, int) else None
    raise ModelError(f"the graph returns {', '.join(shapes)}; expected {' or '.join(names)}")


# On a CPU small batches stay in its caches. In lanes there must be enough of them for every thread, even for few
# texts, and batches must not depend on the threads: an embedding of dynamic int8 depends on its batch.
_LANE_TOKENS_PER_BATCH = range(128, 257)
_BATCHES_OF_FEW = 8
_CPU_TOKENS_PER_BATCH = 1024
# Other devices need large batches for full utilisation.
_DEVICE_TOKENS_PER_BATCH = 16_384


class OnnxBackend:
    """Runs texts or pairs through a session. Safe to share between threads.

    Args:
        session: the graph.
        finish: converts the session's output to the rows of the batch, ``(B, *shape) float32``.
        pad_id: padding id of token batches.
        output: name of the session's output to read; None reads the one that the session chose.

    Attributes:
        lanes: number of threads that may call :meth:`fill` concurrently, each with its own lane.
        numerics: ONNX Runtime's version and provider; other processors may compute other bits.
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

    def reading(self, output: str | None, finish: Callable[[FloatArray, TokenBatch], FloatArray]) -> OnnxBackend:
        """Return a network of the same session that reads another output."""
        return OnnxBackend(self._session, finish=finish, pad_id=self._pad_id, output=output)

    def batches(
        self, lengths: npt.NDArray[np.int64], *, most_tokens: int | None, most_items: int | None
    ) -> list[npt.NDArray[np.intp]]:
        """Return positions of the items of each batch; ``None`` chooses a bound of tokens for device and graph."""
        if most_tokens:
            budget = most_tokens
        elif self._session.has_lanes:
            least, most = _LANE_TOKENS_PER_BATCH[0], _LANE_TOKENS_PER_BATCH[-1]
            budget = min(max(int(lengths.sum()) // _BATCHES_OF_FEW, least), most)
        else:
            budget = _CPU_TOKENS_PER_BATCH if self.provider == CPU else _DEVICE_TOKENS_PER_BATCH
        return list(batch_by_length(lengths, most_tokens=budget, most_texts=most_items))

    def fill(
        self, rows: FloatArray, items: slice | npt.NDArray[np.intp], tokens: Tokens, lane: int | None = None
    ) -> None:
        """Put the results of one batch into ``rows[items]``, ``(B, *shape) float32``.

        Raises:
            ModelError: the graph failed, gave another shape, or gave NaN or infinity.
        """
        positions = np.arange(len(rows))[items] if isinstance(items, slice) else items
        batch = tokens.batch(positions, self._pad_id)
        values = self._finish(self._session.run(batch, lane=lane, output=self._output), batch)
        expected = (len(positions), *rows.shape[1:])
        if values.shape != expected:  # where the graph leaves its shapes open
            raise ModelError(f"the graph gave {values.shape}, expected {expected}")
        if not np.isfinite(values).all():
            raise ModelError("the graph cannot be computed: a value became NaN or infinite")
        rows[items] = values
