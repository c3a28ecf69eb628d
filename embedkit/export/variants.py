"""All variants of one model, each with its gates and timed in turns: the trade-off between size, speed and score.

A variant is on the frontier if no other is at least as small, as fast and as accurate, and better in one of these.

Architectures whose models are not available are timed as graphs with random weights: the cost of a network depends
on its shape. Such a graph is deliberately no bundle that could be mistaken for a model, but a folder with a graph,
a tokenizer and two lengths.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import re
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embedkit.atomic import storage_errors
from embedkit.errors import GateError, InputError, ProviderError
from embedkit.evaluation.sts import ScoredPairs
from embedkit.export.graph import build_graph
from embedkit.export.pipeline import ExportOptions, ExportReport, export, load_source
from embedkit.export.probes import PROBE_TEXTS
from embedkit.export.quantize import Int8Arithmetic, largest_weight
from embedkit.export.writer import FloatArithmetic
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.modeling.initialisation import random
from embedkit.modeling.sizes import Size
from embedkit.runtime.bundle import read_bundle
from embedkit.runtime.cross_encoder import CrossEncoder
from embedkit.runtime.encoder import Encoder
from embedkit.runtime.location import find_model
from embedkit.runtime.session import available_providers
from embedkit.runtime.tokenization import Tokenizer

logger = logging.getLogger("embedkit")

ENOUGH = 0.995
"""Minimum share of the model's score, or rank correlation with it, for a variant to be chosen."""

_ROUNDS = 15
_ONE_TEXT_CALLS = 10
_MOST_TEXTS = 512
_FIRST = "fp32"
_CUDA = "CUDAExecutionProvider"

Run = Callable[[Sequence[str]], Any]


@dataclass(frozen=True, kw_only=True)
class Variant:
    """Size, speed and accuracy of one variant.

    Attributes:
        name: for example ``"int8, int4 words"``.
        path: the bundle; None if it failed a gate, in which case the remaining fields are None, too.
        missed: why there is no bundle, else empty.
        size_bytes: size of the bundle.
        speed: throughput in batches, including tokenization, relative to the first variant, fp32.
        texts_per_second: median over rounds.
        one_text_ms: median duration of a call with one text.
        largest_difference: maximum difference of a value from the torch model's, on random words.
        smallest_cosine: minimum cosine, likewise; None for a cross-encoder.
        score: share of the torch model's score on the given pairs, or rank correlation with it on probe texts.
        invariance: maximum change of a value when its text is batched with others.
        on_frontier: whether no other variant dominates it in size, speed and score.
    """

    name: str
    path: Path | None = None
    missed: str = ""
    size_bytes: int | None = None
    speed: float | None = None
    texts_per_second: float | None = None
    one_text_ms: float | None = None
    largest_difference: float | None = None
    smallest_cosine: float | None = None
    score: float | None = None
    invariance: float | None = None
    on_frontier: bool = False


def export_all(
    source: str,
    folder: Path,
    *,
    target: str = "cpu-avx2",
    licence: str = "",
    max_length: int | None = None,
    trust_remote_code: bool = False,
    name: str | None = None,
    dev: ScoredPairs | None = None,
    vocabulary: Sequence[str] | None = None,
    calibration: Sequence[str] | None = None,
    threads: int | None = None,
    rounds: int = _ROUNDS,
    replace: bool = False,
) -> list[Variant]:
    """Export every variant for a target into a folder, and time those that pass their gates.

    Arguments are those of :func:`~embedkit.export.pipeline.export_source`. Given ``vocabulary``, one variant keeps
    only the word pieces of these texts; given ``calibration``, variants with fixed scales are added, and these
    texts are timed.

    Raises:
        InputError: a bundle of one of them exists, and ``replace`` is False.
        ModelNotFoundError, ModelError, ConfigError: the source cannot be loaded.
        ExportError: the model cannot be exported.
        ProviderError: the target is gpu, but ONNX Runtime has no GPU provider for timing.
        StorageError: a bundle cannot be written.
    """
    options = _variants(target, vocabulary, calibration)
    paths = {title: folder / f"{re.sub('[^a-z0-9]+', '-', title)}.onnx" for title in options}
    existing = next(filter(Path.exists, paths.values()), None)
    if existing is not None and not replace:
        raise InputError(
            f"there is a file {existing} already; set replace, or choose another folder", parameters=["replace"]
        )
    providers = _choose_providers(target)
    model, card, origin = load_source(
        source, licence=licence, max_length=max_length, trust_remote_code=trust_remote_code
    )
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    reports: dict[str, ExportReport | GateError] = {}
    common: ExportOptions = {"precision": _FIRST, "target": target, "name": name, "dev": dev}
    if isinstance(model, SentenceEncoder):
        common["calibration"] = calibration  # for the ranges of embeddings, which cross-encoders lack
    for title, path in paths.items():
        path.unlink(missing_ok=True)
        wanted: ExportOptions = {**common, **options[title]}
        logger.info("variant %s", title)
        try:
            reports[title] = export(model, path, card=card, origin=origin, **wanted)
        except GateError as error:
            reports[title] = error
    written = {title: report.path for title, report in reports.items() if isinstance(report, ExportReport)}
    texts = list(calibration or PROBE_TEXTS * 4)
    runs = {title: _load(path, threads, providers) for title, path in written.items()}
    timings = _time_in_turns(runs, texts[:: max(1, len(texts) // _MOST_TEXTS)][:_MOST_TEXTS], rounds)
    return _mark([_describe(title, report, timings) for title, report in reports.items()])


def choose(variants: Sequence[Variant]) -> Variant | None:
    """Return the fastest variant with a sufficient score, the smallest of equally fast ones, or None."""
    enough = [variant for variant in variants if variant.on_frontier and (variant.score or 0.0) >= ENOUGH]
    return max(enough, key=lambda variant: (variant.speed or 0.0, -(variant.size_bytes or 0)), default=None)


def _choose_providers(target: str) -> list[str] | None:
    """Return the providers for timing, which must include the target."""
    if target == "gpu" and _CUDA not in available_providers():
        raise ProviderError(
            f"variants for the target gpu are timed on a GPU, but {_CUDA} is not among the providers of the "
            f"installed ONNX Runtime: {', '.join(available_providers())}; see docs/install.md"
        )
    return [_CUDA] if target == "gpu" else None


def _variants(
    target: str, vocabulary: Sequence[str] | None, calibration: Sequence[str] | None
) -> dict[str, ExportOptions]:
    """Return the export options of each variant by title."""
    variants: dict[str, ExportOptions] = {
        _FIRST: {"precision": "fp32"},
        "fp32, int4 words": {"precision": "fp32", "word_table": "int4"},
    }
    if target == "gpu":
        half: ExportOptions = {"precision": "fp16"}
        return variants | {"fp16": half, "fp16, int4 words": {**half, "word_table": "int4"}}
    variants |= {"int8": {"precision": "int8"}, "int8, int4 words": {"precision": "int8", "word_table": "int4"}}
    if calibration:
        static: ExportOptions = {"precision": "int8-static", "calibration": calibration}
        variants |= {"int8-static": static, "int8-static, int4 words": {**static, "word_table": "int4"}}
    if vocabulary:
        pruned: ExportOptions = {"precision": "int8", "word_table": "int4", "vocabulary": vocabulary}
        variants["int8, int4 words, pruned"] = pruned
    return variants


@dataclass
class _Timing:
    """Seconds of each round."""

    batches: list[float]
    one_text: list[float]
    texts: int


def _time_in_turns(runs: Mapping[str, Run], texts: Sequence[str], rounds: int) -> dict[str, _Timing]:
    """Encode the same texts with all variants in turns, so that disturbances affect all alike."""
    timings = {title: _Timing([], [], len(texts)) for title in runs}
    for run in runs.values():
        run(texts)
    for _ in range(rounds):
        for title, run in runs.items():
            timings[title].batches.append(_seconds(run, texts))
            timings[title].one_text += [
                _seconds(run, [texts[call % len(texts)]]) for call in range(_ONE_TEXT_CALLS)
            ]
    return timings


def _seconds(run: Run, texts: Sequence[str]) -> float:
    started = time.perf_counter()
    run(texts)
    return time.perf_counter() - started


def _load(path: Path, threads: int | None, providers: list[str] | None) -> Run:
    """Return a function that encodes texts, or scores each with the first."""
    bundle = read_bundle(path)
    if bundle.manifest.kind == "cross-encoder":
        scorer = CrossEncoder(bundle, threads=threads, providers=providers)
        return lambda texts: scorer.predict([(texts[0], text) for text in texts], show_progress_bar=False)
    encoder = Encoder(bundle, threads=threads, providers=providers)
    return lambda texts: encoder.encode(texts[0] if len(texts) == 1 else texts, show_progress_bar=False)


def _describe(title: str, report: ExportReport | GateError, timings: Mapping[str, _Timing]) -> Variant:
    if isinstance(report, GateError):
        return Variant(name=title, missed=str(report))
    gates, timing = report.manifest.gates, timings[title]
    gates = gates.get("native", gates)  # those of the native kernel, if it can run and was therefore timed
    ranking = gates.get("retention", gates.get("agreement", {}))
    seconds = statistics.median(timing.batches)
    first = next(iter(timings.values()))
    return Variant(
        name=title,
        path=report.path,
        size_bytes=report.size_bytes,
        speed=round(statistics.median(first.batches) / seconds, 2),
        texts_per_second=round(timing.texts / seconds, 1),
        one_text_ms=round(1000 * statistics.median(timing.one_text), 3),
        largest_difference=gates["parity"]["largest_difference"],
        smallest_cosine=gates["parity"].get("smallest_cosine"),
        score=ranking.get("retention", ranking.get("spearman")),
        invariance=gates["batch_invariance"]["largest_difference"],
    )


def _mark(variants: Sequence[Variant]) -> list[Variant]:
    """Mark the variants that no other dominates."""
    merits = [_merits(variant) for variant in variants]
    return [
        dataclasses.replace(
            variant,
            on_frontier=mine is not None
            and not any(
                other is not None and other != mine and all(a >= b for a, b in zip(other, mine, strict=True))
                for other in merits
            ),
        )
        for variant, mine in zip(variants, merits, strict=True)
    ]


def _merits(variant: Variant) -> tuple[float, float, float] | None:
    """Return size, speed and score, higher is better, at the resolution at which they differ meaningfully."""
    if variant.size_bytes is None or variant.speed is None or variant.score is None:
        return None
    return -variant.size_bytes, round(variant.speed, 1), round(variant.score, 3)


MAX_LENGTH = 512
"""Tokens, as in every published BERT."""


def bert_tokenizer() -> Tokenizer:
    """Return the English BERT vocabulary's 26,000 most frequent pieces, taken from the bundled encoder."""
    return Tokenizer(read_bundle(find_model("tiny")).tokenizer_json, MAX_LENGTH)


def write_untrained(size: Size, tokenizer: Tokenizer, folder: Path, *, precision: str) -> None:
    """Write an encoder of a given shape, exported like a trained one in ``"fp32"`` or ``"int8"``.

    The folder is filled with ``model.onnx``, ``tokenizer.json`` and ``config.json``.
    """
    arithmetic = FloatArithmetic() if precision == "fp32" else Int8Arithmetic(largest_weight("cpu-avx2"))
    model = random(tokenizer, size, max_length=MAX_LENGTH, seed=0)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.onnx").write_bytes(build_graph(model, arithmetic).SerializeToString())
    (folder / "tokenizer.json").write_text(tokenizer.json, encoding="utf-8")
    lengths = {"hidden_size": size.hidden, "max_position_embeddings": MAX_LENGTH}
    (folder / "config.json").write_text(json.dumps(lengths), encoding="utf-8")
