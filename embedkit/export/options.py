"""The options of an export, validated once, before anything is read or loaded."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, TypedDict, Unpack

from embedkit.errors import ExportError
from embedkit.evaluation.sts import ScoredPairs
from embedkit.export.gates import PAIR_THRESHOLDS, THRESHOLDS, Thresholds
from embedkit.export.quantize import choose_word_table, largest_weight
from embedkit.modeling.cross_encoder import PairEncoder
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.modeling.pruning import required_pieces
from embedkit.runtime.arguments import check_count, check_iterable
from embedkit.runtime.tokenization import check_items

PRECISIONS = tuple(THRESHOLDS)

# The default word table of each precision.
_WORD_TABLE = {"fp32": "float32", "fp16": "float32", "int8": "int8", "int8-static": "int8"}
_TARGET = {"fp32": "", "fp16": "gpu"}


class ExportOptions(TypedDict, total=False):
    """Keyword arguments of :func:`~embedkit.export.pipeline.export` that apply to any source."""

    precision: str | None
    target: str
    word_table: str | None
    name: str | None
    dev: ScoredPairs | None
    vocabulary: Sequence[str] | None
    vocabulary_size: int | None
    calibration: Sequence[str] | None
    whitening_power: float | None
    thresholds: Thresholds | None


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The validated options, with their defaults: see :func:`~embedkit.export.pipeline.export`."""

    precision: str
    target: str
    word_table: str
    name: str | None = None
    dev: ScoredPairs | None = None
    vocabulary: Sequence[str] | None = None
    vocabulary_size: int | None = None
    calibration: Sequence[str] | None = None
    whitening_power: float | None = None
    thresholds: Thresholds | None = None

    @property
    def is_int8(self) -> bool:
        """Whether products are of bytes."""
        return self.precision.startswith("int8")

    @property
    def is_rounded(self) -> bool:
        """Whether weights are rounded, and can therefore be compared with those that are not."""
        return self.is_int8 or (self.precision == "fp32" and self.word_table != "float32")

    @property
    def described(self) -> dict[str, Any]:
        """Precision and target, as the manifest has them."""
        words = "" if self.word_table == _WORD_TABLE[self.precision] else f" with {self.word_table} words"
        target = self.target if self.is_int8 else _TARGET[self.precision]
        return {"precision": self.precision + words, "target": target}

    def limits(self, model: SentenceEncoder | PairEncoder) -> Thresholds:
        """Return the thresholds of the gates; a rounded word table deviates from torch as much as int8 does."""
        if self.thresholds is not None:
            return self.thresholds
        thresholds = PAIR_THRESHOLDS if isinstance(model, PairEncoder) else THRESHOLDS
        limits = thresholds[self.precision]
        if self.word_table == "float32":
            return limits
        return dataclasses.replace(thresholds["int8"], invariance=limits.invariance)

    def check_model(self, model: SentenceEncoder | PairEncoder) -> None:
        """Reject options that a model does not support, before any work.

        Raises:
            ExportError: it is a cross-encoder, and an option is for embeddings.
            InputError: ``vocabulary_size`` is too small.
        """
        if isinstance(model, PairEncoder) and self.whitening_power is not None:
            raise ExportError("whitening_power is for embeddings, not scores", parameters=["whitening_power"])
        if isinstance(model, PairEncoder) and self.calibration and self.precision != "int8-static":
            raise ExportError(
                "calibration of a cross-encoder requires int8-static: it has no embeddings to quantize"
            )
        if self.vocabulary_size is not None:
            required_pieces(model.tokenizer, self.vocabulary_size)


def check_options(**options: Unpack[ExportOptions]) -> Settings:
    """Validate the options of :func:`~embedkit.export.pipeline.export` by themselves.

    Raises:
        TypeError: there is no such option.
        ExportError: an option is not supported, or lacks another one.
        InputError: texts are something else.
    """
    if unknown := options.keys() - ExportOptions.__annotations__.keys():
        raise TypeError(f"export has no options {', '.join(sorted(unknown))}")
    given: dict[str, Any] = {"target": "cpu-avx2"}
    given |= {name: value for name, value in options.items() if value is not None}
    target = given["target"]
    precision = given.setdefault("precision", "fp16" if target == "gpu" else "int8")
    if precision not in PRECISIONS:
        raise ExportError(
            f"precision must be one of {', '.join(PRECISIONS)}, not {precision!r}", parameters=["precision"]
        )
    if target == "gpu" and precision.startswith("int8"):
        raise ExportError(f"{precision} is for CPUs; the target gpu supports fp16 and fp32")
    if target != "gpu":
        largest_weight(target)
    choose_word_table(given.setdefault("word_table", _WORD_TABLE[precision]))
    for name in {"calibration", "vocabulary"} & given.keys():
        given[name] = check_items(list(check_iterable(given[name], name)), name=name)
    given["vocabulary_size"] = check_count(given.get("vocabulary_size"), "vocabulary_size")
    settings = Settings(**given)
    calibration = settings.calibration
    if precision == "int8-static" and calibration is None:
        raise ExportError("int8-static needs calibration texts")
    if calibration is not None and not calibration:
        raise ExportError("calibration needs at least one text")
    if settings.vocabulary_size is not None and settings.vocabulary is None:
        raise ExportError(
            "vocabulary_size limits a vocabulary that is pruned to texts: set vocabulary, too",
            parameters=["vocabulary_size"],
        )
    _check_whitening(settings.whitening_power, calibration)
    return settings


def _check_whitening(power: float | None, calibration: Sequence[str] | None) -> None:
    if power is not None and calibration is None:
        raise ExportError("whitening_power needs calibration texts", parameters=["whitening_power", "calibration"])
    if power is not None and not (isinstance(power, Real) and 0 <= power <= 1):
        raise ExportError(f"whitening_power must be from 0 to 1, not {power}", parameters=["whitening_power"])
