"""Pages of the site that are generated, or that live outside of ``docs``.

README is the home page. Links between documents, written for the repository, are rewritten for the site; links to
other files of the repository lead to its host.
"""

from __future__ import annotations

import argparse
import importlib
import json
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from embedkit.cli.main import COMMANDS, command_parser

ROOT = Path(__file__).parents[2]

# Page or image of the site -> file of the repository.
COPIES = {
    "index.md": "README.md",
    "architecture.md": "ARCHITECTURE.md",
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
    "security.md": "SECURITY.md",
    "cards/tiny.md": "embedkit/bundled/tiny.md",
    "cards/mini.md": "models/mini.md",
    "cards/small.md": "models/small.md",
    "cards/static.md": "models/static.md",
    "cards/tiny-minilm.md": "models/tiny-minilm.md",
    "assets/frontier.svg": "benchmarks/frontier/frontier.svg",
    "assets/methods.svg": "benchmarks/methods/results.svg",
}
PAGE_OF = {source: page for page, source in COPIES.items()}

# Section of the API reference -> module -> names.
API = {
    "Encoding": {"embedkit": ["Encoder", "CrossEncoder"]},
    "Retrieval": {"embedkit.serving.retrieval": ["Collection", "Document", "Fusion", "Hit", "Hits"]},
    "Splitting": {"embedkit.serving.retrieval.splitting": ["split_documents"]},
    "Similar texts": {
        "embedkit.serving.retrieval.similar": [
            "similar_pairs",
            "deduplicate",
            "cluster",
            "SimilarPairs",
            "Groups",
        ]
    },
    "Evaluation": {
        "embedkit.evaluation.catalogue": ["load_task"],
        "embedkit.evaluation.tasks": ["evaluate"],
    },
    "Integrations": {
        "embedkit.integrations.sklearn": ["TextEmbedder"],
        "embedkit.integrations.langchain": ["EmbedkitEmbeddings"],
        "embedkit.integrations.llama_index": ["EmbedkitEmbedding"],
        "embedkit.integrations.mteb": ["MtebEncoder", "MtebCrossEncoder"],
    },
    "Adaptation": {"embedkit.adaptation": ["adapt", "adaptation_config", "Adaptation"]},
    "Bulk encoding": {"embedkit.serving.bulk": ["BulkEncoding", "Cost"]},
    "Protocols": {"embedkit": ["TextEncoder", "PairScorer", "VectorIndex"]},
}

BAR = r"\|"  # inside a table
LINK = re.compile(r"(?<=\]\()(?!https?://|#)([^)#\s]+)(#[^)\s]*)?(?=\))")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that ``docs`` does not contain."""
    for page, source in COPIES.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    for notebook in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")):
        files.append(File.generated(config, f"notebooks/{notebook.stem}.md", content=notebook_page(notebook)))
    files.append(File.generated(config, "commands.md", content=commands_page()))
    files.append(File.generated(config, "api.md", content=api_page()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, **_: Any) -> str:
    """Rewrite links between files of the repository."""
    uri = page.file.src_uri
    folder = posixpath.dirname(COPIES.get(uri, f"docs/{uri}"))

    def rewritten(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, found[1]))
        target_page = PAGE_OF.get(target) or (target.removeprefix("docs/") if target.startswith("docs/") else None)
        if target_page is None:
            return f"{config.repo_url}/blob/main/{target}{found[2] or ''}"
        return posixpath.relpath(target_page, posixpath.dirname(uri) or ".") + (found[2] or "")

    return LINK.sub(rewritten, markdown)


def commands_page() -> str:
    """Return the reference of all commands."""
    sections = ["# Commands", "Arguments of all commands, generated from their parsers."]
    for name in COMMANDS:
        sections += command_section(f"embedkit {name}", command_parser(name), level=2)
    return "\n\n".join(sections) + "\n"


def command_section(title: str, parser: argparse.ArgumentParser, level: int) -> Iterator[str]:
    """Yield the blocks of one command and of its sub-commands."""
    formatter = parser._get_formatter()
    yield f"{'#' * level} {title}"
    if parser.description:
        yield f"{parser.description[0].upper()}{parser.description[1:]}."
    yield f"```text\n{parser.format_usage().strip()}\n```"
    rows, sub_parsers = [], {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            sub_parsers = action.choices
        elif action.help is not argparse.SUPPRESS:
            call = formatter._format_action_invocation(action).replace("|", BAR)
            text = formatter._expand_help(action) if action.help else ""
            rows.append(f"| `{call}` | {text.replace('|', BAR)} |")
    yield "\n".join(["| argument | description |", "|---|---|", *rows])
    examples = (parser.epilog or "").removeprefix("examples:\n")
    if examples.strip():
        lines = "\n".join(line.strip() for line in examples.splitlines())
        yield f"Examples:\n\n```\n{lines}\n```"
    for name, sub_parser in sub_parsers.items():
        yield from command_section(f"{title} {name}", sub_parser, level + 1)


def api_page() -> str:
    """Return the reference of the public classes and functions."""
    blocks = ["# Python API", "Signatures and docstrings of the public names."]
    for section, modules in API.items():
        blocks.append(f"## {section}")
        for module, names in modules.items():
            blocks += [f"::: {home_of(module, name)}" for name in names]
    blocks += [
        "## Exceptions",
        "::: embedkit.errors\n    options:\n      members: false\n      show_root_heading: false",
    ]
    return "\n\n".join(blocks) + "\n"


def home_of(module: str, name: str) -> str:
    """Return the path of a public name where it is defined; integrations need no import, they define their own."""
    if module.startswith("embedkit.integrations."):
        return f"{module}.{name}"
    value = getattr(importlib.import_module(module), name)
    return f"{value.__module__}.{value.__qualname__}"


def notebook_page(path: Path) -> str:
    """Return a notebook as Markdown."""
    blocks = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        blocks.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
    return "\n\n".join(blocks) + "\n"
