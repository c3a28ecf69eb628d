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
from embedkit.runtime.find import PublishedModel, published_models

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
    "cards/reranker-tiny.md": "embedkit/bundled/reranker-tiny.md",
    "cards/multilingual.md": "models/multilingual.md",
    "cards/reranker-small.md": "models/reranker-small.md",
    "cards/mini-minilm.md": "models/mini-minilm.md",
    "cards/small-minilm.md": "models/small-minilm.md",
    "cards/static-minilm.md": "models/static-minilm.md",
    "assets/frontier.svg": "benchmarks/frontier/frontier.svg",
    "assets/search_quality.svg": "benchmarks/search_quality/search_quality.svg",
}
PAGE_OF = {source: page for page, source in COPIES.items()}

# Page of the API reference -> title, module, names.
API = {
    "encoding": ("Encoding", "embedkit", ["Encoder", "JoinedEncoder", "CrossEncoder"]),
    "retrieval": (
        "Retrieval",
        "embedkit.serving.retrieval",
        ["Collection", "SearchOptions", "Document", "Hit", "Hits"],
    ),
    "splitting": ("Splitting", "embedkit.serving.retrieval.splitting", ["split_documents"]),
    "similar": (
        "Similar texts",
        "embedkit.serving.retrieval.similar",
        ["similar_pairs", "deduplicate", "cluster", "SimilarPairs", "Groups"],
    ),
    "bulk": ("Bulk encoding", "embedkit.serving.bulk", ["BulkEncoding", "Cost"]),
    "tasks": ("Tasks", "embedkit.evaluation.catalogue", ["load_task"]),
    "evaluation": ("Evaluation", "embedkit.evaluation.tasks", ["evaluate"]),
    "adaptation": (
        "Adaptation",
        "embedkit.adaptation",
        ["adapt", "plan", "Files", "Plan", "Adaptation", "Proof", "Comparison"],
    ),
    "sklearn": ("scikit-learn", "embedkit.integrations.sklearn", ["TextEmbedder"]),
    "langchain": ("LangChain", "embedkit.integrations.langchain", ["EmbedkitEmbeddings"]),
    "llama-index": ("LlamaIndex", "embedkit.integrations.llama_index", ["EmbedkitEmbedding"]),
    "mteb": ("MTEB", "embedkit.integrations.mteb", ["MtebEncoder", "MtebCrossEncoder"]),
    "protocols": ("Protocols", "embedkit", ["TextEncoder", "PairScorer", "VectorIndex"]),
}

BAR = r"\|"  # inside a table
SYNTAX = re.compile(r"[|\[\]<>*]")  # of Markdown, in a help text
ROLE = re.compile(
    r":(?:class|func|meth|attr|data|exc|mod):<code>(?:~(?:\w+\.)*)?([\w.]+)(?: &lt;[^<]*&gt;)?</code>"
)
LINK = re.compile(r"(?<=\]\()(?!https?://|#)([^)#\s]+)(#[^)\s]*)?(?=\))")
# Kind of model -> code that uses it.
USES = {
    "encoder": """```python
from embedkit import Encoder

encoder = Encoder.load("{name}")
encoder.encode(["How do I reset my password?", "I forgot my login."])
```""",
    "cross-encoder": """```python
from embedkit import CrossEncoder

reranker = CrossEncoder.load("{name}")
reranker.rank("refund after 30 days", ["Refunds take a month.", "We sell coats."])
```""",
}

ERRORS = """# Errors

::: embedkit.errors
    options:
      members: false
      show_root_heading: false
"""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that ``docs`` does not contain."""
    for page, source in COPIES.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    for notebook in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")):
        files.append(File.generated(config, f"notebooks/{notebook.stem}.md", content=notebook_page(notebook)))
    files.append(File.generated(config, "commands.md", content=commands_page()))
    for name, (title, module, names) in API.items():
        files.append(File.generated(config, f"api/{name}.md", content=api_page(title, module, names)))
    files.append(File.generated(config, "api/errors.md", content=ERRORS))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, **_: Any) -> str:
    """Rewrite links between files of the repository."""
    uri = page.file.src_uri
    if posixpath.dirname(uri) == "cards":
        markdown = with_figures(markdown, published_models()[page.file.name])
    folder = posixpath.dirname(COPIES.get(uri, f"docs/{uri}"))

    def rewritten(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, found[1]))
        target_page = PAGE_OF.get(target) or (target.removeprefix("docs/") if target.startswith("docs/") else None)
        if target_page is None:
            return f"{config.repo_url}/blob/main/{target}{found[2] or ''}"
        target_page = target_page.replace(".ipynb", ".md")
        return posixpath.relpath(target_page, posixpath.dirname(uri) or ".") + (found[2] or "")

    return LINK.sub(rewritten, markdown)


def with_figures(card: str, model: PublishedModel) -> str:
    """Return a model card with code and figures in front of its first list."""
    facts = {"languages": model.languages, "licence": model.licence, "MB": f"{model.size_bytes / 1e6:.1f}"}
    cells = facts | {name: f"{figure:g}" for name, figure in model.figures.items()}
    table = [" | ".join(cells), " | ".join("---" for _ in cells), " | ".join(cells.values())]
    block = f"{USES[model.kind].format(name=model.name)}\n\n" + "\n".join(f"| {row} |" for row in table)
    head, dash, rest = card.partition("\n- ")
    return f"{head}\n{block}\n{dash}{rest}"


def on_page_content(html: str, **_: Any) -> str:
    """Show the names in roles of docstrings, such as ``:meth:``, as code."""
    return ROLE.sub(r"<code>\1</code>", html)


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
            escaped = SYNTAX.sub(r"\\\g<0>", text)
            rows.append(f"| `{call}` | {escaped} |")
    yield "\n".join(["| argument | description |", "|---|---|", *rows])
    examples = (parser.epilog or "").removeprefix("examples:\n")
    if examples.strip():
        lines = "\n".join(line.strip() for line in examples.splitlines())
        yield f"Examples:\n\n```\n{lines}\n```"
    for name, sub_parser in sub_parsers.items():
        yield from command_section(f"{title} {name}", sub_parser, level + 1)


def api_page(title: str, module: str, names: list[str]) -> str:
    """Return the reference of the public classes and functions of a module."""
    return "\n\n".join([f"# {title}", *(f"::: {home_of(module, name)}" for name in names)]) + "\n"


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
