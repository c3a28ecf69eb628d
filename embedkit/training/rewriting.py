"""Pairs of texts that mean the same, made by networks: a corpus of one column becomes one of two views."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

from embedkit.atomic import atomic_file
from embedkit.errors import InputError
from embedkit.progress import Progress
from embedkit.training.corpus import Corpus, normalise
from embedkit.training.rewriters import Rewriter
from embedkit.training.text_cache import TextCache

__all__ = ["PairsReport", "write_pairs"]

_CHUNK = 256


@dataclasses.dataclass(frozen=True)
class PairsReport:
    """What became of the texts.

    Attributes:
        rows: pairs written.
        unchanged: pairs among them whose views are equal.
        lost: texts left out because a rewriter made nothing of them.
    """

    rows: int
    unchanged: int
    lost: int


def write_pairs(
    corpus: Corpus, output: Path, rewriters: Sequence[Rewriter], cache: Path, *, show_progress: bool | None = None
) -> PairsReport:
    """Write a ``.tsv`` of two views a row, which is a corpus like any other.

    With one rewriter the first view is the text itself (BSL's synonym and masked-LM views); with two, each
    view is what one of them made of it (back-translation through two languages). What was computed
    before, by this or an interrupted call, is taken from the cache.

    Args:
        corpus: whose first column is rewritten.
        output: the file; it appears whole.
        rewriters: one or two.
        cache: folder of the texts that were rewritten.
        show_progress: see :class:`~embedkit.progress.Progress`.

    Raises:
        InputError: there are no rewriters, or more than two.
        CacheError: the cache is damaged.
        StorageError: output or cache cannot be written.
    """
    if len(rewriters) not in (1, 2):
        raise InputError(f"a row has two views, so one or two rewriters make it, not {len(rewriters)}")
    caches = [TextCache(cache, fingerprint=rewriter.fingerprint) for rewriter in rewriters]
    rows = unchanged = lost = 0
    with (
        Progress("rewrite", len(corpus), unit="texts", enabled=show_progress) as progress,
        atomic_file(output) as temporary,
        temporary.open("w", encoding="utf-8", newline="\n") as file,
    ):
        for texts in _chunks(corpus):
            views = [_rewrite(texts, *pair) for pair in zip(rewriters, caches, strict=True)]
            for first, second in zip(*[texts, *views][-2:], strict=True):
                if first and second:
                    file.write(f"{first}\t{second}\n")
                    rows, unchanged = rows + 1, unchanged + (first == second)
                else:
                    lost += 1
            progress.advance(len(texts))
    return PairsReport(rows, unchanged, lost)


def _chunks(corpus: Corpus) -> Iterator[list[str]]:
    for start in range(0, len(corpus), _CHUNK):
        yield corpus.texts(range(start, min(start + _CHUNK, len(corpus))))


def _rewrite(texts: list[str], rewriter: Rewriter, cache: TextCache) -> list[str]:
    """What a rewriter makes of the texts, normalised; only what the cache lacks is computed."""
    found = cache.find(texts)
    missing = list(dict.fromkeys(text for text, known in zip(texts, found, strict=True) if known is None))
    made = dict(zip(missing, map(normalise, rewriter.rewrite(missing)), strict=True)) if missing else {}
    cache.add(missing, list(made.values()))
    return [made[text] if known is None else known for text, known in zip(texts, found, strict=True)]
