"""`embedkit report`: a page with the curves of each run, and tables that compare runs and models."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from embedkit.atomic import expanded
from embedkit.cli.options import add_files, check_form, load_model

if TYPE_CHECKING:
    from embedkit.evaluation.comparison import Entry
    from embedkit.export.card import Card
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
    add_files(parser, "--speed", "output of `embedkit bench --json`")


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
    from embedkit.evaluation.comparison import distinct, read_evaluations, write_comparison
    from embedkit.evaluation.speed.figures import read_reports

    page = arguments.output or Path("comparison.md")
    check_form(page, ".md")
    evaluations = [evaluation for path in arguments.quality for evaluation in read_evaluations(path)]
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
    from embedkit.export.card import Card, read_card

    folder = expanded(source)
    if is_run(source):
        entry = _torch_entry(folder, folder / "model", read_card(str(folder)), identify=identify)
        kind = "run" if (folder / "model").is_dir() else "run, not finished"
        return dataclasses.replace(entry, kind=kind, page=os.path.relpath(folder / "report.html", page.parent))
    if folder.is_dir() and (folder / "config.json").is_file():
        return _torch_entry(Path(source), folder, Card(), identify=identify)
    return _bundle_entry(source)


def _torch_entry(source: Path, model: Path, card: Card, *, identify: bool) -> Entry:
    from embedkit.evaluation.comparison import Entry
    from embedkit.modeling.layout import weights_bytes

    is_there = model.is_dir()
    return Entry(
        label=f"{card.name or expanded(source).resolve().name} fp32 (torch)",
        kind="model folder",
        source=str(source),
        fingerprint=load_model(str(model), "torch").fingerprint if identify and is_there else "",
        size_bytes=weights_bytes(model) if is_there else None,
        **_origin(card),
    )


def _bundle_entry(source: str) -> Entry:
    from embedkit.evaluation.comparison import Entry
    from embedkit.runtime.bundle import read_bundle
    from embedkit.runtime.find import find_model

    bundle = read_bundle(find_model(source))
    manifest, origin = bundle.manifest, _origin(bundle.manifest)
    origin["facts"] |= {"target": manifest.target, "made by": manifest.created_by}
    return Entry(
        label=f"{manifest.name} {manifest.precision}",
        kind="bundle",
        source=source,
        fingerprint=bundle.fingerprint,
        size_bytes=len(bundle.model),
        **origin,
    )


def _origin(card: Card | Manifest) -> dict[str, Any]:
    """Return the fields of an entry that describe the training."""
    from embedkit.evaluation.comparison import flat_recipe

    score, dev = card.metrics.get("dev_spearman"), card.config.get("dev", {})
    pairs = PurePath(str(dev.get("pairs") or card.metrics.get("dev") or "")).stem
    return {
        "recipe": flat_recipe(card.config),
        "facts": _facts(card),
        "development": 100 * score if isinstance(score, float) else None,
        "development_set": f"{pairs}, {dev['limit']} pairs" if pairs and dev.get("limit") else pairs,
    }


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
