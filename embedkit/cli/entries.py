"""Reading runs, bundles and model folders into the entries that `embedkit report` compares."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from embedkit.cli.backends import load_model

if TYPE_CHECKING:
    from embedkit.export.card import Card
    from embedkit.reporting.comparison import Entry
    from embedkit.runtime.manifest import Manifest


def is_run(source: str) -> bool:
    """Whether a source is the folder of a run, finished or not."""
    return (Path(source).expanduser() / "config.toml").is_file()


def read_entry(source: str, *, page: Path, identify: bool) -> Entry:
    """Read the entry of a run folder, a bundle, a bundled name or a model folder.

    Args:
        source: path or name as given on the command line.
        page: path of the comparison; links are relative to its folder.
        identify: whether to compute the fingerprint, which requires loading torch models.

    Raises:
        ModelNotFoundError, BundleError, ModelError: the source does not exist or cannot be read.
    """
    folder = Path(source).expanduser()
    if is_run(source):
        return _run_entry(folder, page, identify=identify)
    if folder.is_dir() and (folder / "config.json").is_file():
        return _folder_entry(folder, source, identify=identify)
    return _bundle_entry(source)


def _run_entry(folder: Path, page: Path, *, identify: bool) -> Entry:
    from embedkit.export.card import read_card
    from embedkit.modeling.layout import weights_bytes
    from embedkit.reporting.comparison import Entry, flat_recipe

    card, model = read_card(str(folder)), folder / "model"
    finished = model.is_dir()
    name = card.name or folder.resolve().name
    return Entry(
        label=f"{name} fp32 (torch)",
        name=name,
        kind="run" if finished else "run, not finished",
        precision="fp32 (torch)",
        source=str(folder),
        fingerprint=load_model(str(model), "torch").fingerprint if identify and finished else "",
        size_bytes=weights_bytes(model) if finished else None,
        recipe=flat_recipe(card.config),
        facts=_facts(card),
        development=_development(card.metrics),
        development_set=_development_set(card),
        page=os.path.relpath(folder / "report.html", page.parent),
    )


def _folder_entry(folder: Path, source: str, *, identify: bool) -> Entry:
    from embedkit.modeling.layout import weights_bytes
    from embedkit.reporting.comparison import Entry

    name = folder.resolve().name
    return Entry(
        label=f"{name} fp32 (torch)",
        name=name,
        kind="model folder",
        precision="fp32 (torch)",
        source=source,
        fingerprint=load_model(source, "torch").fingerprint if identify else "",
        size_bytes=weights_bytes(folder),
    )


def _bundle_entry(source: str) -> Entry:
    from embedkit.reporting.comparison import Entry, flat_recipe
    from embedkit.runtime.bundle import read_bundle
    from embedkit.runtime.location import find_model

    path = find_model(source)
    bundle = read_bundle(path)
    manifest = bundle.manifest
    return Entry(
        label=f"{manifest.name} {manifest.precision}",
        name=manifest.name,
        kind="bundle",
        precision=manifest.precision,
        source=source,
        fingerprint=bundle.fingerprint,
        size_bytes=path.stat().st_size,
        recipe=flat_recipe(manifest.config),
        facts={**_facts(manifest), "target": manifest.target, "made by": manifest.created_by},
        development=_development(manifest.metrics),
        development_set=_development_set(manifest),
    )


def _facts(card: Card | Manifest) -> dict[str, str]:
    corpora = (f"{each.get('name')}: {each.get('rows', 0):,} rows, {each.get('licence')}" for each in card.corpus)
    facts = {
        "method": card.method,
        "base": card.base,
        "teacher": str(card.teacher.get("name", "")),
        "corpus": "; ".join(corpora),
        "licence": card.licence,
        "metrics": ", ".join(f"{name} {value}" for name, value in card.metrics.items()),
    }
    return {name: value for name, value in facts.items() if value}


def _development(metrics: Mapping[str, Any]) -> float | None:
    score = metrics.get("dev_spearman")
    return 100 * score if isinstance(score, float) else None


def _development_set(card: Card | Manifest) -> str:
    """Return the file's name, with the number of sampled pairs if it was limited."""
    dev = card.config.get("dev", {})
    name = PurePath(str(dev.get("pairs") or card.metrics.get("dev") or "")).stem
    return f"{name}, {dev['limit']} pairs" if name and dev.get("limit") else name
