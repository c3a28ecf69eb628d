"""`embedkit cluster`: groups or pairs of similar texts."""

from __future__ import annotations

import argparse
import csv
import json
import math
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, TextIO

from embedkit.cli.options import check_apart, check_form, explicit, refuse_unused
from embedkit.cli.rows import SpooledRows, compared, configure_input, counted, lines_to, report
from embedkit.errors import DataError

_GROUP_COLUMNS: Final = ("group", "name", "row", "score")
_WORD: Final = re.compile(r"[^\W\d_]{2,}")
_WORDS: Final = 3
_LEAST_SHARE: Final = 0.3  # of a group's texts have each word of its name

HELP = "group similar texts, or list the most similar pairs"
EXAMPLES = """
embedkit cluster tickets.csv -m tiny --text-column subject -o groups.csv --threshold 0.8 --min-size 5
embedkit cluster tickets.csv -m tiny --text-column subject --pairs --threshold 0.9 -o pairs.jsonl
"""


def configure(parser: argparse.ArgumentParser) -> None:
    configure_input(parser)
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help=".jsonl: a group a line, the largest first, or with --pairs a pair a line, the most similar first; "
        ".csv: a text a line with its group and all its columns, or a pair; default: .jsonl on standard output",
    )
    parser.add_argument(
        "--threshold",
        type=float,
        default=0.75,
        metavar="COSINE",
        help="minimum cosine with a group's representative, or of a pair (default: %(default)s)",
    )
    parser.add_argument(
        "--min-size", type=int, metavar="N", help="minimum number of texts in a group (default: 2)"
    )
    parser.add_argument("--pairs", action="store_true", help="write pairs instead of groups")
    parser.add_argument(
        "--max-pairs", type=int, metavar="N", help="with --pairs: maximum number of pairs (default: 1000000)"
    )


def run(arguments: argparse.Namespace) -> None:
    """Find and write groups or pairs; a summary goes to stdout, or to stderr beside the groups."""
    check_form(arguments.output, ".jsonl", ".csv")
    check_apart(arguments.output, arguments.input, "output", "input")
    if arguments.pairs:
        refuse_unused(arguments, "with --pairs", "min_size")
    else:
        refuse_unused(arguments, "without --pairs", "max_pairs")
    form = ".jsonl" if arguments.output is None else arguments.output.suffix
    started = time.perf_counter()
    with SpooledRows(arguments, rewritten=not arguments.pairs, form=form) as rows:
        found = list((_pairs if arguments.pairs else _groups)(arguments, rows))
        with lines_to(arguments.output) as file:
            if form == ".csv":
                _write_table(file, _pair_rows(found) if arguments.pairs else _group_rows(found, rows))
            else:
                file.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in found)
        read = len(rows)
    _report(arguments, read, len(found), time.perf_counter() - started)


def _groups(arguments: argparse.Namespace, rows: SpooledRows) -> Iterator[dict[str, Any]]:
    from embedkit.serving.retrieval.similar import cluster

    groups = cluster(**explicit(arguments, "min_size"), **compared(arguments, rows))
    members = groups.members()
    for name, chosen in zip(name_groups(members, len(rows), rows.text), members, strict=True):
        group = {
            "name": name,
            "rows": [rows.numbers[row] for row in chosen],
            "scores": [float(str(groups.scores[row])) for row in chosen],
            "texts": [rows.text(row) for row in chosen],
        }
        yield group if len(rows.columns) < 2 else {**group, "records": [rows[row] for row in chosen]}


def _group_rows(groups: list[dict[str, Any]], rows: SpooledRows) -> Iterator[dict[str, Any]]:
    """Yield a row for each text in a group, with all its columns."""
    if taken := [name for name in _GROUP_COLUMNS if name in rows.columns]:
        raise DataError(f"the columns {', '.join(_GROUP_COLUMNS)} are added; rename {', '.join(taken)}")
    for number, group in enumerate(groups, 1):
        records = group.get("records") or [{rows.columns[0]: text} for text in group["texts"]]
        for row, score, record in zip(group["rows"], group["scores"], records, strict=True):
            yield dict(zip(_GROUP_COLUMNS, (number, group["name"], row, score), strict=True)) | record


def _pair_rows(pairs: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for pair in pairs:
        (row, other), (text, other_text) = pair["rows"], pair["texts"]
        yield {"score": pair["score"], "row": row, "other": other, "text": text, "other_text": other_text}


def _write_table(file: TextIO, rows: Iterator[dict[str, Any]]) -> None:
    writer = None
    for row in rows:
        if writer is None:
            writer = csv.DictWriter(file, row, lineterminator="\n")
            writer.writeheader()
        writer.writerow(row)


def _pairs(arguments: argparse.Namespace, rows: SpooledRows) -> Iterator[dict[str, Any]]:
    from embedkit.serving.retrieval.similar import similar_pairs

    pairs = similar_pairs(**explicit(arguments, "max_pairs"), **compared(arguments, rows))
    return (
        {
            "score": float(str(score)),
            "rows": [rows.numbers[row] for row in pair],
            "texts": [rows.text(row) for row in pair],
        }
        for score, pair in zip(pairs.scores, pairs.rows.tolist(), strict=True)
    )


def _report(arguments: argparse.Namespace, rows: int, clusters: int, seconds: float) -> None:
    kind = "pair" if arguments.pairs else "group"
    result = {
        "rows": rows,
        f"{kind}s": clusters,
        "threshold": arguments.threshold,
        "seconds": round(seconds, 3),
    }
    sentence = (
        f"{arguments.output or 'found'}: {counted(clusters, kind)} in {counted(rows, 'row')}, {seconds:,.1f} s"
    )
    report(arguments, result, sentence)


def name_groups(groups: Iterable[Sequence[int]], count: int, text: Callable[[int], str]) -> list[str]:
    """Name groups by up to three words each.

    A word counts once in a text. With the share p of a group's texts and the share q of all texts with a word,
    words are chosen by p log(p / q), their part of the Kullback-Leibler divergence.

    Args:
        groups: the rows of each group.
        count: number of all texts.
        text: returns the text of a row.

    Returns:
        words separated by commas, the most telling first; "" where no word occurs often enough.
    """
    total = Counter(word for row in range(count) for word in _words(text(row)))
    names = []
    for rows in groups:
        found = Counter(word for row in rows for word in _words(text(row)))
        names.append(", ".join(_telling(found, len(rows), total, count)))
    return names


def _words(text: str) -> set[str]:
    return set(_WORD.findall(text.casefold()))


def _telling(found: Counter[str], size: int, total: Counter[str], count: int) -> list[str]:
    shares = {word: number / size for word, number in found.items() if number >= _LEAST_SHARE * size}
    scores = {word: share * math.log(share * count / total[word]) for word, share in shares.items()}
    return sorted(scores, key=lambda word: (-scores[word], word))[:_WORDS]
