"""Export of a torch model to a verified bundle: write the graph, measure it, and move the file into place."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple, TypedDict, Unpack

import numpy as np
import onnx

from embedkit import __version__
from embedkit.atomic import atomic_file
from embedkit.errors import ExportError, GateError
from embedkit.evaluation.sts import ScoredPairs
from embedkit.export.activation_stats import InputStatistics, measure_inputs
from embedkit.export.bias_correction import add_to_biases, check_weights, measure_shifts
from embedkit.export.card import Card, card_of, read_card
from embedkit.export.gates import PAIR_THRESHOLDS, THRESHOLDS, Candidate, Gate, Thresholds, run_torch, verify
from embedkit.export.graph import build_graph
from embedkit.export.half import halve
from embedkit.export.probes import GOLDEN_PAIRS, GOLDEN_TEXTS, PROBE_TEXTS
from embedkit.export.prune import prune_vocabulary
from embedkit.export.quantize import (
    Int8Arithmetic,
    MixedArithmetic,
    StaticInt8Products,
    choose_word_table,
    largest_weight,
)
from embedkit.export.source_parity import Origin, check_reading
from embedkit.export.whitening import spread_embeddings
from embedkit.export.writer import FloatArithmetic, Products
from embedkit.modeling.bundles import load_bundle
from embedkit.modeling.cross_encoder import PairEncoder
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.modeling.pruning import required_pieces
from embedkit.runtime.arguments import check_count, check_iterable
from embedkit.runtime.bundle import read_bundle, write_bundle
from embedkit.runtime.cross_encoder import CrossEncoder
from embedkit.runtime.encoder import Encoder
from embedkit.runtime.find import find_bundle, find_folder
from embedkit.runtime.folders import check_similarity, read_layout
from embedkit.runtime.kernel_backend import KernelBackend
from embedkit.runtime.manifest import Golden, Manifest, describe_figures
from embedkit.runtime.numerics import digest_of
from embedkit.runtime.packing import Ranges
from embedkit.runtime.tokenization import check_items

logger = logging.getLogger("embedkit")

PRECISIONS = tuple(THRESHOLDS)

# The default word table of each precision.
_WORD_TABLE = {"fp32": "float32", "fp16": "float32", "int8": "int8", "int8-static": "int8"}

_TARGET = {"fp32": "", "fp16": "gpu"}

# Texts over which inputs of products are measured: extremes need more of them than means do.
_MOST_TEXTS = {"int8": 256, "int8-static": 2000}

# Tolerance on other processors: float32 differs in the last digits of sums, int8
# where a value is rounded to the other side.
_GOLDEN_TOLERANCE = {"fp32": 1e-4, "fp16": 5e-3, "int8": 5e-3, "int8-static": 5e-3}


@dataclasses.dataclass(frozen=True)
class ExportReport:
    """The written bundle, its manifest with the gates' figures, the SHA-256 of its content, and its size."""

    path: Path
    manifest: Manifest
    fingerprint: str
    size_bytes: int


class ExportOptions(TypedDict, total=False):
    """Keyword arguments of :func:`export` that apply to any source."""

    precision: str | None
    target: str
    word_table: str | None
    name: str | None
    dev: ScoredPairs | None
    vocabulary: Sequence[str] | None
    vocabulary_size: int | None
    calibration: Sequence[str] | None
    spread: float | None
    thresholds: Thresholds | None


def export_source(
    source: str,
    output: str | os.PathLike[str],
    *,
    licence: str = "",
    max_length: int | None = None,
    trust_remote_code: bool = False,
    **options: Unpack[ExportOptions],
) -> ExportReport:
    """Export a run folder, a model folder, a hub id or a bundle; see :func:`export` for the options.

    A bundle, by its file or the name of one of embedkit's own, is exported again from its rounded weights, for
    instance with a smaller vocabulary. A folder whose ``config.json`` names a ``...ForSequenceClassification``
    contains a cross-encoder. The maximum length of a text or pair in tokens is by default the model's.

    Raises:
        ModelNotFoundError, ModelError, ConfigError, BundleError: the source cannot be loaded.
        ExportError, GateError, StorageError: see :func:`export`.
    """
    check_options(**options)
    model, card, origin = load_source(
        source, licence=licence, max_length=max_length, trust_remote_code=trust_remote_code
    )
    return export(model, output, card=card, origin=origin, **options)


class LoadedSource(NamedTuple):
    """A model, its card, and the folder that it was loaded from, which a bundle lacks."""

    model: SentenceEncoder | PairEncoder
    card: Card
    origin: Origin | None


def load_source(
    source: str, *, licence: str = "", max_length: int | None = None, trust_remote_code: bool = False
) -> LoadedSource:
    """Load a run folder, a model folder, a hub id or a bundle.

    Raises:
        ModelNotFoundError, ModelError, ConfigError, BundleError: it cannot be loaded.
    """
    path = find_bundle(source)
    if path is not None:
        bundle = read_bundle(path)
        return LoadedSource(
            load_bundle(bundle, max_length=max_length), card_of(bundle.manifest, licence=licence), None
        )
    card, folder = read_card(source, licence=licence), find_folder(source, with_code=trust_remote_code)
    layout = read_layout(folder)
    check_similarity(source, layout)
    kind = PairEncoder if layout.kind == "cross-encoder" else SentenceEncoder
    model = kind.load(source, max_length=max_length, trust_remote_code=trust_remote_code)
    return LoadedSource(model, card, Origin(folder, max_length, trust_remote_code))


def export(
    model: SentenceEncoder | PairEncoder,
    output: str | os.PathLike[str],
    *,
    precision: str | None = None,
    target: str = "cpu-avx2",
    word_table: str | None = None,
    name: str | None = None,
    card: Card | None = None,
    dev: ScoredPairs | None = None,
    vocabulary: Sequence[str] | None = None,
    vocabulary_size: int | None = None,
    calibration: Sequence[str] | None = None,
    spread: float | None = None,
    thresholds: Thresholds | None = None,
    origin: Origin | None = None,
) -> ExportReport:
    """Write a bundle of an encoder or a cross-encoder, if it passes every gate.

    Args:
        model: an encoder or a cross-encoder.
        output: the file to write; an existing file is replaced once the new one is complete.
        precision: ``"fp32"``; ``"fp16"``, for GPUs; ``"int8"``, with scales that depend on the batch; or
            ``"int8-static"``, with fixed scales. By default int8, or fp16 for the target gpu.
        target: the processor that int8 is for; ``"cpu-avx2"`` (7-bit weights) works on every CPU. With
            ``"gpu"``, int8 is not available.
        word_table: storage of the word table, ``"float32"``, ``"int8"`` or ``"int4"``; by default as the
            precision.
        name: name of the model; by default from the card or else the model.
        card: origin of the model.
        dev: scored pairs on which the file must rank as the model does.
        vocabulary: texts; only the vocabulary pieces that they use are kept.
        vocabulary_size: maximum number of pieces to keep for them.
        calibration: representative texts. They determine the ranges of an encoder's ``int8`` and ``uint8``
            embeddings; ``"int8-static"`` requires them to measure its activations. An encoder's biases
            compensate for weights rounded to int8; this is measured on these texts, or else those of the
            vocabulary, or else English sentences that come with embedkit, and on the same texts after each of the
            model's prompts.
        spread: whiten an encoder by the calibration texts, alone and after each prompt: subtract the mean of their
            embeddings, and divide each principal component by its standard deviation to this power, from 0 to 1.
            The bundle then has a space of its own, which is not that of the model's teacher.
        thresholds: the gates' thresholds; by default those of the precision.
        origin: the folder that the model was loaded from, to compare texts with its own library.

    Raises:
        ExportError: the model cannot be exported, or ``output`` is a folder.
        ModelError: its vocabulary cannot be pruned.
        InputError: ``vocabulary_size`` is too small.
        GateError: the file failed a gate; nothing was written.
        StorageError: the file cannot be written.
    """
    card, path = card or Card(), Path(output)
    if path.is_dir():
        raise ExportError(f"{path} is a folder; name the file to write, e.g. {path / 'model.onnx'}")
    check_options(
        precision=precision,
        target=target,
        word_table=word_table,
        calibration=calibration,
        vocabulary=vocabulary,
        vocabulary_size=vocabulary_size,
        spread=spread,
    )
    calibration, vocabulary = (
        None if texts is None else check_items(list(check_iterable(texts, name)), name=name)
        for name, texts in (("calibration", calibration), ("vocabulary", vocabulary))
    )
    precision = precision or default_precision(target)
    _check_model(model, precision, vocabulary_size, calibration=calibration, spread=spread)
    words = word_table or _WORD_TABLE[precision]
    as_read = model
    if isinstance(model, SentenceEncoder):
        model, card = _change_embeddings(model, card, calibration, spread=spread)
    original, gates = model, list[Gate]()
    if vocabulary is not None:
        logger.info("pruning the vocabulary of %s to %d texts", model.name, len(vocabulary))
        model, gate = prune_vocabulary(model, vocabulary, vocabulary_size)
        gates.append(gate)
    content, unrounded = _write(model, precision, target, words, calibration or vocabulary)

    logger.info("measuring the gates")
    limits = thresholds or _allowed(model, precision, words)
    is_int8 = precision.startswith("int8")
    gates += verify(
        model, content, limits, quantized=is_int8, for_gpu=precision == "fp16", dev=dev, original=original
    )
    if unrounded is not None:
        gates.append(check_weights(unrounded, content))
    if origin is not None:
        candidate = Candidate(content, model.tokenizer) if model is as_read else None
        gates.append(
            check_reading(as_read, origin, candidate=candidate, least=limits.cosine, most=limits.difference)
        )
    _require(gates)

    manifest = Manifest(
        **dict(vars(card), name=name or card.name or model.name, base=card.base or model.name),
        **_describe(model),
        created_by=f"embedkit {__version__}",
        gates={gate.name: gate.figures for gate in gates},
        precision=precision if words == _WORD_TABLE[precision] else f"{precision} with {words} words",
        target=target if is_int8 else _TARGET[precision],
        ranges=_measure_ranges(model, content, calibration),
    )
    return _save(path, model, content, manifest, tolerance=_GOLDEN_TOLERANCE[precision])


def _save(
    path: Path, model: SentenceEncoder | PairEncoder, content: bytes, manifest: Manifest, *, tolerance: float
) -> ExportReport:
    """Write a bundle with golden values, and move it into place once they are verified."""
    golden = _make_golden(model, content, tolerance)
    with atomic_file(path) as temporary:
        fingerprint = write_bundle(temporary, content, manifest, model.tokenizer.json, golden)
        size_bytes = temporary.stat().st_size
        _require_golden(temporary)
    return ExportReport(path, manifest, fingerprint, size_bytes)


def _write(
    model: SentenceEncoder | PairEncoder,
    precision: str,
    target: str,
    words: str,
    texts: Sequence[str] | None,
) -> tuple[bytes, onnx.ModelProto | None]:
    """Return the serialized graph and, if its weights are rounded, the graph without rounding.

    An encoder's biases, in both, compensate for the rounding, as measured on the texts.
    """
    inputs = _measure_inputs(model, precision, texts)
    is_rounded = precision.startswith("int8") or (precision == "fp32" and words != "float32")
    unrounded = build_graph(model, FloatArithmetic()) if is_rounded else None
    arithmetic = MixedArithmetic(_choose_products(precision, target, inputs), choose_word_table(words))
    logger.info("writing the graph of %s, %s", model.name, precision)
    graph = build_graph(model, arithmetic)
    if unrounded is not None and isinstance(model, SentenceEncoder):
        shifts = measure_shifts(unrounded, graph, inputs)
        for written in (graph, unrounded):
            add_to_biases(written, shifts)
    if precision == "fp16":
        graph = halve(graph, model.pooling if isinstance(model, SentenceEncoder) else None)
    return graph.SerializeToString(), unrounded


def _describe(model: SentenceEncoder | PairEncoder) -> dict[str, Any]:
    """Return the fields of the manifest that depend on the kind."""
    if isinstance(model, PairEncoder):
        return {
            "kind": "cross-encoder",
            "max_length": model.max_length,
            "dimension": 1,
            "pooling": "cls",
            "normalize": False,
            "activation": model.activation,
        }
    return {
        "max_length": model.max_length,
        "dimension": model.dimension,
        "pooling": model.pooling,
        "prompts": model.prompts,
        "default_prompt": model.default_prompt or "",
    }


def _change_embeddings(
    model: SentenceEncoder,
    card: Card,
    texts: Sequence[str] | None,
    *,
    spread: float | None,
) -> tuple[SentenceEncoder, Card]:
    """Return the encoder with embeddings spread out over calibration texts, and its card."""
    if spread is None or texts is None:
        return model, card
    logger.info("spreading the embeddings of %s over %d texts", model.name, len(texts))
    teacher = {**card.teacher, "spread": spread} if card.teacher else {}
    return spread_embeddings(model, _prefixed(model, texts), spread), dataclasses.replace(card, teacher=teacher)


def _allowed(model: SentenceEncoder | PairEncoder, precision: str, words: str) -> Thresholds:
    """Return the thresholds of a precision; a rounded word table deviates from torch as much as int8 does."""
    thresholds = PAIR_THRESHOLDS if isinstance(model, PairEncoder) else THRESHOLDS
    limits = thresholds[precision]
    return limits if words == "float32" else dataclasses.replace(thresholds["int8"], invariance=limits.invariance)


def default_precision(target: str) -> str:
    """Return the precision of a target's bundles where none is asked for."""
    return "fp16" if target == "gpu" else "int8"


def check_options(**options: Unpack[ExportOptions]) -> None:
    """Reject unsupported options of :func:`export`, by themselves, before anything is read or loaded.

    Raises:
        TypeError: there is no such option.
        ExportError: an option is not supported, or lacks another one.
    """
    if unknown := options.keys() - ExportOptions.__annotations__.keys():
        raise TypeError(f"export has no options {', '.join(sorted(unknown))}")
    target = options.get("target", "cpu-avx2")
    precision = options.get("precision") or default_precision(target)
    calibration, spread = options.get("calibration"), options.get("spread")
    if precision not in PRECISIONS:
        raise ExportError(
            f"precision must be one of {', '.join(PRECISIONS)}, not {precision!r}", parameters=["precision"]
        )
    if target == "gpu" and precision.startswith("int8"):
        raise ExportError(f"{precision} is for CPUs; the target gpu supports fp16 and fp32")
    if target != "gpu":
        largest_weight(target)
    choose_word_table(options.get("word_table") or _WORD_TABLE[precision])
    if precision == "int8-static" and calibration is None:
        raise ExportError("int8-static needs calibration texts")
    if calibration is not None and not calibration:
        raise ExportError("calibration needs at least one text")
    _check_spread(spread, calibration)
    if (
        check_count(options.get("vocabulary_size"), "vocabulary_size") is not None
        and options.get("vocabulary") is None
    ):
        raise ExportError(
            "vocabulary_size limits a vocabulary that is pruned to texts: set vocabulary, too",
            parameters=["vocabulary_size"],
        )


def _check_spread(spread: float | None, calibration: Sequence[str] | None) -> None:
    if spread is not None and calibration is None:
        raise ExportError("spread needs calibration texts", parameters=["spread", "calibration"])
    if spread is not None and not (isinstance(spread, Real) and 0 <= spread <= 1):
        raise ExportError(f"spread must be from 0 to 1, not {spread}", parameters=["spread"])


def _check_model(
    model: SentenceEncoder | PairEncoder,
    precision: str,
    vocabulary_size: int | None,
    *,
    calibration: Sequence[str] | None,
    **of_embeddings: object,
) -> None:
    """Reject options that a model does not support, before any work."""
    for name, value in of_embeddings.items():
        if isinstance(model, PairEncoder) and value is not None:
            raise ExportError(f"{name} is for embeddings: a cross-encoder has none", parameters=[name])
    if isinstance(model, PairEncoder) and calibration and precision != "int8-static":
        raise ExportError("calibration of a cross-encoder requires int8-static: it has no embeddings to quantize")
    if vocabulary_size is not None:
        required_pieces(model.tokenizer, vocabulary_size)


def _measure_inputs(
    model: SentenceEncoder | PairEncoder, precision: str, texts: Sequence[str] | None
) -> dict[str, InputStatistics]:
    """Return statistics of the inputs of products that need them, over evenly spaced texts."""
    if not (precision == "int8-static" or (precision == "int8" and isinstance(model, SentenceEncoder))):
        return {}
    logger.info("measuring the inputs of products")
    texts = _prefixed(model, texts or PROBE_TEXTS)
    most = _MOST_TEXTS[precision]
    return measure_inputs(
        model, [texts[row * len(texts) // most] for row in range(most)] if len(texts) > most else texts
    )


def _choose_products(precision: str, target: str, inputs: Mapping[str, InputStatistics]) -> Products:
    if precision == "int8-static":
        return StaticInt8Products(largest_weight(target), inputs)
    return Int8Arithmetic(largest_weight(target), inputs) if precision == "int8" else FloatArithmetic()


def _require(gates: Sequence[Gate]) -> None:
    missed = [gate for gate in gates if not gate.passed]
    if missed:
        figures = "; ".join(f"{gate.name}: {describe_figures(gate.figures)}" for gate in missed)
        raise GateError(
            f"nothing was written: the exported graph failed {len(missed)} of {len(gates)} gates: {figures}",
            {gate.name: {"passed": gate.passed, **gate.figures} for gate in gates},
        )


def _make_golden(model: SentenceEncoder | PairEncoder, content: bytes, tolerance: float) -> Golden:
    """Return the graph's own values in ONNX Runtime.

    Other runtimes, processors and batches may round differently, and deviate from torch in the opposite direction
    as much as the graph does for these texts together or one at a time.
    """
    items: list[Any] = GOLDEN_PAIRS if isinstance(model, PairEncoder) else GOLDEN_TEXTS
    tokens = model.tokenizer.tokenize(items)
    candidate = Candidate(content, model.tokenizer)
    values, expected = candidate.run_batch(tokens), run_torch(model)(tokens)
    alone = np.concatenate([candidate.run_batch(model.tokenizer.tokenize([item])) for item in items])
    tolerance = max(tolerance, *(2 * float(np.abs(rows - expected).max()) for rows in (values, alone)))
    types = None if tokens.type_ids is None else list(tokens.type_ids)
    # The bits that embedkit's kernel gives are the same on every machine, if it can run the network.
    network = KernelBackend.find(content, pairs=isinstance(model, PairEncoder))
    digests = {} if network is None else {network.numerics: digest_of(network.run(tokens))}
    return Golden(items, list(tokens.ids), values, tolerance, types, digests)


def _measure_ranges(model: SentenceEncoder | PairEncoder, content: bytes, texts: Sequence[str] | None) -> str:
    """Return the ranges of an encoder's embeddings of texts, in the manifest's format; empty without texts."""
    if isinstance(model, PairEncoder) or not texts:
        return ""
    return Ranges.measure(Candidate(content, model.tokenizer).run(_prefixed(model, texts))).to_text()


def _prefixed(model: SentenceEncoder | PairEncoder, texts: Sequence[str]) -> Sequence[str]:
    """Return calibration texts as a model reads them, alone and after each of its prompts."""
    return [prefix + text for prefix in model.prefixes for text in texts]


def _require_golden(path: Path) -> None:
    """Load the finished file as a user would and verify its golden values."""
    bundle = read_bundle(path)
    verified = (Encoder(bundle) if bundle.manifest.kind == "encoder" else CrossEncoder(bundle)).verify()
    if not verified["passed"]:
        tokens = "the same tokens" if verified["same_tokens"] else "different tokens"
        raise GateError(
            f"nothing was written: on its golden texts the finished file gives {tokens}, and values "
            f"{verified['difference']:.2g} apart (at most {verified['tolerance']:.2g}"
            f"{', and the bits differ' if verified['same_bits'] is False else ''})",
            dict(verified),
        )
