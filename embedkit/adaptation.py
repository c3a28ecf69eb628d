"""From an encoder to one for somebody's own text: train it on, export it as it was, compare it with its start."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embedkit.atomic import atomic_file
from embedkit.config import lay_over, merge
from embedkit.errors import ConfigError, GateError
from embedkit.export.card import read_card
from embedkit.export.pipeline import ExportReport, export
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.protocols import TextEncoder
from embedkit.runtime.encoder import Encoder
from embedkit.runtime.location import find_model
from embedkit.training.config import RunConfig
from embedkit.training.corpus import Corpus
from embedkit.training.held_out import HeldOut, Split
from embedkit.training.recipes.run import resolve, run
from embedkit.training.recipes.stage import Control
from embedkit.training.teachers import load_vectors

__all__ = ["RECIPE", "Adaptation", "adapt", "adaptation_config"]

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
"""How an encoder is trained on, unless told otherwise: as the bundled ones were, for a short while."""

_TEACHERS = "sentence-transformers"
_ANY_TARGET = "cpu-avx2"  # what float32 is for is not told
_WORDS = " with "


@dataclass(frozen=True)
class Adaptation:
    """What came of it.

    Attributes:
        report: of the new bundle.
        before: source of text -> mean cosine between the encoder and its teacher on texts of it that were kept out
            of training, before.
        after: the same of the new bundle.
        steps: of training.
        seconds: that they took.
    """

    report: ExportReport
    before: Mapping[str, float]
    after: Mapping[str, float]
    steps: int
    seconds: float


def adaptation_config(source: str | os.PathLike[str], changes: Mapping[str, Any]) -> RunConfig:
    """The run that adapts a bundle: :data:`RECIPE`, and what the caller says, laid over it.

    Args:
        source: path or name of a bundle.
        changes: a mapping like a recipe's, with ``corpus`` at least. Without ``teacher`` it is the one that the
            bundle names, looked for on the hub.

    Raises:
        ModelNotFoundError, BundleError: there is no such bundle.
        ConfigError: the bundle names no teacher, or a setting is wrong.
    """
    path = find_model(source)
    manifest = Encoder.load(path).manifest
    mapping = merge(lay_over(RECIPE, "student.source", str(path)), changes)
    if not mapping.get("teacher"):
        name = manifest.teacher.get("name")
        if not name:
            raise ConfigError(f"{source} does not say who taught it; name the teacher with --teacher")
        hub_id = name if "/" in name else f"{_TEACHERS}/{name}"
        mapping["teacher"] = {"source": hub_id, "name": name}
    return resolve(mapping)


def adapt(
    config: RunConfig,
    folder: str | os.PathLike[str],
    output: str | os.PathLike[str],
    control: Control | None = None,
) -> Adaptation | None:
    """Train a bundle on, and write the result in the form that the bundle had.

    Args:
        config: from :func:`adaptation_config`.
        folder: of the run.
        output: the bundle to write; an older file is replaced once the new one is complete.
        control: resume, stop, progress.

    Returns:
        None if the run was stopped; ``control.resume`` goes on.

    Raises:
        GateError: the new bundle missed a gate, or is no nearer to the teacher than the old one on text
            that was kept apart; nothing was written.
        EmbedkitError: whatever part cannot go on.
    """
    if config.student.source is None:
        raise ConfigError("an adaptation starts from a bundle: student.source is missing")
    old = Encoder.load(config.student.source)
    folder = Path(folder)
    state = run(config, folder, control)
    if not state.finished:
        return None
    held_out = _held_out(config)
    before = _cosines(held_out, old)
    manifest = old.manifest
    precision, _, words = manifest.precision.partition(_WORDS)
    with atomic_file(output) as temporary:
        report = export(
            SentenceEncoder.load(folder / "model"),
            temporary,
            precision=precision,
            word_table=words.removesuffix(" words") or None,
            target=manifest.target or _ANY_TARGET,
            card=read_card(str(folder), licence=manifest.licence),
        )
        after = _cosines(held_out, Encoder.load(temporary))
        _require_nearer(before, after)
    finished = ExportReport(Path(output), report.manifest, report.fingerprint, report.size_bytes)
    return Adaptation(finished, before, after, state.step, state.seconds)


def _held_out(config: RunConfig) -> HeldOut:
    """The texts that the run kept apart, with the teacher's vectors, both out of the cache that it filled."""
    cache = Path(config.cache)
    corpus = Corpus.prepare(config.sources, cache)
    teacher = load_vectors(config.every_teacher[0], corpus, cache)
    return HeldOut(corpus, Split.of(corpus, config.dev.held_out).held_out, teacher)


def _cosines(held_out: HeldOut, encoder: TextEncoder) -> dict[str, float]:
    return {name: 1 - distance for name, distance in held_out.distances(encoder).items()}


def _require_nearer(before: Mapping[str, float], after: Mapping[str, float]) -> None:
    old, new = (math.fsum(cosines.values()) / len(cosines) for cosines in (before, after))
    if new <= old:
        raise GateError(
            f"nothing was written: on text kept apart the cosine with the teacher is {new:.4f}, and was {old:.4f} "
            "before; train for longer (optim.steps), or on more text",
            {"adaptation": {"passed": False, "before": old, "after": new}},
        )
