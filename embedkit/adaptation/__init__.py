"""Adapting a model to a user's data: train it further, export it in the same form, and prove what it gained."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embedkit.adaptation.data import Data, Files, read, spans
from embedkit.adaptation.proof import Comparison, Proof, prove
from embedkit.adaptation.rerankers import MINER, labelled_pairs, prove_reranker
from embedkit.adaptation.rerankers import RECIPE as _PAIRS
from embedkit.atomic import atomic_file
from embedkit.config import merge
from embedkit.errors import ConfigError, GateError, InputError, shown
from embedkit.evaluation.sts import ScoredPairs, load_scored_pairs
from embedkit.export.gates import PAIR_THRESHOLDS, THRESHOLDS
from embedkit.export.pipeline import ExportReport, export_source
from embedkit.export.probes import PROBE_TEXTS
from embedkit.runtime.arguments import check_flag, check_path, check_text
from embedkit.runtime.bundle import read_bundle, write_bundle
from embedkit.runtime.cross_encoder import CrossEncoder
from embedkit.runtime.encoder import Encoder
from embedkit.runtime.find import find_model, is_local
from embedkit.runtime.manifest import Manifest
from embedkit.training.config import RunConfig, override
from embedkit.training.loop import RunControl
from embedkit.training.recipes.contrastive import as_retrieval
from embedkit.training.run import resolve, run

logger = logging.getLogger("embedkit")

__all__ = ["Adaptation", "Comparison", "Files", "Plan", "Proof", "adapt", "plan"]

_LABELS: Mapping[str, Any] = {
    "method": "contrastive",
    "student": {"dropout": 0.0, "word_table": "int4"},
    "optim": {"lr": 5e-4, "activation_limit": 3.0},
}
"""Settings of the training on labels."""

_DOCUMENTS: Mapping[str, Any] = {
    "method": "sct-distillation",
    "student": {"dropout": 0.0, "word_table": "int4"},
    "optim": {
        "algorithm": "muon",
        "lr": 3e-4,
        "steps": 1500,
        "warmup": 0.1,
        "schedule": "cosine",
        "correct_bias": True,
    },
    "settings": {
        "views": 1,
        "regression": 3.0,
        "queues": "one",
        "queue_size": 4096,
        "temperature": 0.05,
        "reference_temperature": 0.05,
    },
}
"""Settings of the training on documents alone: those of the bundled encoders, for a short run."""

_DATA = ".data"  # in the run folder
_ANY_TARGET = "cpu-avx2"  # a float32 bundle records none
_WORDS = " with "
_CALIBRATION = 256  # passages
# Limits of differences from torch, wider than after a long run: the proof measures the exported file itself.
_COSINE = 0.9
_AGREEMENT = 0.95
_ERROR = (0.5, 0.5)
_BATCH = 32
_DOCUMENTS_BATCH = 128
_RERANKER_QUERIES = 4  # in a batch
_EPOCHS = 5
_STEPS = 30, 1000  # the fewest and the most on labels
_TEXTS_A_SECOND = 60  # of training, on one thread, for an encoder of two layers of 192 and texts of 64 tokens


@dataclass(frozen=True)
class Plan:
    """What an adaptation found, and what it will do.

    Attributes:
        config: of the run.
        lines: a sentence for each source, each decision, and the estimated time.
    """

    config: RunConfig
    data: Data
    lines: list[str]


@dataclass(frozen=True)
class Adaptation:
    """The result of an adaptation; ``report`` is of the new bundle, ``seconds`` of training."""

    report: ExportReport
    proof: Proof
    steps: int
    seconds: float


def plan(
    model: str | os.PathLike[str],
    files: Files,
    folder: str | os.PathLike[str],
    *,
    teacher: str | None = None,
    queries_only: bool = False,
    settings: Mapping[str, Any] | None = None,
) -> Plan:
    """Read the data, write what is trained on into ``folder``, and decide what to do with it.

    Args:
        model: path or name of an encoder's bundle.
        files: the data.
        folder: the run folder.
        teacher: path, name or hub id of an encoder whose space the model has, for documents without labels; by
            default ``small`` if it is on this machine and of the model's space.
        queries_only: train the encoder of queries against the model's vectors of documents.
        settings: overrides settings of the run, in the form of a recipe.

    Raises:
        ModelNotFoundError, BundleError: the model cannot be found or read.
        DataError: a file is missing or malformed.
        ConfigError: there is nothing to learn from the data, or a setting is invalid.
    """
    _check(files, settings, None)
    check_flag(queries_only, "queries_only")
    if teacher is not None:
        check_text(teacher, "teacher")
    path = find_model(model)
    manifest = read_bundle(path).manifest
    is_reranker = manifest.kind == "cross-encoder"
    encoder = Encoder.load(MINER if is_reranker else path)
    data = read(files, encoder)
    if data.held_out is None and data.held_out_graded is None:
        raise ConfigError(
            "there is nothing to measure the new model on: give labelled queries, or documents with at least 20 "
            "titles or headings"
        )
    folder = Path(check_path(folder, "folder"))
    texts = _write(data, folder / _DATA)
    own: dict[str, Any] = {"student": {"source": str(path)}}
    corpus: dict[str, Any] = {"path": str(folder / _DATA / "documents.jsonl"), "name": "documents"}
    if is_reranker:
        mapping = _on_pairs(data, folder / _DATA, encoder, manifest.max_length)
        corpus = {"path": str(folder / _DATA / "judged.jsonl"), "view_columns": ["query", "passage"]}
    elif data.labelled is not None or data.graded is not None:
        mapping = _on_labels(data, folder / _DATA, queries_only=queries_only)
    else:
        if queries_only:
            raise ConfigError("training queries only needs labelled queries: name them with pairs")
        mapping = _on_documents(texts, teacher or _family_teacher(str(path), manifest))
    if not is_reranker:
        own["student"]["max_length"] = manifest.max_length
    config = resolve(override(merge(mapping, {**own, "corpus": [corpus]}), settings or {}))
    return Plan(config, data, [*data.found, _summary(config, data, texts)])


def adapt(
    model: str | os.PathLike[str],
    files: Files,
    output: str | os.PathLike[str],
    *,
    folder: str | os.PathLike[str],
    teacher: str | None = None,
    queries_only: bool = False,
    check: str | os.PathLike[str] | None = None,
    force: bool = False,
    settings: Mapping[str, Any] | None = None,
    control: RunControl | None = None,
) -> Adaptation | None:
    """Adapt an encoder to data, and write it in the form of its bundle if it is better on what was held out.

    Args:
        model: see :func:`plan`, as for files, teacher, queries_only and settings.
        files: the data.
        output: the bundle to write; an existing file is replaced once the new one is complete.
        folder: the run folder.
        teacher: for documents without labels.
        queries_only: keep documents as they are.
        check: scored pairs that nothing is trained on, such as STS-B's development set, to measure what is lost.
        force: write the bundle even if it is no better.
        settings: of the run.
        control: resume, stop, progress.

    Returns:
        None if the run was stopped; ``control.resume`` continues it.

    Raises:
        GateError: the new bundle failed a gate, or is no better; nothing was written.
        EmbedkitError: a step of the run or of the export failed, or see :func:`plan`.
    """
    _check(files, settings, control)
    check_flag(force, "force")
    control, folder, output = (
        control or RunControl(),
        Path(check_path(folder, "folder")),
        check_path(output, "output"),
    )
    general = None if check is None else load_scored_pairs(check_path(check, "check"), split="validation")
    made = plan(model, files, folder, teacher=teacher, queries_only=queries_only, settings=settings)
    for line in made.lines:
        logger.info("%s", line)
    state = run(made.config, folder, control)
    if not state.finished:
        return None
    source = str(made.config.student.source)
    with tempfile.TemporaryDirectory() as temporary:
        candidate = Path(temporary) / Path(output).name
        _export(folder, candidate, read_bundle(source).manifest, made.data)
        proof = _prove(source, candidate, made.data, general, queries_only=queries_only)
        if not (proof.is_better or force):
            raise GateError(
                f"nothing was written: {'; '.join(describe(proof))}; give more data, or write it with force",
                {"adaptation": {"passed": False, **proof.to_json()}},
            )
        report = _with_proof(candidate, Path(output), proof)
    return Adaptation(report, proof, state.step, state.seconds)


def _check(files: Files, settings: Mapping[str, Any] | None, control: RunControl | None) -> None:
    """Check the types of arguments, before any work."""
    if not isinstance(files, Files):
        raise InputError(f"files must be Files, not {shown(files)}")
    if settings is not None and not isinstance(settings, Mapping):
        raise InputError(f"settings must be a mapping, not {shown(settings)}")
    if control is not None and not isinstance(control, RunControl):
        raise InputError(f"control must be a RunControl, not {shown(control)}")


def _write(data: Data, folder: Path) -> list[str]:
    """Write what is trained on; return the texts of the corpus: passages, spans of them, titles and queries."""
    folder.mkdir(parents=True, exist_ok=True)
    labelled = data.labelled
    texts = [*data.documents]
    if labelled is None and data.graded is None:
        texts += spans(data.documents, seed=0)
        texts += [] if data.titles is None else data.titles.queries
    elif labelled is not None:
        texts += labelled.passages
    elif data.graded is not None:
        texts += data.graded.first
    texts = list(dict.fromkeys([*texts, *data.queries]))
    _save(folder / "documents.jsonl", [{"text": text} for text in texts])
    if labelled is not None:
        _save(folder / "pairs.jsonl", [_row(*judgement) for judgement in labelled.judgements()])
    if data.graded is not None:
        columns = data.graded.first, data.graded.second, data.graded.scores.tolist()
        names = "sentence1", "sentence2", "score"
        _save(folder / "graded.jsonl", [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)])
    return texts


def _row(query: str, passage: str, weight: float) -> dict[str, Any]:
    return {"query": query, "passage": passage, "label": weight}


def _save(path: Path, rows: list[dict[str, Any]]) -> None:
    with atomic_file(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def _on_labels(data: Data, folder: Path, *, queries_only: bool) -> dict[str, Any]:
    """Return the settings of training on labels."""
    counts = {"pairs": data.labelled, "graded": data.graded}
    given = {name: len(rows) for name, rows in counts.items() if rows is not None}
    steps = round(min(_STEPS[1], max(_STEPS[0], _EPOCHS * max(given.values()) / _BATCH))) * len(given)
    files = {name: [str(folder / f"{name}.jsonl")] for name in given}
    own = {
        "optim": {"steps": steps, "batch_size": min(_BATCH, *given.values())},
        "settings": {**files, "freeze_documents": queries_only},
    }
    return merge(_LABELS, own)


def _on_pairs(data: Data, folder: Path, encoder: Encoder, length: int) -> dict[str, Any]:
    """Return the settings of a re-ranker's training, and write its pairs."""
    if data.labelled is None:
        raise ConfigError("a re-ranker learns from labelled queries: name them with pairs", parameters=["pairs"])
    _save(folder / "judged.jsonl", list(labelled_pairs(data.labelled, encoder)))
    steps = round(min(_STEPS[1], max(_STEPS[0], _EPOCHS * len(data.labelled) / _RERANKER_QUERIES)))
    return merge(_PAIRS, {"optim": {"steps": steps}, "settings": {"length": length}})


def _on_documents(texts: list[str], teacher: str | None) -> dict[str, Any]:
    """Return the settings of training on documents alone."""
    if teacher is None:
        raise ConfigError(
            "documents without labels need a teacher, an encoder in whose space the model is, such as small for "
            "tiny: name it, or give labelled queries",
            parameters=["teacher"],
        )
    name = Path(teacher).name.removesuffix(".onnx")
    batch = min(_DOCUMENTS_BATCH, max(1, len(texts) * 9 // 10))
    return merge(_DOCUMENTS, {"teacher": {"source": teacher, "name": name}, "optim": {"batch_size": batch}})


def _summary(config: RunConfig, data: Data, texts: list[str]) -> str:
    """Return what will be trained on, and for about how long."""
    steps, batch = config.optim.steps or 0, config.optim.batch_size
    if config.method != _DOCUMENTS["method"]:
        kinds = [f"{len(data.labelled):,} labelled queries"] if data.labelled is not None else []
        kinds += [f"{len(data.graded):,} graded pairs"] if data.graded is not None else []
        what, each = " and ".join(kinds), 3 * batch
    else:
        teacher = config.every_teacher[0].name
        what, each = f"{len(texts):,} passages, spans and titles towards {teacher}", batch
    minutes = max(1, round(steps * each / _TEXTS_A_SECOND / 60))
    return f"train on {what}: {steps:,} steps of {batch}, about {minutes} minute{'' if minutes == 1 else 's'}"


def _family_teacher(path: str, manifest: Manifest) -> str | None:
    """Return the path of ``small`` if it is on this machine and has the model's space."""
    space = manifest.teacher.get("fingerprint")
    if space is None or not is_local("small"):
        return None
    small = find_model("small")
    is_larger = str(small) != path and read_bundle(small).manifest.teacher.get("fingerprint") == space
    return str(small) if is_larger else None


def _export(folder: Path, output: Path, old: Manifest, data: Data) -> None:
    """Export the result of a run in the form of the old bundle."""
    precision, _, words = old.precision.partition(_WORDS)
    passages = data.documents or (data.labelled.passages if data.labelled is not None else [])
    is_encoder = old.kind == "encoder"
    limits = (THRESHOLDS if is_encoder else PAIR_THRESHOLDS)[precision]
    lower: dict[str, Any] = {"agreement": min(limits.agreement, _AGREEMENT)}
    lower |= {"cosine": min(limits.cosine or 0, _COSINE)} if is_encoder else {"error": limits.error and _ERROR}
    export_source(
        str(folder),
        output,
        precision=precision,
        word_table=words.removesuffix(" words") or None,
        target=old.target or _ANY_TARGET,
        licence=old.licence,
        calibration=[*PROBE_TEXTS, *passages[:_CALIBRATION]] if is_encoder else None,
        thresholds=dataclasses.replace(limits, **lower),
    )


def _prove(source: str, path: Path, data: Data, check: ScoredPairs | None, *, queries_only: bool) -> Proof:
    if read_bundle(path).manifest.kind == "cross-encoder":
        assert data.held_out is not None
        scorers = CrossEncoder.load(source), CrossEncoder.load(path)
        return prove_reranker(*scorers, Encoder.load(MINER), data.held_out)
    held_out = None if data.held_out is None else as_retrieval(data.held_out, "held out")
    return prove(
        Encoder.load(source),
        Encoder.load(path),
        held_out=held_out,
        graded=data.held_out_graded,
        check=check,
        queries_only=queries_only,
    )


def _with_proof(candidate: Path, output: Path, proof: Proof) -> ExportReport:
    """Write the bundle with the proof in its card."""
    bundle = read_bundle(candidate)
    manifest = dataclasses.replace(
        bundle.manifest, metrics={**bundle.manifest.metrics, "adaptation": proof.to_json()}
    )
    fingerprint = write_bundle(output, bytes(bundle.model), manifest, bundle.tokenizer_json, bundle.golden)
    return ExportReport(output, manifest, fingerprint, output.stat().st_size)


def describe(proof: Proof) -> list[str]:
    """Return a sentence for each measure, and one about existing collections."""
    lines = [
        f"{name}: {100 * each.before:.1f} -> {100 * each.after:.1f} ({_interval(each)} with 95 % confidence, "
        f"{each.rows:,} rows)"
        for name, each in proof.measures.items()
    ]
    keeps = {
        True: "existing collections of the old encoder can be searched with it",
        False: "collections must be built again with it",
        None: "search with it in existing collections was not measured",
    }[proof.keeps_collections]
    if proof.agreement is None:
        return lines
    return [*lines, f"cosine with the old vectors: {proof.agreement:.3f}; {keeps}"]


def _interval(measure: Comparison) -> str:
    low, high = measure.gain.low, measure.gain.high
    return "undefined" if low is None or high is None else f"{100 * low:+.1f} to {100 * high:+.1f}"
