"""Whether windows of Markdown are found better with the path of their sections: mean reciprocal rank.

`questions.tsv` holds thirty questions about this project's documentation, each with the section that answers it. A
question scores the inverse of the rank of the first window of that section, 0 beyond the tenth.

    python benchmarks/headings/measure.py [MODEL]
"""

from __future__ import annotations

import csv
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from embedkit import Collection, CrossEncoder, Encoder
from embedkit.serving.retrieval import documents
from embedkit.serving.retrieval.splitting import split_documents

HERE = Path(__file__).parent
DOCS = HERE.parent.parent / "docs"
DEPTH = 10

FORMS: dict[str, Callable[[str, str], str]] = {
    "text alone": lambda _, text: text,
    "headings, a line": lambda heading, text: f"{heading}\n{text}",
    "headings, a paragraph": lambda heading, text: f"{heading}\n\n{text}",
    "headings, a colon": lambda heading, text: f"{heading}: {text}",
    "text, then headings": lambda heading, text: f"{text}\n\n{heading}",
}


def main() -> None:
    """Print the table."""
    encoder = Encoder.load(sys.argv[1] if len(sys.argv) > 1 else "tiny")
    reranker = CrossEncoder.load("reranker-tiny")
    searches: dict[str, dict[str, Any]] = {
        "dense": {"mode": "dense"},
        "keywords": {"mode": "lexical"},
        "hybrid": {},
        "hybrid, re-ranked": {"rerank": reranker},
    }
    print("| embedded, indexed and re-ranked |", " | ".join(searches), "|")
    print("|---|" + "---:|" * len(searches))
    for name, form in FORMS.items():
        cells = [f"{mean_reciprocal_rank(encoder, form, options):.3f}" for options in searches.values()]
        print(f"| {name} |", " | ".join(cells), "|")


def mean_reciprocal_rank(encoder: Encoder, form: Callable[[str, str], str], options: dict[str, Any]) -> float:
    """Build a collection in which windows have a form, and return the score of all questions."""
    with tempfile.TemporaryDirectory() as folder, written_as(form):
        collection = Collection.build(
            split_documents(DOCS, encoder), encoder=encoder, path=folder, lexical=True, show_progress_bar=False
        )
        with (HERE / "questions.tsv").open(newline="", encoding="utf-8") as file:
            questions = list(csv.DictReader(file, delimiter="\t"))
        return sum(reciprocal_rank(collection, question, options) for question in questions) / len(questions)


def reciprocal_rank(collection: Collection, question: dict[str, str], options: dict[str, Any]) -> float:
    """Return the score of one question."""
    hits = collection.search(question["question"], DEPTH, **options)
    for rank, hit in enumerate(hits, 1):
        about = hit.metadata or {}
        is_section = question["section"] in about["section"].split(" > ")
        if about["document"] == question["document"] and is_section:
            return 1 / rank
    return 0.0


def written_as(form: Callable[[str, str], str]) -> Any:
    """Change what is embedded, indexed and re-ranked."""

    def content(document: documents.Document) -> str:
        heading = documents.heading_of(document.metadata or {})
        return form(heading, document.text) if heading else document.text

    return mock.patch.object(documents.Document, "content", property(content))


if __name__ == "__main__":
    main()
