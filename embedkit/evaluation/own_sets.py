"""Sets of one's own: found as a file, folder or hub id, and told apart by their columns."""

from __future__ import annotations

from pathlib import Path
from typing import TypeGuard

from embedkit.errors import DataError
from embedkit.evaluation.hub import HubDataset
from embedkit.evaluation.published.reranking import mteb_task
from embedkit.evaluation.retrieval_sources import load_retrieval
from embedkit.evaluation.retrieval_task import RetrievalTask
from embedkit.evaluation.rows import RECORD_SUFFIXES, plain_suffix, read_rows
from embedkit.evaluation.shelf import Conventions, Shelf, Source
from embedkit.evaluation.sources import load_scored_pairs, locate
from embedkit.evaluation.sts_sources import StsSet
from embedkit.evaluation.sts_task import StsTask
from embedkit.evaluation.tables import has_tables, has_top_ranked
from embedkit.evaluation.tasks import Task

__all__ = ["find_own", "load_own"]


def find_own(name: str, folder: Path | None) -> Source | None:
    """A path, a file's name in the data folder with or without ``.jsonl``, or a hub id; None if it is none."""
    if folder is not None and not Path(name).expanduser().exists():
        try:
            return Shelf(folder).find(name, f"{name}.jsonl")
        except DataError:
            pass  # then it may be a hub id
    if "/" not in name and not Path(name).exists() and not plain_suffix(Path(name)):
        return None
    return locate(name)


def load_own(source: Source, conventions: Conventions) -> Task:
    """Load a set, whatever it is.

    Raises:
        DataError: it is malformed, or of no known form; says what was found.
        MissingExtraError: the hub or a Parquet file without the extra ``bench``.
    """
    name = source.id if isinstance(source, HubDataset) else source.name.partition(".")[0]
    if _is_judgements(source):
        name = f"{source.parents[1].name}-{name}"
        return RetrievalTask(name, load_retrieval(source, name=name), str(source))
    if has_tables(source) and not has_top_ranked(source):
        return RetrievalTask(name, load_retrieval(source, name=name), str(source))
    if _is_reranking(source):
        return mteb_task(name, source, conventions)
    return StsTask(name, [StsSet(name, [load_scored_pairs(source, name=name)], {}, str(source))])


def _is_judgements(source: Source) -> TypeGuard[Path]:
    """Whether it is one split of the judgements of a corpus, ``FOLDER/qrels/dev.tsv`` say."""
    return (
        isinstance(source, Path)
        and source.is_file()
        and source.parent.name == "qrels"
        and has_tables(source.parents[1])
    )


def _is_reranking(source: Source) -> bool:
    """Whether a set has queries rather than pairs, by its tables or its first row."""
    if has_tables(source) or (isinstance(source, Path) and source.is_dir()):
        return True
    if isinstance(source, HubDataset):
        rows = source.rows()
    elif plain_suffix(source) in RECORD_SUFFIXES:
        rows = read_rows(source)
    else:
        return False
    return any("query" in row.fields for row in [next(rows, None)] if row is not None)
