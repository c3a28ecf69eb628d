"""`embedkit search`: the documents of a collection nearest to a query."""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import shutil
import sys
import unicodedata
from typing import TYPE_CHECKING, Any, Final

from embedkit.cli.options import COLLECTION

if TYPE_CHECKING:
    from embedkit.serving.retrieval.search import Hit, Hits

logger = logging.getLogger("embedkit")

_SHOWN: Final = frozenset({"title", "section", "document", "start", "end"})

HELP = "search a collection for the documents that answer a query"
EXAMPLES = """
embedkit search idx/ "how do bees find their way home?" -k 5
embedkit search idx/ "refund after 30 days" --rerank reranker.onnx --filter "lang = en, year >= 2020"
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("collection", metavar="IDX", help=COLLECTION)
    parser.add_argument("query", help="text to search for")
    add_search_options(parser)
    parser.add_argument("-m", "--model", help="the model that embeds queries, if it has moved, or a student of it")


def add_search_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a search; :class:`SearchOptions` defines and checks them."""
    parser.add_argument("-k", type=int, default=10, help="number of results; default: 10")
    parser.add_argument(
        "--mode",
        choices=("hybrid", "dense", "lexical"),
        help="rank by meaning (dense), by keywords (lexical) or by both; default: both if there are keywords",
    )
    parser.add_argument(
        "--filter",
        metavar="FILTER",
        help="""conditions on the metadata: "lang = en, year >= 2020", or as JSON {"tag": {"in": ["a", "b"]}}""",
    )
    parser.add_argument(
        "--rerank", metavar="MODEL", help="a cross-encoder, or another encoder, that orders the candidates"
    )
    parser.add_argument(
        "--rerank-weight",
        type=float,
        metavar="X",
        help="fixed weight of the re-ranker's scores, from 0 to 1; default: a document rises by the probability "
        "that it is an answer",
    )
    parser.add_argument(
        "--candidates",
        type=int,
        metavar="N",
        help="documents passed to the next stage; default: 50, 30 to re-rank",
    )
    parser.add_argument(
        "--effort",
        type=float,
        default=1.0,
        metavar="X",
        help="search breadth of an approximate index: 2 finds more and takes longer; default: 1",
    )


def run(arguments: argparse.Namespace) -> None:
    """Search; results go to stdout, times to stderr."""
    hits = _search(arguments)
    if arguments.json:
        ranked = [{"rank": rank, **dataclasses.asdict(hit)} for rank, hit in enumerate(hits, 1)]
        result = {
            "query": arguments.query,
            "hits": ranked,
            "latency_ms": hits.latency_ms,
            "warnings": hits.warnings,
        }
        print(json.dumps(result, ensure_ascii=False))
    else:
        for line in _table(
            hits, arguments.query, shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        ):
            print(line)
    for warning in hits.warnings:
        logger.warning("%s", warning)
    if not arguments.quiet:
        print(", ".join(f"{stage} {ms:.1f} ms" for stage, ms in hits.latency_ms.items()), file=sys.stderr)


def _search(arguments: argparse.Namespace) -> Hits:
    from embedkit.cli.options import load_model
    from embedkit.serving.retrieval.collection import Collection
    from embedkit.serving.retrieval.filters import read_filter

    hits: Hits = Collection.open(arguments.collection, queries=arguments.model).search(
        arguments.query,
        arguments.k,
        mode=arguments.mode,
        filter=None if arguments.filter is None else read_filter(arguments.filter),
        rerank=None if arguments.rerank is None else load_model(arguments.rerank),
        rerank_weight=arguments.rerank_weight,
        candidates=arguments.candidates,
        effort=arguments.effort,
    )
    return hits


def _table(hits: list[Hit], query: str, width: int | None) -> list[str]:
    """Format one line per hit: rank, score, id, section, and the passage of the text that matches the query.

    On a terminal of ``width`` columns, the passage follows on lines of its own, and then the other metadata.
    """
    from embedkit.serving.retrieval.documents import heading_of

    ids = [one_line(hit.id) for hit in hits]
    id_width, rank_width = max(map(_columns, ids), default=0), len(str(len(hits)))
    lines = []
    for rank, (hit, id_) in enumerate(zip(hits, ids, strict=True), 1):
        head = f"{rank:>{rank_width}}  {hit.score:7.4f}  {id_}{' ' * (id_width - _columns(id_))}"
        section, passage = one_line(heading_of(hit.metadata or {})), _passage(hit.text, query)
        if width is None:
            lines.append(f"{head}  {f'{section}: ' if section else ''}{passage}")
            continue
        indent = " " * (rank_width + 2)
        others = {name: value for name, value in (hit.metadata or {}).items() if name not in _SHOWN}
        lines.append(_cut(f"{head}  {section}".rstrip(), width))
        lines += [indent + line for line in _wrapped(passage, max(width - len(indent), 1))]
        if others:
            lines.append(_cut(indent + one_line(", ".join(map(_field, others.items()))), width))
    return lines


def _passage(text: str, query: str) -> str:
    from embedkit.serving.retrieval.passages import find_passage

    start, end = find_passage(text, query)
    return f"{'… ' * (start > 0)}{one_line(text[start:end])}{' …' * (end < len(text))}"


def _wrapped(text: str, width: int) -> list[str]:
    """Divide a text at spaces into lines; longer words are cut."""
    lines = [""]
    for word in text.split():
        if lines[-1] and _columns(lines[-1]) + 1 + _columns(word) > width:
            lines.append("")
        lines[-1] = _cut(f"{lines[-1]} {word}".lstrip(), width)
    return lines


def _field(item: tuple[str, Any]) -> str:
    name, value = item
    return f"{name}: {value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}"


def one_line(text: str) -> str:
    """Replace line breaks and control characters with spaces."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())


def _columns(text: str) -> int:
    """Return the width of a text on a terminal: two columns for wide letters, none for combining marks."""
    return sum(_letter_columns(letter) for letter in text)


def _letter_columns(letter: str) -> int:
    if unicodedata.category(letter) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1


def _cut(text: str, width: int) -> str:
    if _columns(text) <= width:
        return text
    used = 0
    for position, letter in enumerate(text):
        used += _letter_columns(letter)
        if used > width - 1:
            return text[:position] + "…"
    return text
