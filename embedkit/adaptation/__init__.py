"""Adapting a model to a user's data: train it further, export it in the same form, and measure the gain."""

from __future__ import annotations

import dataclasses
import logging
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embedkit.adaptation.data import Data, Files, read, sample, spans
from embedkit.adaptation.planning import DATA, MOST_DOCUMENTS, VECTORS, Part, Planner, mean_tokens
from embedkit.adaptation.proof import Comparison, Proof, Rankings, prove, search
from embedkit.adaptation.rerankers import MINER, rerank
from embedkit.adaptation.teachers import as_bundle, family, scores_pairs, write_vectors
from embedkit.errors import ConfigError, GateError, InputError, shown
from embedkit.evaluation.sts import load_scored_pairs
from embedkit.export.gates import PAIR_THRESHOLDS, THRESHOLDS
from embedkit.export.pipeline import ExportReport, export_source
from embedkit.export.probes import PROBE_TEXTS
from embedkit.runtime.arguments import check_flag, check_path, check_text
from embedkit.runtime.bundle import read_bundle, write_bundle
from embedkit.runtime.cross_encoder import CrossEncoder
from embedkit.runtime.encoder import Encoder
from embedkit.runtime.find import find_model
from embedkit.runtime.manifest import Manifest
from embedkit.training.config import RunConfig
from embedkit.training.loop import RunControl
from embedkit.training.run import run
from embedkit.training.run_folder import TrainState
from embedkit.training.teachers import TeacherConfig

logger = logging.getLogger("embedkit")

__all__ = ["Adaptation", "Comparison", "Files", "Plan", "Proof", "adapt", "plan"]

_ANY_TARGET = "cpu-avx2"  # a float32 bundle records none
_WORDS = " with "
_CALIBRATION = 256  # passages
# Limits of differences from torch, wider than after a long run: the proof measures the exported file itself.
_COSINE = 0.9
_AGREEMENT = 0.95
_ERROR = (0.5, 0.5)
_TOKENS_A_SECOND = 4000  # of training, on one thread, for an encoder of two layers of 192
_TEACHER_TOKENS_A_SECOND = 15_000  # that a teacher of twelve layers of 384 in int8 embeds
_TOKENS = 64  # of a labelled text


@dataclass(frozen=True)
class Plan:
    """The data that an adaptation found, and its runs.

    Attributes:
        parts: the runs in their order. Few labels are divided: each run but the last trains on the labels of the
            others, and is measured on its own. The last run is the one whose result is written.
        lines: a sentence for each source, each decision, and the estimated time.
        start: a run on documents, from which all others continue, if there are labels and teachers.
    """

    source: Path
    parts: list[Part]
    lines: list[str]
    start: Part | None = None

    @property
    def config(self) -> RunConfig:
        """The configuration of the last run."""
        return self.parts[-1].config

    @property
    def data(self) -> Data:
        """The data of the last run."""
        return self.parts[-1].data


@dataclass(frozen=True)
class Adaptation:
    """The result of an adaptation; ``report`` is of the new bundle, ``seconds`` of the last run's training."""

    report: ExportReport
    proof: Proof
    steps: int
    seconds: float


def plan(
    model: str | os.PathLike[str],
    files: Files,
    folder: str | os.PathLike[str],
    *,
    teachers: Sequence[str] = (),
    queries_only: bool = False,
    settings: Mapping[str, Any] | None = None,
) -> Plan:
    """Read the data, write the training data into ``folder``, and decide on the runs.

    Args:
        model: path or name of an encoder's bundle.
        files: the data.
        folder: the run folder.
        teachers: paths, names or hub ids of better encoders, which embed the documents; by default, and without
            labels, those of the model's family that are on this machine. Or a cross-encoder, which scores the
            passages near each query.
        queries_only: train the encoder of queries against the model's vectors of documents.
        settings: overrides settings of the run, in the form of a recipe.

    Raises:
        ModelNotFoundError, BundleError: the model cannot be found or read.
        DataError: a file is missing or malformed.
        ConfigError: there is nothing to learn from the data, or a setting is invalid.
    """
    if not isinstance(files, Files):
        raise InputError(f"files must be Files, not {shown(files)}")
    if settings is not None and not isinstance(settings, Mapping):
        raise InputError(f"settings must be a mapping, not {shown(settings)}")
    check_flag(queries_only, "queries_only")
    path, folder = find_model(model), Path(check_path(folder, "folder"))
    manifest = read_bundle(path).manifest
    encoder = Encoder.load(MINER if manifest.kind == "cross-encoder" else path)
    data = read(files, encoder)
    found = [check_text(teacher, "teachers") for teacher in teachers] or family(path, manifest)
    scorers = [teacher for teacher in found if scores_pairs(teacher)]
    if scorers and len(found) > 1:
        raise ConfigError(f"a cross-encoder teaches alone: name {scorers[0]} only", parameters=["teacher"])
    planner = Planner(path, encoder, manifest, tuple(found), bool(scorers), queries_only, settings or {})
    has_labels = data.labelled is not None or data.graded is not None
    start = None
    if teachers and has_labels and not scorers and not queries_only and manifest.kind == "encoder":
        start = planner.on_documents(data, folder / "documents")
        planner = dataclasses.replace(planner, start=start.folder.absolute())
    folds = [planner.part(each, folder / f"fold-{number}") for number, each in enumerate(data.folds(), 1)]
    if not folds and data.held_out is None and data.held_out_graded is None:
        raise ConfigError("there is nothing to measure the new model on: give labelled queries, or more documents")
    whole = planner.part(data, folder)
    decided = [] if start is None else [_summary(start, 0)]
    return Plan(path, [*folds, whole], [*data.found, *decided, _summary(whole, len(folds))], start)


def adapt(
    model: str | os.PathLike[str],
    files: Files,
    output: str | os.PathLike[str],
    *,
    folder: str | os.PathLike[str],
    teachers: Sequence[str] = (),
    queries_only: bool = False,
    check: str | os.PathLike[str] | None = None,
    force: bool = False,
    settings: Mapping[str, Any] | None = None,
    control: RunControl | None = None,
) -> Adaptation | None:
    """Adapt an encoder to data, and write it in the form of its bundle if it is better on the held-out data.

    Args:
        model: see :func:`plan`, as for files, teachers, queries_only and settings.
        files: the data.
        output: the bundle to write; an existing file is replaced once the new one is complete.
        folder: the run folder.
        teachers: see :func:`plan`.
        queries_only: keep documents as they are.
        check: scored pairs that are not trained on, such as STS-B's development set, to measure losses.
        force: write the bundle even if it is no better.
        settings: of the run.
        control: resume, stop, progress.

    Returns:
        None if the run was stopped; ``control.resume`` continues it.

    Raises:
        GateError: the new bundle failed a gate, or is no better; nothing was written.
        EmbedkitError: a step of the run or of the export failed, or see :func:`plan`.
    """
    if control is not None and not isinstance(control, RunControl):
        raise InputError(f"control must be a RunControl, not {shown(control)}")
    check_flag(force, "force")
    control, output = control or RunControl(), check_path(output, "output")
    general = None if check is None else load_scored_pairs(check_path(check, "check"), split="validation")
    made = plan(model, files, folder, teachers=teachers, queries_only=queries_only, settings=settings)
    for line in made.lines:
        logger.info("%s", line)
    searches: list[Rankings] = []
    state = TrainState()
    with tempfile.TemporaryDirectory() as temporary:
        candidate = Path(temporary) / Path(output).name
        if made.start is not None and not _train(made.start, made.source, control).finished:
            return None
        for part in made.parts:
            state = _train(part, made.source, control)
            if not state.finished:
                return None
            _export(part.folder, candidate, read_bundle(made.source).manifest, part.data)
            if part.data.held_out is not None:
                searches.append(_search(made.source, candidate, part.data, queries_only=queries_only))
        pairs = {"held-out graded pairs": made.data.held_out_graded, "general pairs": general}
        proof = prove(_load(made.source), _load(candidate), searches, pairs, made.data.texts or PROBE_TEXTS)
        if not (proof.is_better or force):
            raise GateError(
                f"nothing was written: {'; '.join(describe(proof))}; give more data, or write it with force",
                {"adaptation": {"passed": False, **proof.to_json()}},
            )
        report = _with_proof(candidate, Path(output), proof)
    return Adaptation(report, proof, state.step, state.seconds)


def _summary(part: Part, folds: int) -> str:
    """Return what will be trained on, and for about how long."""
    config, data, seconds = part.config, part.data, 0.0
    steps, batch = config.optim.steps or 0, config.optim.batch_size
    teachers = " and ".join(each.name or each.source for each in part.teachers or config.every_teacher)
    if not part.teachers:
        kinds = [f"{len(data.labelled):,} labelled queries"] if data.labelled is not None else []
        kinds += [f"{len(data.graded):,} graded pairs"] if data.graded is not None else []
        kinds = kinds or (
            ["queries, titles and spans, with the passages near them"]
            if teachers
            else [f"{len(data.queries):,} queries, each with what the hybrid search finds first"]
        )
        what, tokens = " and ".join(kinds) + (teachers and f", scored by {teachers}"), 3.0 * batch * _TOKENS
    else:
        documents = sample(data.documents, MOST_DOCUMENTS)
        texts = [*documents, *spans(documents)]
        what, tokens = (
            f"{len(documents):,} passages and spans of them towards {teachers}",
            batch * mean_tokens(texts),
        )
        seconds = mean_tokens(texts) * len(texts) * len(part.teachers) / _TEACHER_TOKENS_A_SECOND
    minutes = max(1, round((seconds + steps * tokens * (1 + folds) / _TOKENS_A_SECOND) / 60))
    measured = f", and {folds} times on a part, to measure on the rest" if folds else ""
    if data.held_out is not None:
        kind = "titles or first sentences" if data.labelled is None else "queries"
        measured = f", measured on {len(data.held_out):,} held-out {kind}"
    time = f"about {minutes} minute{'' if minutes == 1 else 's'}"
    return f"train on {what}: {steps:,} steps of {batch}{measured}, {time}"


def _train(part: Part, source: Path, control: RunControl) -> TrainState:
    config, vectors = part.config, part.folder / DATA / VECTORS
    if part.teachers and not (control.resume and vectors.exists()):
        write_vectors(config, _as_bundles(part.teachers, config), Encoder.load(source), vectors)
    elif config.teachers:
        config = dataclasses.replace(config, teachers=_as_bundles(config.teachers, config))
    return run(config, part.folder, control)


def _as_bundles(teachers: Sequence[TeacherConfig], config: RunConfig) -> tuple[TeacherConfig, ...]:
    cache = Path(config.cache)
    return tuple(dataclasses.replace(each, source=as_bundle(each.source, cache)) for each in teachers)


def _load(path: Path) -> Encoder | CrossEncoder:
    return (CrossEncoder if read_bundle(path).manifest.kind == "cross-encoder" else Encoder).load(path)


def _search(source: Path, candidate: Path, data: Data, *, queries_only: bool) -> Rankings:
    assert data.held_out is not None
    old, new = _load(source), _load(candidate)
    if isinstance(old, Encoder) and isinstance(new, Encoder):
        return search(old, new, data.held_out.as_retrieval("held out"), queries_only=queries_only)
    assert isinstance(old, CrossEncoder)
    assert isinstance(new, CrossEncoder)
    return rerank(old, new, Encoder.load(MINER), data.held_out)


def _export(folder: Path, output: Path, old: Manifest, data: Data) -> None:
    """Export the result of a run in the form of the old bundle."""
    precision, _, words = old.precision.partition(_WORDS)
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
        calibration=[*PROBE_TEXTS, *data.texts[:_CALIBRATION]] if is_encoder else None,
        thresholds=dataclasses.replace(limits, **lower),
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
