"""Collections in one language and in several: which encoder finds more, with keywords and without.

    python benchmarks/search_quality/languages.py --data DATA/multilingual/eval/xquad

``DATA/multilingual/eval/xquad`` holds XQuAD in BEIR's form, a folder a language, with the same paragraphs in each.
A collection holds the paragraphs of its languages, every fifth question of each language is asked, and only the
paragraph in the language of the question counts; English and German are also asked of each other. A figure is
nDCG@10 x 100. Writes languages.md beside this file.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from embedkit import Collection, Encoder
from embedkit.evaluation.retrieval import load_retrieval

HERE = Path(__file__).parent
COLLECTIONS = (("en",), ("de",), ("es",), ("ro",), ("en", "de"), ("en", "de", "es", "ro"))
MODES = ("dense", "lexical", "hybrid")
ACROSS = (("en", "de"), ("de", "en"))  # paragraphs, questions
STEP = 5


def main() -> None:
    """Measure, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("encoders", nargs="*", default=["tiny", "multilingual"])
    parser.add_argument("--data", type=Path, required=True)
    arguments = parser.parse_args()
    lines = [
        "# Search in several languages",
        "",
        "nDCG@10 x 100 on XQuAD; a question counts as answered by the paragraph in its language.",
        "",
        "| encoder | paragraphs | questions | dense | keywords | hybrid |",
        "|---|---|---|---:|---:|---:|",
    ]
    for source in arguments.encoders:
        encoder = Encoder.load(source, threads=1)
        asked = [(languages, languages) for languages in COLLECTIONS] + [
            ((one,), (other,)) for one, other in ACROSS
        ]
        for languages, questions in asked:
            for language, figures in measure(encoder, languages, questions, arguments.data).items():
                cells = " | ".join(f"{figure:.1f}" for figure in figures)
                lines.append(f"| {encoder.name} | {', '.join(languages)} | {language} | {cells} |")
                print(lines[-1], flush=True)
    (HERE / "languages.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def measure(
    encoder: Encoder, languages: Sequence[str], questions: Sequence[str], data: Path
) -> dict[str, list[float]]:
    """Return the figures of each language's questions, by mode."""
    tasks = {
        language: load_retrieval(data / language, name=language, split="test")
        for language in {*languages, *questions}
    }
    documents = [
        (f"{language}-{key}", text) for language in languages for key, text in tasks[language].documents.items()
    ]
    figures: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "idx"
        collection = Collection.build(documents, encoder=encoder, path=path, show_progress_bar=False)
        for language in questions:
            answered = language if language in languages else languages[0]
            queries = tasks[language].queries[::STEP]
            for mode in MODES:
                hit_lists = collection.search([query.text for query in queries], mode=mode)
                gains = []
                for query, hits in zip(queries, hit_lists, strict=True):
                    relevant = {f"{answered}-{key}" for key, grade in query.relevance.items() if grade > 0}
                    place = next((place for place, hit in enumerate(hits) if hit.id in relevant), None)
                    gains.append(0.0 if place is None else 1 / np.log2(place + 2))
                figures.setdefault(language, []).append(100 * float(np.mean(gains)))
    return figures


if __name__ == "__main__":
    main()
