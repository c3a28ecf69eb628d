"""Tokens that a text has with a smaller vocabulary, in proportion to the whole one, by language.

    python benchmarks/multilingual/vocabulary.py recipes/multilingual.toml recipes/multilingual-e5.toml --data DIR
        --teacher FOLDER

The pieces are chosen by the training text of the recipe, by the probabilities that the teacher's tokenizer holds,
and by mixtures of both (`student.vocabulary_smoothing`). DIR holds that text and `multilingual/eval/ntrex`, news
that nothing else here uses. Results go to vocabulary.md next to this file.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from embedkit.config import load_toml, merge
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.modeling.pruning import (
    Counts,
    Weights,
    choose_pieces,
    count_pieces,
    piece_probabilities,
    prune_tokenizer,
    smooth_counts,
)
from embedkit.progress import Progress
from embedkit.runtime.tokenization import Tokenizer
from embedkit.training.corpus import Corpus
from embedkit.training.recipes.run import resolve

HERE = Path(__file__).parent
CHUNK = 4096


def main() -> None:
    """Compare the choices."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", type=Path, nargs="+", help="files of the recipe")
    parser.add_argument("--data", type=Path, required=True, help="folder of training text and news")
    parser.add_argument("--teacher", required=True, help="folder of the teacher")
    parser.add_argument("--cache", type=Path, default=Path(".embedkit-cache"))
    parser.add_argument("--size", type=int, default=64_000, help="pieces to keep")
    parser.add_argument("--smoothing", type=float, nargs="+", default=[0.0, 0.2, 0.5, 1.0])
    parser.add_argument("--max-length", type=int, default=256, help="tokens of a text")
    arguments = parser.parse_args()
    tokenizer = SentenceEncoder.load(arguments.teacher, max_length=arguments.max_length).tokenizer
    news = {
        path.stem: path.read_text(encoding="utf-8").splitlines()
        for path in sorted((arguments.data / "multilingual" / "eval" / "ntrex").glob("*.txt"))
    }
    whole = _tokens(tokenizer, news)
    counts, probabilities = _counts(arguments, tokenizer), piece_probabilities(tokenizer)
    table = {}
    for smoothing in arguments.smoothing:
        weights = smooth_counts(counts, probabilities, smoothing)
        small = prune_tokenizer(tokenizer, choose_pieces(tokenizer, weights, arguments.size))
        table[smoothing] = _tokens(small, news) / whole
    text = describe(table, list(news), arguments.size)
    (HERE / "vocabulary.md").write_text(text, encoding="utf-8")
    print(text)


def _counts(arguments: argparse.Namespace, tokenizer: Tokenizer) -> Counts:
    """Count the pieces of the training text."""
    recipe = functools.reduce(merge, map(load_toml, arguments.recipe), {})
    config = resolve({**recipe, "data": str(arguments.data)})
    corpus = Corpus.prepare(config.sources, arguments.cache)
    with Progress("count", len(corpus), unit="texts") as progress:
        return count_pieces(tokenizer, _chunks(corpus, progress))


def _chunks(corpus: Corpus, progress: Progress) -> Iterator[list[str]]:
    for rows in np.array_split(np.arange(len(corpus)), -(-len(corpus) // CHUNK)):
        for view in range(corpus.views):
            yield corpus.texts(rows, view)
        progress.advance(len(rows))


def _tokens(tokenizer: Tokenizer, news: dict[str, list[str]]) -> Weights:
    return np.array([float(tokenizer.tokenize(texts).lengths.sum()) for texts in news.values()])


def describe(table: dict[float, Weights], languages: Sequence[str], size: int) -> str:
    """Return the table, a row for each language."""
    lines = [
        "# Tokens with a smaller vocabulary",
        "",
        f"Tokens of news with {size:,} pieces of the teacher's vocabulary, divided by those with all, by",
        "`vocabulary_smoothing`; 0 chooses by the training text alone, 1 by the tokenizer's probabilities alone:",
        "",
        f"| | {' | '.join(map(str, table))} |",
        "|---|" + "---:|" * len(table),
    ]
    for row, language in enumerate(languages):
        lines.append(f"| {language} | {' | '.join(f'{ratios[row]:.2f}' for ratios in table.values())} |")
    means = " | ".join(f"{ratios.mean():.2f}" for ratios in table.values())
    return "\n".join([*lines, f"| mean | {means} |"]) + "\n"


if __name__ == "__main__":
    main()
