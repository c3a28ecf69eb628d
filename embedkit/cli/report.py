"""`embedkit report`: a page with the curves of each run, and tables that compare runs and models."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from embedkit.atomic import expanded
from embedkit.cli.backends import load_model
from embedkit.cli.options import add_files, check_form

if TYPE_CHECKING:
    from embedkit.export.card import Card
    from embedkit.reporting.comparison import Entry
    from embedkit.runtime.manifest import Manifest

HELP = "plot training runs, and compare runs, bundles and models"
EXAMPLES = """
embedkit report runs/tiny
embedkit report runs/* bundles/*.onnx --quality evaluation.json --speed speed.json -o comparison.md
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "sources",
        nargs="+",
        metavar="RUN_OR_MODEL",
        help="a run folder, finished or not, which gets a report.html; or a bundle, a bundled name or a "
        "model folder to compare",
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="the comparison, in Markdown; default: comparison.md, if there is more than one entry",
    )
    add_files(parser, "--quality", "output of `embedkit evaluate --json`")
    add_files(parser, "--speed", "output of `embedkit bench --json` or of its --report")


def run(arguments: argparse.Namespace) -> None:
    """Write the page of each run and the comparison, and print their paths."""
    from embedkit.training.run_report import write_report

    sources = list(dict.fromkeys(arguments.sources))
    runs = [source for source in sources if is_run(source)]
    pages = []
    if len(sources) > 1 or not runs or arguments.output or arguments.quality or arguments.speed:
        pages.append(_compare(sources, arguments))
    pages = [*(str(write_report(folder)) for folder in runs), *pages]
    print(json.dumps(pages) if arguments.json else "\n".join(pages))


def _compare(sources: list[str], arguments: argparse.Namespace) -> str:
    """Read everything, then write: nothing is written unless all sources can be read."""
    from embedkit.reporting.comparison import distinct, write_comparison
    from embedkit.reporting.quality import read_evaluations
    from embedkit.reporting.speed_page import read_reports

    page = arguments.output or Path("comparison.md")
    check_form(page, ".md")
    evaluations = [evaluation for path in arguments.quality for evaluation in read_evaluations(path)]
    evaluations += [
        evaluation for path in arguments.speed for evaluation in read_evaluations(path, required=False)
    ]
    reports = [report for path in arguments.speed for report in read_reports(path)]
    identify = bool(evaluations or reports)
    entries = distinct([read_entry(source, page=page, identify=identify) for source in sources])
    write_comparison(entries, page, reports=reports, evaluations=evaluations)
    return str(page)


def is_run(source: str) -> bool:
    """Whether a source is the folder of a run, finished or not."""
    return (expanded(source) / "config.toml").is_file()


def read_entry(source: str, *, page: Path, identify: bool) -> Entry:
    """Read the entry of a run folder, a bundle, a bundled name or a model folder.

    Links are relative to the folder of ``page``. To ``identify`` a torch model, it is loaded for its fingerprint.
    """
    folder = expanded(source)
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
    corpora = (
        f"{source.get('name')}: {source.get('rows', 0):,} rows, {source.get('licence')}" for source in card.corpus
    )
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
