"""Published sets of labelled pairs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from embedkit.errors import DataError
from embedkit.evaluation.hub import HubDataset
from embedkit.evaluation.pair_sources import collect_labelled, read_headless
from embedkit.evaluation.pairs import PairTask
from embedkit.evaluation.rows import Row, read_rows
from embedkit.evaluation.shelf import Conventions, Entry, Shelf
from embedkit.evaluation.tasks import Task

__all__ = ["PAIR_TASKS"]

_GLUE = HubDataset("nyu-mll/glue", "bcdcba79d07bc864c1c254ccfcedcce55bcc9a8c")


class _Set(NamedTuple):
    """A published set: its folder names, its file names in them, and its location on the hub."""

    what: str
    rows: int
    headline: str
    folders: tuple[str, ...]
    files: tuple[str, ...]
    hub: HubDataset | None = None
    configuration: str | None = None
    split: str = "test"
    read: Callable[[Path], Iterator[Row]] = read_rows


def _mteb(what: str, rows: int, name: str, revision: str) -> _Set:
    id_ = f"{name}-pairclassification"
    return _Set(what, rows, "ap", (id_, name), _MTEB_FILES, HubDataset(f"mteb/{id_}", revision))


_MTEB_FILES = ("test.jsonl.gz", "test.jsonl", "data/test-00000-of-00001.parquet")
_MRPC = ("mrpc", "MRPC", "MSRParaphraseCorpus")

_SETS = {
    "qqp": _Set("duplicate questions on Quora", 10000, "auc", ("qqp", "QQP"), ("test.tsv",), read=read_headless),
    "qqp-dev": _Set("development part of qqp", 10000, "auc", ("qqp", "QQP"), ("dev.tsv",), read=read_headless),
    "qnli": _Set(
        "does a sentence answer a question? GLUE's development part",
        5463, "auc", ("qnli", "QNLI"), ("dev.tsv",), _GLUE, "qnli", "validation",
    ),
    "mrpc": _Set(
        "paraphrases in news", 1725, "auc", _MRPC, ("msr-para-test.tsv", "msr_paraphrase_test.txt"), _GLUE, "mrpc",
    ),
    "mrpc-dev": _Set("development part of mrpc", 500, "auc", _MRPC, ("msr-para-val.tsv",)),
    "twitter-semeval": _mteb(
        "paraphrases in tweets", 16777, "twittersemeval2015", "70970daeab8776df92f5ea462b6173c0b46fd2d1"
    ),
    "twitter-url": _mteb(
        "tweets that share a link", 51534, "twitterurlcorpus", "8b6510b0b1fa4e4c4f879467980e9be563ec1cdf"
    ),
    "sprint": _mteb(
        "duplicate questions of Sprint",
        101000, "sprintduplicatequestions", "d66bd1f72af766a5cc4b0ca5e00c162f89e8cc46",
    ),
}  # fmt: skip


def _load(name: str, shelf: Shelf, _: Conventions) -> Task:
    wanted = _SETS[name]
    source = shelf.find(*wanted.folders, hub=wanted.hub)
    if isinstance(source, HubDataset):
        rows = source.rows(configuration=wanted.configuration, split=wanted.split)
    else:
        rows = wanted.read(_file(source, wanted.files))
    pairs = collect_labelled(name, rows)
    broken = sum("\N{REPLACEMENT CHARACTER}" in a + b for a, b in zip(pairs.first, pairs.second, strict=True))
    notes = [f"{broken:,} pairs contain unreadable characters"] if broken else []
    return PairTask(name, pairs, wanted.headline, str(source), wanted.rows, notes)


def _file(folder: Path, names: tuple[str, ...]) -> Path:
    found = next((folder / name for name in names if (folder / name).is_file()), None)
    if found is None:
        raise DataError(f"{folder} has no {' or '.join(names)}")
    return found


PAIR_TASKS: dict[str, Entry] = {
    name: Entry(each.what, f"{each.rows:,} pairs", partial(_load, name), each.hub) for name, each in _SETS.items()
}
