"""Export of a torch model to a verified bundle: write the graph, measure it, and move the file into place."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Unpack

import numpy as np
import onnx

from embedkit import __version__
from embedkit.atomic import atomic_file
from embedkit.errors import ExportError, GateError
from embedkit.export.bias_correction import (
    InputStatistics,
    add_to_biases,
    check_weights,
    measure_inputs,
    measure_shifts,
)
from embedkit.export.card import Card, card_of, describe_figures, read_card
from embedkit.export.gates import Candidate, Gate, measure_gates, run_torch
from embedkit.export.graph import build_graph
from embedkit.export.options import ExportOptions, Settings, check_options
from embedkit.export.probes import GOLDEN_PAIRS, GOLDEN_TEXTS, PROBE_TEXTS
from embedkit.export.quantize import (
    Int8Arithmetic,
    MixedArithmetic,
    StaticInt8Products,
    choose_word_table,
    halve,
    largest_weight,
)
from embedkit.export.source_parity import Origin, check_reading
from embedkit.export.transforms import prune_vocabulary, whiten_embeddings
from embedkit.export.writer import FloatArithmetic, Products
from embedkit.modeling.bundles import load_bundle
from embedkit.modeling.cross_encoder import PairEncoder
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.runtime.bundle import read_bundle, write_bundle
from embedkit.runtime.cross_encoder import CrossEncoder
from embedkit.runtime.encoder import Encoder
from embedkit.runtime.find import find_bundle, find_folder
from embedkit.runtime.folder_layout import check_similarity, read_layout
from embedkit.runtime.manifest import Golden, Manifest
from embedkit.runtime.numerics import digest_of
from embedkit.runtime.options import Ranges

logger = logging.getLogger("embedkit")

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
    settings, path = check_options(**options), check_file(output)
    loaded = load_source(source, licence=licence, max_length=max_length, trust_remote_code=trust_remote_code)
    return export_loaded(loaded, path, settings)


class LoadedSource(NamedTuple):
    """A model, its card, and the folder that it was loaded from, which a bundle lacks."""

    model: SentenceEncoder | PairEncoder
    card: Card
    origin: Origin | None = None


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
        return LoadedSource(load_bundle(bundle, max_length=max_length), card_of(bundle.manifest, licence=licence))
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
    card: Card | None = None,
    origin: Origin | None = None,
    **options: Unpack[ExportOptions],
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
        whitening_power: whiten an encoder by the calibration texts, alone and after each prompt: subtract the mean
            of their embeddings, and divide each principal component by its standard deviation to this power, from
            0 to 1. The bundle then has a space of its own, which is not that of the model's teacher.
        thresholds: the gates' thresholds; by default those of the precision.
        origin: the folder that the model was loaded from, to compare texts with its own library.

    Raises:
        ExportError: the model cannot be exported, or ``output`` is a folder.
        ModelError: its vocabulary cannot be pruned.
        InputError: ``vocabulary_size`` is too small.
        GateError: the file failed a gate; nothing was written.
        StorageError: the file cannot be written.
    """
    settings, path = check_options(**options), check_file(output)
    return export_loaded(LoadedSource(model, card or Card(), origin), path, settings)


def check_file(output: str | os.PathLike[str]) -> Path:
    """Return the path of a file to write; ExportError if it is a folder."""
    path = Path(output)
    if path.is_dir():
        raise ExportError(f"{path} is a folder; name the file to write, e.g. {path / 'model.onnx'}")
    return path


def export_loaded(loaded: LoadedSource, path: Path, settings: Settings) -> ExportReport:
    """Write the bundle of a loaded model: change it, write its graph, measure the gates, and seal the file.

    Raises:
        ExportError, ModelError, InputError, GateError, StorageError: as :func:`export`.
    """
    source, card, origin = loaded
    settings.check_model(source)
    model, card = _whiten(source, card, settings)
    gates, original = list[Gate](), model
    if settings.vocabulary is not None:
        logger.info("pruning the vocabulary of %s to %d texts", model.name, len(settings.vocabulary))
        model, gate = prune_vocabulary(model, settings.vocabulary, settings.vocabulary_size)
        gates.append(gate)
    content, unrounded = _write_graph(model, settings)
    candidate, limits = Candidate(content, model.tokenizer), settings.limits(model)
    logger.info("measuring the gates")
    gates += measure_gates(
        model,
        candidate,
        limits,
        quantized=settings.is_int8,
        for_gpu=settings.precision == "fp16",
        dev=settings.dev,
        original=original,
    )
    if unrounded is not None:
        gates.append(check_weights(unrounded, content))
    if origin is not None:
        # A pruned vocabulary gives other tokens, and whitening other embeddings.
        compared = candidate if model is source else None
        gates.append(
            check_reading(source, origin, candidate=compared, least=limits.cosine, most=limits.difference)
        )
    _require(gates, settings)
    ranges = ""
    if settings.calibration and isinstance(model, SentenceEncoder):
        ranges = Ranges.measure(candidate.run(_prefixed(model, settings.calibration))).to_text()
    manifest = Manifest(
        **dict(vars(card), name=settings.name or card.name or model.name, base=card.base or model.name),
        **_describe(model),
        **settings.described,
        created_by=f"embedkit {__version__}",
        gates={gate.name: gate.figures for gate in gates},
        ranges=ranges,
    )
    golden = _make_golden(model, candidate, _GOLDEN_TOLERANCE[settings.precision])
    with atomic_file(path) as temporary:
        fingerprint = write_bundle(temporary, content, manifest, model.tokenizer.json, golden)
        size_bytes = temporary.stat().st_size
        _require_golden(temporary)
    return ExportReport(path, manifest, fingerprint, size_bytes)


def _write_graph(model: SentenceEncoder | PairEncoder, settings: Settings) -> tuple[bytes, onnx.ModelProto | None]:
    """Return the serialized graph and, if its weights are rounded, the graph without rounding.

    An encoder's biases, in both, compensate for the rounding, as measured on the texts.
    """
    inputs = _measure_inputs(model, settings.precision, settings.calibration or settings.vocabulary)
    unrounded = build_graph(model, FloatArithmetic()) if settings.is_rounded else None
    products: Products = FloatArithmetic()
    if settings.precision == "int8-static":
        products = StaticInt8Products(largest_weight(settings.target), inputs)
    elif settings.precision == "int8":
        products = Int8Arithmetic(largest_weight(settings.target), inputs)
    logger.info("writing the graph of %s, %s", model.name, settings.precision)
    graph = build_graph(model, MixedArithmetic(products, choose_word_table(settings.word_table)))
    if unrounded is not None and isinstance(model, SentenceEncoder):
        shifts = measure_shifts(unrounded, graph, inputs)
        for written in (graph, unrounded):
            add_to_biases(written, shifts)
    if settings.precision == "fp16":
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


def _whiten(
    model: SentenceEncoder | PairEncoder, card: Card, settings: Settings
) -> tuple[SentenceEncoder | PairEncoder, Card]:
    """Return an encoder with whitened embeddings, and its card."""
    power, texts = settings.whitening_power, settings.calibration
    if power is None or texts is None or isinstance(model, PairEncoder):
        return model, card
    logger.info("whitening the embeddings of %s by %d texts", model.name, len(texts))
    teacher = {**card.teacher, "whitening_power": power} if card.teacher else {}
    return whiten_embeddings(model, _prefixed(model, texts), power), dataclasses.replace(card, teacher=teacher)


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


_REMEDIES = {
    "int8": "rounding costs this model more than int8 allows: export it with precision fp32, or int8-static with "
    "calibration texts",
    "int8-static": "rounding costs this model more than int8 allows: export it with precision fp32, or with more "
    "calibration texts",
    "fp16": "rounding costs this model more than fp16 allows: export it with precision fp32",
}
_OF_ROUNDING = {"parity", "retention", "agreement", "native"}  # gates that a higher precision passes


def _require(gates: Sequence[Gate], settings: Settings) -> None:
    missed = [gate for gate in gates if not gate.passed]
    if missed:
        figures = "; ".join(f"{gate.name}: {describe_figures(gate.figures)}" for gate in missed)
        is_rounding = settings.precision in _REMEDIES and {gate.name for gate in missed} <= _OF_ROUNDING
        remedy = f"; {_REMEDIES[settings.precision]}" if is_rounding else ""
        raise GateError(
            f"nothing was written: the graph failed {len(missed)} of {len(gates)} gates: {figures}{remedy}",
            {gate.name: {"passed": gate.passed, **gate.figures} for gate in gates},
        )


def _make_golden(model: SentenceEncoder | PairEncoder, candidate: Candidate, tolerance: float) -> Golden:
    """Return the graph's own values in ONNX Runtime.

    Other runtimes, processors and batches may round differently, and deviate from torch in the opposite direction
    as much as the graph does for these texts together or one at a time.
    """
    items: list[Any] = GOLDEN_PAIRS if isinstance(model, PairEncoder) else GOLDEN_TEXTS
    tokens = model.tokenizer.tokenize(items)
    values, expected = candidate.run_batch(tokens), run_torch(model)(tokens)
    alone = np.concatenate([candidate.run_batch(model.tokenizer.tokenize([item])) for item in items])
    tolerance = max(tolerance, *(2 * float(np.abs(rows - expected).max()) for rows in (values, alone)))
    types = None if tokens.type_ids is None else list(tokens.type_ids)
    # The bits that embedkit's kernel gives are the same on every machine, if it can run the network.
    kernel = candidate.kernel
    digests = {} if kernel is None else {kernel.numerics: digest_of(kernel.run_batch(tokens))}
    return Golden(items, list(tokens.ids), values, tolerance, types, digests)


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
