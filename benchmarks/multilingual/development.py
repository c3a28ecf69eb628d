"""What multilingual models are chosen by: development pairs of STS-B, and translated news.

    python benchmarks/multilingual/development.py --data DIR multilingual.onnx [...]

DIR holds `sts/stsb-multi-mt` and `multilingual/eval/ntrex`. Models are bundles or names of bundles, and read plain
texts. Printed are, times 100:

* STS: Spearman's correlation on the development sets in German, Spanish and French.
* translations: share of the first 600 sentences whose nearest neighbour is their English, and the other way, in
  languages with text, with translated manuals only, and with neither.
* passages: mean reciprocal rank of six sentences of a document, by one of the three sentences before them.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from embedkit import Encoder
from embedkit.evaluation.sts import load_scored_pairs, spearman
from embedkit.records import read_lines

SIMILAR = ("de", "es", "fr")
TRANSLATED = ("deu", "hin", "jpn", "pol", "arb", "vie", "ben", "kor", "rus", "heb", "tha")
SEARCHED = ("eng", "deu", "spa", "ron", "vie", "tha", "arb", "zho-CN")
SENTENCES = 600
QUERIES, PASSAGE = 3, 6


def similarity(encoder: Encoder, folder: Path) -> dict[str, float]:
    """Return the correlation of cosines and scores for each language."""
    scores: dict[str, float] = {}
    for language in SIMILAR:
        pairs = load_scored_pairs(folder / f"stsb-{language}-dev.csv")
        first, second = encoder.encode(pairs.first), encoder.encode(pairs.second)
        scores[language] = spearman((first * second).sum(axis=1), pairs.scores)
    return scores


def translations(encoder: Encoder, news: Mapping[str, Sequence[str]]) -> dict[str, float]:
    """Return the share of translations found, the mean of both directions, for each language."""
    english = encoder.encode(news["eng"][:SENTENCES])
    scores: dict[str, float] = {}
    for language in TRANSLATED:
        cosines = encoder.encode(news[language][:SENTENCES]) @ english.T
        own = np.arange(len(cosines))
        scores[language] = float(np.mean([(cosines.argmax(axis=side) == own).mean() for side in (0, 1)]))
    return scores


def passages(
    encoder: Encoder, news: Mapping[str, Sequence[str]], documents: Sequence[Sequence[int]]
) -> dict[str, float]:
    """Return the mean reciprocal rank of the passage that follows a sentence, for each language."""
    scores: dict[str, float] = {}
    for language in SEARCHED:
        lines, texts, queries, own = news[language], [], [], []
        for number, rows in enumerate(documents):
            half = len(rows) // 2
            texts.append(" ".join(lines[row] for row in rows[half : half + PASSAGE]))
            queries += [lines[row] for row in rows[: min(half, QUERIES)]]
            own += [number] * min(half, QUERIES)
        cosines = encoder.encode(queries) @ encoder.encode(texts).T
        ranks = (cosines >= cosines[np.arange(len(own)), own, None]).sum(axis=1)
        scores[language] = float((1 / ranks).mean())
    return scores


def main() -> None:
    """Print the scores of each model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR")
    parser.add_argument("models", nargs="+", metavar="MODEL")
    options = parser.parse_args()
    folder = options.data / "multilingual/eval/ntrex"
    languages = {*TRANSLATED, *SEARCHED}
    news = {language: [line for _, line in read_lines(folder / f"{language}.txt")] for language in languages}
    by_document: dict[str, list[int]] = defaultdict(list)
    for row, (_, line) in enumerate(read_lines(folder / "DOCUMENT_IDS.tsv")):
        by_document[line.split("\t")[-1]].append(row)
    documents = [rows for rows in by_document.values() if len(rows) >= PASSAGE]
    for model in options.models:
        encoder = Encoder.load(model)
        for name, scores in {
            "STS": similarity(encoder, options.data / "sts/stsb-multi-mt"),
            "translations": translations(encoder, news),
            "passages": passages(encoder, news, documents),
        }.items():
            values = {**scores, "mean": float(np.mean([*scores.values()]))}
            print(model, name, ", ".join(f"{language} {100 * value:.1f}" for language, value in values.items()))


if __name__ == "__main__":
    main()
