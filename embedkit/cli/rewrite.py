"""`embedkit rewrite`: from a file of texts to a corpus with two views per row."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from embedkit.training.rewriters import Rewriter

__all__ = ["EXAMPLES", "HELP", "configure", "run"]

HELP = "paraphrase texts, for training on pairs of views"
EXAMPLES = """
embedkit rewrite texts.txt -o pairs.tsv --masked-lm FacebookAI/roberta-base
embedkit rewrite texts.txt -o pairs.tsv --translate models/en-de models/de-en --translate models/en-fr models/fr-en
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "input", metavar="FILE", help="texts: .txt, .csv, .tsv, .jsonl (each also .gz or .xz), .parquet or hf://"
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        required=True,
        metavar="FILE",
        help="the pairs, a .tsv for `embedkit train`",
    )
    ways = parser.add_mutually_exclusive_group(required=True)
    ways.add_argument("--masked-lm", metavar="MODEL", help="refill masked word pieces: a model folder or a hub id")
    ways.add_argument(
        "--translate",
        nargs=2,
        action="append",
        metavar=("THERE", "BACK"),
        help="back-translate; given twice, each view goes through a different language",
    )
    ways.add_argument(
        "--synonyms", metavar="FOLDER", help="replace words by synonyms: the folder with WordNet's data.noun"
    )
    parser.add_argument(
        "--share",
        type=float,
        metavar="S",
        help="share of masked word pieces (default: 0.2) or of replaced words (default: one word)",
    )
    parser.add_argument(
        "--beams", type=int, default=4, metavar="N", help="beams of the translation (default: %(default)s)"
    )
    parser.add_argument(
        "--max-length", type=int, default=128, metavar="L", help="maximum length in tokens (default: %(default)s)"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="seed for positions and synonyms (default: %(default)s)"
    )
    parser.add_argument("--device", default="cpu", help="a torch device (default: %(default)s)")
    parser.add_argument("--text-column", metavar="NAME", help="column or key of the texts")
    parser.add_argument("--limit", type=int, metavar="N", help="read at most this many rows")
    parser.add_argument(
        "--cache",
        type=Path,
        default=Path(".embedkit-cache"),
        metavar="DIR",
        help="cache of rewritten texts (default: %(default)s)",
    )


def run(arguments: argparse.Namespace) -> None:
    """Rewrite every text once, and print statistics."""
    from embedkit.errors import InputError
    from embedkit.training.corpus import Corpus, SourceConfig
    from embedkit.training.rewriting import write_pairs

    if arguments.output.suffix != ".tsv":
        raise InputError(f"expected an output that ends in .tsv, got {arguments.output}")
    rewriters = _rewriters(arguments)
    show = False if arguments.quiet else None
    source = SourceConfig(path=arguments.input, text_column=arguments.text_column, limit=arguments.limit)
    corpus = Corpus.prepare([source], arguments.cache, show_progress=show)
    report = write_pairs(corpus, arguments.output, rewriters, arguments.cache, show_progress=show)
    if arguments.json:
        print(json.dumps({"output": str(arguments.output), **dataclasses.asdict(report)}))
        return
    figures = f"{report.rows:,} pairs, {report.unchanged:,} of them equal; {report.lost:,} texts lost"
    print(f"{arguments.output}: {figures}")


def _rewriters(arguments: argparse.Namespace) -> list[Rewriter]:
    from embedkit.training.rewriters import BackTranslation, MaskedRefill
    from embedkit.training.synonyms import SynonymReplacement
    from embedkit.training.wordnet import WordNet

    if arguments.synonyms is not None:
        wordnet = WordNet(arguments.synonyms)
        return [SynonymReplacement(wordnet, share=arguments.share or 0.0, seed=arguments.seed)]
    shared = {"max_length": arguments.max_length, "device": arguments.device}
    if arguments.masked_lm is not None:
        share = 0.2 if arguments.share is None else arguments.share
        return [MaskedRefill(arguments.masked_lm, share=share, seed=arguments.seed, **shared)]
    return [BackTranslation(*ways, beams=arguments.beams, **shared) for ways in arguments.translate]
