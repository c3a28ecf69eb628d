"""Adapting an encoder to a user's text: continue its training, export it in the same form, compare both."""

from __future__ import annotations

import dataclasses
import logging
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embedkit.atomic import atomic_file
from embedkit.config import merge
from embedkit.errors import ConfigError, GateError, InputError, shown
from embedkit.export.pipeline import ExportReport, export_source
from embedkit.protocols import TextEncoder
from embedkit.runtime.arguments import check_path
from embedkit.runtime.bundle import read_bundle
from embedkit.runtime.encoder import Encoder
from embedkit.runtime.find import find_bundle, find_model, published_models
from embedkit.training.config import RunConfig, override
from embedkit.training.loop import RunControl
from embedkit.training.recipes.stage import LEAST_AGREEMENT, HeldOut
from embedkit.training.run import Run, resolve, run
from embedkit.training.teachers import CachedVectors, TeacherVectors

logger = logging.getLogger("embedkit")

RECIPE: Mapping[str, Any] = {
    "method": "sct-distillation",
    "student": {"dropout": 0.0},
    "optim": {
        "algorithm": "muon",
        "lr": 3e-4,
        "steps": 1000,
        "warmup": 0.1,
        "schedule": "cosine",
        "correct_bias": True,
    },
    "dev": {"held_out": 500, "every": 250},
    "settings": {
        "views": 1,
        "regression": 3.0,
        "queues": "one",
        "queue_size": 4096,
        "temperature": 0.05,
        "reference_temperature": 0.05,
    },
}
"""Default settings: those of the bundled encoders, for a short run."""

_TEACHERS = "sentence-transformers"
_ANY_TARGET = "cpu-avx2"  # a float32 bundle records none
_WORDS = " with "


@dataclass(frozen=True)
class Adaptation:
    """The result of an adaptation.

    Attributes:
        report: of the new bundle.
        before: source of text -> mean cosine of the old bundle with the teacher on held-out texts of that source;
            empty if their widths differ, or their spaces do: the old bundle was not taught in the space of the
            teacher, as far as it records, and the mean cosine is below 0.5.
        after: the same for the new bundle.
        steps: number of training steps.
        seconds: their duration.
    """

    report: ExportReport
    before: Mapping[str, float]
    after: Mapping[str, float]
    steps: int
    seconds: float


def adaptation_config(source: str | os.PathLike[str], changes: Mapping[str, Any]) -> RunConfig:
    """The configuration of an adaptation: :data:`RECIPE`, overridden by the caller's settings.

    Args:
        source: path or name of a bundle.
        changes: settings in the form of a recipe, at least ``corpus``. Without ``teacher``, the teacher that the
            bundle names is loaded, one of embedkit's models or from the hub.

    Raises:
        InputError: an argument has another type.
        ModelNotFoundError, BundleError: the bundle cannot be found or read.
        ConfigError: the bundle names no teacher or a joined space, or a setting is invalid.
    """
    if not isinstance(changes, Mapping):
        raise InputError(f"changes must be a mapping of settings, not {shown(changes)}")
    path = find_model(source)
    manifest = read_bundle(path).manifest
    pooling = "cls" if manifest.pooling == "cls" else "mean"
    own = {"student": {"source": str(path), "max_length": manifest.max_length, "pooling": pooling}}
    mapping = override(merge(RECIPE, own), changes)
    if not (mapping.get("teacher") or mapping.get("teachers")):
        name = manifest.teacher.get("name")
        if not name:
            raise ConfigError(
                f"{source} does not record which model taught it; name one with teacher", parameters=["teacher"]
            )
        if manifest.teacher.get("joined"):
            raise ConfigError(
                f"{source} learned a joined space of {name}; name the model whose space to learn with teacher",
                parameters=["teacher"],
            )
        is_complete = "/" in name or name in published_models()
        mapping["teacher"] = {"source": name if is_complete else f"{_TEACHERS}/{name}", "name": name}
    return resolve(mapping)


def adapt(
    config: RunConfig,
    folder: str | os.PathLike[str],
    output: str | os.PathLike[str],
    control: RunControl | None = None,
) -> Adaptation | None:
    """Continue the training of a bundle, and write the result in the form of the bundle.

    Args:
        config: a configuration returned by :func:`adaptation_config`.
        folder: the run folder.
        output: the bundle to write; an existing file is replaced once the new one is complete.
        control: resume, stop, progress.

    Returns:
        None if the run was stopped; ``control.resume`` continues it.

    Raises:
        InputError: an argument has another type.
        GateError: the new bundle failed a gate, or is no closer to the teacher than the old one on held-out text,
            where these can be compared; nothing was written.
        EmbedkitError: a step of the run or of the export failed.
    """
    if not isinstance(config, RunConfig):
        raise InputError(f"config must be a result of adaptation_config, not {shown(config)}")
    if control is not None and not isinstance(control, RunControl):
        raise InputError(f"control must be a RunControl, not {shown(control)}")
    folder, output = check_path(folder, "folder"), check_path(output, "output")
    if config.student.source is None:
        raise ConfigError("an adaptation starts from a bundle: student.source is missing")
    old = Encoder.load(config.student.source)
    control = control or RunControl()
    if _marks(old.manifest.teacher).isdisjoint(_teacher_marks(config)):
        logger.warning(
            "%s does not record that it has the embedding space of the new teacher, which the new encoder learns: "
            "unless the spaces are one, neither encoder can search documents that the other embedded",
            old.name,
        )
    state = run(config, Path(folder), control)
    if not state.finished:
        return None
    data = Run.prepare(config, control).read_teachers().data  # from the cache filled by the run
    held_out = HeldOut(data.corpus, data.split.held_out, data.teachers[0])
    before = _cosines(held_out, old) if old.dimension == data.teachers[0].dimension else {}
    agreement = _mean(before) if before else 1.0
    if agreement < LEAST_AGREEMENT and not _has_space(old.manifest.teacher, data.teachers[0]):
        logger.warning(
            "%s and the teacher have different embedding spaces, so the old and the new encoder are not compared: "
            "the mean cosine of their embeddings is %.2f",
            old.name,
            agreement,
        )
        before = {}
    precision, _, words = old.manifest.precision.partition(_WORDS)
    with atomic_file(output) as temporary:
        report = export_source(
            folder,
            temporary,
            precision=precision,
            word_table=words.removesuffix(" words") or None,
            target=old.manifest.target or _ANY_TARGET,
            licence=old.manifest.licence,
        )
        after = _cosines(held_out, Encoder.load(temporary))
        if before:
            _require_nearer(before, after)
    report = dataclasses.replace(report, path=Path(output))
    return Adaptation(report, before, after, state.step, state.seconds)


def _lineage(taught: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield a recorded teacher, its own teacher, and so on, as far as the taught encoder has their space.

    An encoder that was spread has left the space of its teacher.
    """
    while taught and "spread" not in taught:
        yield taught
        taught = taught.get("teacher") or {}


def _marks(taught: Mapping[str, Any]) -> set[str]:
    """Return names and fingerprints of the models whose space an encoder has, by its record of its teacher.

    A joined space has only its fingerprint, because its name is also that of other spaces of the same models.
    """
    marks = set[str]()
    for record in _lineage(taught):
        marks |= {record.get("fingerprint", ""), "" if "joined" in record else record.get("name", "")}
    return marks - {""}


def _teacher_marks(config: RunConfig) -> set[str]:
    """Return the same of the space that is learned; none of that of [join] or [matryoshka], which is a new one."""
    if config.join is not None or config.matryoshka is not None:
        return set()
    teacher = config.every_teacher[0]
    source = config.resolve_model(teacher.source)
    path = find_bundle(source)
    names = {teacher.name or Path(source).name}
    if path is None or teacher.aligned:
        return names
    bundle = read_bundle(path)
    return {*names, bundle.manifest.name, bundle.fingerprint, *_marks(bundle.manifest.teacher)}


def _has_space(taught: Mapping[str, Any], teacher: TeacherVectors) -> bool:
    """Whether an encoder, by what it records of its teacher, has the space of a teacher's vectors."""
    spaces = {teacher.fingerprint}
    if isinstance(teacher, CachedVectors):
        spaces |= {record["fingerprint"] for record in _lineage(teacher.teacher) if "fingerprint" in record}
    return any(record.get("fingerprint") in spaces for record in _lineage(taught))


def _cosines(held_out: HeldOut, encoder: TextEncoder) -> dict[str, float]:
    return {name: 1 - distance for name, distance in held_out.distances(encoder).items()}


def _mean(cosines: Mapping[str, float]) -> float:
    return math.fsum(cosines.values()) / len(cosines)


def _require_nearer(before: Mapping[str, float], after: Mapping[str, float]) -> None:
    old, new = _mean(before), _mean(after)
    if new <= old:
        raise GateError(
            f"nothing was written: on held-out text the cosine with the teacher is {new:.4f}, compared with "
            f"{old:.4f} before; train longer (optim.steps) or on more text",
            {"adaptation": {"passed": False, "before": old, "after": new}},
        )
