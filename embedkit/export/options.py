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
    words: str
    name: str | None
    dev: ScoredPairs | None
    vocabulary: Sequence[str] | None
    vocabulary_size: int | None
    calibration: Sequence[str] | None
    whitening_power: float | None
    thresholds: Thresholds | None

    @property
    def is_int8(self) -> bool:
        """Whether products are of bytes."""
        return self.precision.startswith("int8")

    @property
    def is_rounded(self) -> bool:
        """Whether weights are rounded, and can therefore be compared with those that are not."""
        return self.is_int8 or (self.precision == "fp32" and self.words != "float32")

    @property
    def described(self) -> dict[str, Any]:
        """Precision and target, as the manifest has them."""
        words = "" if self.words == _WORD_TABLE[self.precision] else f" with {self.words} words"
        target = self.target if self.is_int8 else _TARGET[self.precision]
        return {"precision": self.precision + words, "target": target}

    def limits(self, model: SentenceEncoder | PairEncoder) -> Thresholds:
        """Return the thresholds of the gates; a rounded word table deviates from torch as much as int8 does."""
        if self.thresholds is not None:
            return self.thresholds
        thresholds = PAIR_THRESHOLDS if isinstance(model, PairEncoder) else THRESHOLDS
        limits = thresholds[self.precision]
        if self.words == "float32":
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


def default_precision(target: str) -> str:
    """Return the precision of a target's bundles where none is asked for."""
    return "fp16" if target == "gpu" else "int8"


def check_options(**options: Unpack[ExportOptions]) -> Settings:
    """Validate the options of :func:`~embedkit.export.pipeline.export` by themselves.

    Raises:
        TypeError: there is no such option.
        ExportError: an option is not supported, or lacks another one.
        InputError: texts are something else.
    """
    if unknown := options.keys() - ExportOptions.__annotations__.keys():
        raise TypeError(f"export has no options {', '.join(sorted(unknown))}")
    target = options.get("target", "cpu-avx2")
    precision = options.get("precision") or default_precision(target)
    if precision not in PRECISIONS:
        raise ExportError(
            f"precision must be one of {', '.join(PRECISIONS)}, not {precision!r}", parameters=["precision"]
        )
    if target == "gpu" and precision.startswith("int8"):
        raise ExportError(f"{precision} is for CPUs; the target gpu supports fp16 and fp32")
    if target != "gpu":
        largest_weight(target)
    words = options.get("word_table") or _WORD_TABLE[precision]
    choose_word_table(words)
    calibration = _check_texts(options.get("calibration"), "calibration")
    vocabulary = _check_texts(options.get("vocabulary"), "vocabulary")
    if precision == "int8-static" and calibration is None:
        raise ExportError("int8-static needs calibration texts")
    if calibration is not None and not calibration:
        raise ExportError("calibration needs at least one text")
    size = check_count(options.get("vocabulary_size"), "vocabulary_size")
    if size is not None and vocabulary is None:
        raise ExportError(
            "vocabulary_size limits a vocabulary that is pruned to texts: set vocabulary, too",
            parameters=["vocabulary_size"],
        )
    return Settings(
        precision=precision,
        target=target,
        words=words,
        name=options.get("name"),
        dev=options.get("dev"),
        vocabulary=vocabulary,
        vocabulary_size=size,
        calibration=calibration,
        whitening_power=_check_whitening(options.get("whitening_power"), calibration),
        thresholds=options.get("thresholds"),
    )


def _check_texts(texts: Sequence[str] | None, name: str) -> Sequence[str] | None:
    return None if texts is None else check_items(list(check_iterable(texts, name)), name=name)


def _check_whitening(power: float | None, calibration: Sequence[str] | None) -> float | None:
    if power is not None and calibration is None:
        raise ExportError("whitening_power needs calibration texts", parameters=["whitening_power", "calibration"])
    if power is not None and not (isinstance(power, Real) and 0 <= power <= 1):
        raise ExportError(f"whitening_power must be from 0 to 1, not {power}", parameters=["whitening_power"])
    return power
