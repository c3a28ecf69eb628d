"""Custom sets: given as a file, folder or hub id, and recognised by their columns."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import TypeGuard

from embedkit.errors import DataError
from embedkit.evaluation.hub import HubDataset
from embedkit.evaluation.pair_sources import FIRST as PAIR_FIRST
from embedkit.evaluation.pair_sources import LABEL, collect_labelled
from embedkit.evaluation.pair_sources import SECOND as PAIR_SECOND
from embedkit.evaluation.pairs import PairTask
from embedkit.evaluation.published.reranking import mteb_task
from embedkit.evaluation.retrieval_sources import collect_judgements, load_retrieval
from embedkit.evaluation.retrieval_task import RetrievalTask
from embedkit.evaluation.rows import Row, plain_suffix
from embedkit.evaluation.shelf import Conventions, Shelf, Source
from embedkit.evaluation.sources import FIRST, SCORE, SECOND, any_rows, collect_pairs, locate
from embedkit.evaluation.sts_sources import StsSet
from embedkit.evaluation.sts_task import StsTask
from embedkit.evaluation.tables import has_tables, has_top_ranked
from embedkit.evaluation.tasks import Task
from embedkit.evaluation.triplets import ANCHOR, TripletTask, collect_triplets

__all__ = ["find_own", "load_own"]


def find_own(name: str, folder: Path | None) -> Source | None:
    """Locate a path, a file in the data folder (with or without ``.jsonl``) or a hub id; None if neither."""
    if folder is not None and not Path(name).expanduser().exists():
        try:
            return Shelf(folder).find(name, f"{name}.jsonl")
        except DataError:
            pass  # it may be a hub id
    if "/" not in name and not Path(name).exists() and not plain_suffix(Path(name)):
        return None
    return locate(name)


def load_own(source: Source, conventions: Conventions) -> Task:
    """Load a set of any supported form.

    Raises:
        DataError: it is malformed, or its form is not recognised; the message lists the columns found.
        MissingExtraError: the hub or a Parquet file without the extra ``bench``.
    """
    name = source.id if isinstance(source, HubDataset) else source.name.partition(".")[0]
    if _is_judgements(source):
        name = f"{source.parents[1].name}-{name}"
        return RetrievalTask(name, load_retrieval(source, name=name), str(source))
    if has_tables(source) and not has_top_ranked(source):
        return RetrievalTask(name, load_retrieval(source, name=name), str(source))
    if has_tables(source) or (isinstance(source, Path) and source.is_dir()):
        return mteb_task(name, source, conventions)
    return _load_rows(name, source, conventions)


def _load_rows(name: str, source: Source, conventions: Conventions) -> Task:
    """Load a set whose first row determines its form."""
    rows = source.rows() if isinstance(source, HubDataset) else any_rows(source)
    first = next(rows, None)
    if first is None:
        raise DataError(f"{source}: expected rows, found none")
    rows = chain([first], rows)
    match _form(first):
        case "scored pairs":
            return StsTask(name, [StsSet(name, [collect_pairs(name, rows)], {}, str(source))])
        case "labelled pairs":
            return PairTask(name, collect_labelled(name, rows), "ap", str(source))
        case "re-ranking":
            return mteb_task(name, source, conventions)
        case "triplets":
            return TripletTask(name, collect_triplets(name, rows), str(source))
        case _:
            return RetrievalTask(name, collect_judgements(name, rows), str(source))


def _form(row: Row) -> str:
    """Return the form of a set, determined by the columns of its first row."""
    form = next((form for form, columns in _FORMS.items() if all(_has(row, names) for names in columns)), None)
    if form is None:
        expected = "; ".join(
            f"{', '.join(' or '.join(names[:2]) for names in columns)} ({form})"
            for form, columns in _FORMS.items()
        )
        raise DataError(
            f"{row.place}: found the columns {', '.join(map(str, row.fields)):.200}; expected {expected}"
        )
    if form == "triplets" and isinstance(row.fields["positive"], list):
        return "re-ranking"
    return form


def _has(row: Row, names: tuple[str, ...]) -> bool:
    return any(name in row.fields for name in names)


_FORMS = {
    "scored pairs": (FIRST, SECOND, SCORE),
    "labelled pairs": (PAIR_FIRST, PAIR_SECOND, LABEL),
    "triplets": (ANCHOR, ("positive",), ("negative",)),
    "judged documents": (("query",), ("document",), ("score",)),
}
"""Form -> the accepted names of each column; lists in ``positive`` make it re-ranking."""


def _is_judgements(source: Source) -> TypeGuard[Path]:
    """Whether the source is one split of a corpus's judgements, for example ``FOLDER/qrels/dev.tsv``."""
    return (
        isinstance(source, Path)
        and source.is_file()
        and source.parent.name == "qrels"
        and has_tables(source.parents[1])
    )
