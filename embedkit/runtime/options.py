"""The options of one call of a model, validated once, and their effect on its rows."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self, TypedDict, get_args

import numpy as np
import numpy.typing as npt

from embedkit.errors import BundleError, InputError
from embedkit.protocols import FloatArray
from embedkit.runtime.arguments import check_choice, check_count, check_flag, check_progress, check_whole

Precision = Literal["float32", "int8", "uint8", "binary", "ubinary"]
_PRECISIONS = get_args(Precision)


@dataclass(frozen=True, slots=True)
class Packing:
    """The conversion of the graph's rows into the result.

    Attributes:
        dimension: dimensions kept, the first ones.
        normalize: whether rows are scaled to length 1 here.
        precision: ``"float32"``; ``"uint8"``, the nearest of 256 steps between the ends of a dimension's
            range, or ``"int8"``, the same minus 128; ``"ubinary"``, one bit for each dimension (1 where it is
            above 0), 8 in a uint8, the first in the highest bit, or ``"binary"``, the same minus 128 as int8.
            Named as in sentence-transformers, whose bytes are rounded down and not to the nearest.
        ranges: of the dimensions, for ``"int8"`` and ``"uint8"``.
    """

    dimension: int
    normalize: bool
    precision: Precision = "float32"
    ranges: Ranges | None = None

    @classmethod
    def choose(
        cls,
        dimension: int,
        *,
        truncate_dim: int | None,
        unit: bool,
        normalize: bool,
        precision: Precision,
        ranges: Ranges | None = None,
    ) -> Packing:
        """Check the caller's options for a model of ``dimension``, whose rows are unit rows if ``unit``.

        Raises:
            InputError: the model does not support an option.
        """
        kept = dimension if truncate_dim is None else check_whole(truncate_dim, "truncate_dim", most=dimension)
        check_choice(precision, _PRECISIONS, "precision")
        normalize = check_flag(normalize, "normalize_embeddings")
        if unit and not normalize:
            raise InputError("normalize_embeddings=False is not possible: this model always returns unit rows")
        if precision in {"int8", "uint8"} and ranges is None:
            raise InputError(
                f"precision={precision!r} needs the ranges of the model's dimensions, and this model has none; "
                "export it with --calibration and a file of texts"
            )
        return cls(kept, normalize and (not unit or kept < dimension), precision, ranges)

    @property
    def width(self) -> int:
        """Width of a packed row."""
        return -(-self.dimension // 8) if self.precision in {"binary", "ubinary"} else self.dimension

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of a packed row."""
        kinds = {"float32": np.float32, "int8": np.int8, "binary": np.int8}
        return np.dtype(kinds.get(self.precision, np.uint8))

    def apply(self, rows: FloatArray) -> npt.NDArray[Any]:
        """Pack ``(N, D) float32``."""
        rows = rows if rows.shape[1] == self.dimension else rows[:, : self.dimension]
        if self.precision == "float32":
            return unit_rows(rows) if self.normalize else rows
        # Ranges are of whole unit rows, so rows cut short keep their scale; signs do not depend on it.
        ranges = self.ranges if self.precision in {"int8", "uint8"} else None
        steps = ranges.quantize(rows) if ranges else np.packbits(rows > 0, axis=1)
        return steps if self.dtype == np.uint8 else (steps ^ 0x80).view(np.int8)  # the same as minus 128


def unit_rows(rows: FloatArray) -> FloatArray:
    """Scale each row to length 1; a row of zeros stays."""
    lengths: FloatArray = np.linalg.norm(rows, axis=1, keepdims=True)
    lengths[lengths == 0] = 1
    return rows / lengths


_STEPS = 255


@dataclass(frozen=True, eq=False, slots=True)
class Ranges:
    """The smallest and the largest value that each dimension took on calibration texts.

    They belong to the model and not to a call, so equal embeddings become equal bytes in every call and process.

    Attributes:
        least: ``(D,) float32``.
        most: ``(D,) float32``, nowhere below ``least``.
    """

    least: FloatArray
    most: FloatArray

    @classmethod
    def measure(cls, rows: FloatArray) -> Self:
        """The ranges of embeddings, ``(N, D) float32``.

        Raises:
            InputError: there are none.
        """
        if len(rows) == 0:
            raise InputError("expected at least one embedding to measure ranges, got none")
        return cls(rows.min(axis=0), rows.max(axis=0))

    @classmethod
    def from_text(cls, text: str, dimension: int) -> Self:
        """Read what :meth:`to_text` wrote, for a model of ``dimension`` dimensions.

        Raises:
            BundleError: it is something else.
        """
        least, most = unpack_floats(text, 2, "manifest.ranges")
        if len(least) != dimension or not (least <= most).all():
            raise BundleError(
                f"manifest.ranges should hold {dimension} smallest values, and none above its largest"
            )
        return cls(least, most)

    def to_text(self) -> str:
        """All smallest, then all largest values, as :func:`pack_floats` writes them."""
        return pack_floats(np.stack([self.least, self.most]))

    def quantize(self, rows: FloatArray) -> npt.NDArray[np.uint8]:
        """Round ``(N, d) float32`` to the nearest of 256 even steps from smallest to largest; others to an end."""
        least, most = self.least[: rows.shape[1]], self.most[: rows.shape[1]]
        step = np.where(most > least, (most - least) / _STEPS, 1)
        steps: npt.NDArray[np.uint8] = np.clip(np.rint((rows - least) / step), 0, _STEPS).astype(np.uint8)
        return steps


def pack_floats(values: FloatArray) -> str:
    """Return numbers as base64 of little-endian float32."""
    return base64.b64encode(np.asarray(values).astype("<f4").tobytes()).decode("ascii")


def unpack_floats(encoded: str, rows: int, where: str) -> FloatArray:
    """Return the ``rows`` rows that :func:`pack_floats` wrote, ``(rows, D) float32``; ``where`` is their place.

    Raises:
        BundleError: these are not that many rows, or a number is not finite.
    """
    try:
        content = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError) as error:
        raise BundleError(f"{where} is not base64: {error}") from error
    if not content or len(content) % (4 * rows):
        raise BundleError(f"{where} is {len(content)} bytes, no multiple of {rows} rows of float32")
    values = np.frombuffer(content, dtype="<f4").reshape(rows, -1).astype(np.float32)
    if not np.isfinite(values).all():
        raise BundleError(f"{where} holds values that are not finite")
    return values


OnOverflow = Literal["truncate", "error"]
OnLong = Literal["truncate", "error", "windows"]
Role = Literal["query", "document"]
Activation = Literal["sigmoid", "identity"]

_PROMPTS: dict[Role, Sequence[str]] = {"query": ("query",), "document": ("document", "passage", "corpus")}


class RunOptions(TypedDict, total=False):
    """Keyword arguments of all calls that run a model."""

    batch_size: int | None
    show_progress_bar: bool | None
    on_overflow: OnLong


class EncodeOptions(RunOptions, total=False):
    """Keyword arguments of :meth:`~embedkit.runtime.encoder.Encoder.encode`."""

    normalize_embeddings: bool
    prompt_name: str | None
    prompt: str | None
    truncate_dim: int | None
    precision: Precision


class PredictOptions(RunOptions, total=False):
    """Keyword arguments of :meth:`~embedkit.runtime.cross_encoder.CrossEncoder.predict`."""

    activation_fn: Activation | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOptions:
    """The validated options of one call.

    Attributes:
        batch_size: maximum number of items in a batch; None: only the number of tokens is limited.
        on_overflow: handling of items longer than the model's maximum.
        show_progress: as of :class:`~embedkit.progress.Progress`.
    """

    batch_size: int | None = None
    on_overflow: str = "truncate"
    show_progress: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodeCall(CallOptions):
    """The options of an encoder: the text before every text, and the conversion of the graph's rows."""

    prompt: str
    packing: Packing


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictCall(CallOptions):
    """The options of a cross-encoder: the function from logits to scores, and the word for items in messages."""

    activation: str
    unit: str = "pairs"


def check_run_options(options: Mapping[str, Any], known: type, caller: str) -> dict[str, Any]:
    """Return the fields of :class:`CallOptions` for the options that all calls have.

    Args:
        options: keyword arguments of the call.
        known: the TypedDict of its keyword arguments.
        caller: its name, for messages.

    Raises:
        TypeError: there is no such option.
        InputError: an option is invalid.
    """
    if unknown := options.keys() - known.__annotations__.keys():
        raise TypeError(f"{caller}() got an unexpected keyword argument {min(unknown)!r}")
    return {
        "batch_size": check_count(options.get("batch_size"), "batch_size"),
        "on_overflow": check_choice(options.get("on_overflow", "truncate"), get_args(OnLong), "on_overflow"),
        "show_progress": check_progress(options.get("show_progress_bar")),
    }


def with_prompt(options: EncodeOptions, role: Role, prompts: Container[str]) -> EncodeOptions:
    """Select the prompt for queries or documents, unless the caller chose one; where there is none, it is empty.

    A default prompt is often that of queries, which documents must not get.
    """
    if options.get("prompt") is not None or options.get("prompt_name") is not None:
        return options
    prompt_name = next((name for name in _PROMPTS[role] if name in prompts), None)
    return {**options, "prompt_name": prompt_name, "prompt": "" if prompt_name is None else None}
