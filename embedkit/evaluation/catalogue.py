"""The evaluation tasks by name, and where their data is found."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from embedkit.errors import DataError, InputError
from embedkit.evaluation.hub import HubDataset
from embedkit.evaluation.reranking import Rule, merged, stable, trec_eval, trec_eval_1000
from embedkit.evaluation.reranking_sources import has_tables, load_lists, load_tables
from embedkit.evaluation.rows import RECORD_SUFFIXES, plain_suffix, read_rows
from embedkit.evaluation.sources import load_scored_pairs, locate
from embedkit.evaluation.sts_sources import STS_YEARS, StsSet, load_sick, load_stsb, load_year
from embedkit.evaluation.tasks import RankingTest, RerankingTask, StsTask, Task
from embedkit.evaluation.useb import (
    has_askubuntu,
    has_scidocs,
    load_askubuntu,
    load_askubuntu_pooled,
    load_scidocs,
)

__all__ = ["CONVENTIONS", "TASKS", "load_task"]

CONVENTIONS = ("useb", "mteb")

Source = Path | HubDataset
Tests = Mapping[str, Callable[[], RankingTest]]
"""Convention -> what loads its test."""

_LIST_RULES: dict[str, Rule] = {"map": merged, "map_at_1000": trec_eval_1000}
_TABLE_RULES: dict[str, Rule] = {"map_at_1000": trec_eval_1000}

_ASKUBUNTU = ("askubuntu", "AskUbuntu", "askubuntu-master")
_ASKUBUNTU_MTEB = ("askubuntudupquestions-reranking", "AskUbuntuDupQuestions", "askubuntu.jsonl")
_SCIDOCS = ("scidocs", "SciDocs")
_SCIDOCS_MTEB = ("scidocs-reranking", "SciDocsRR", "scidocs.jsonl")


def load_task(name: str, *, data: str | Path | None = None, convention: str | None = None) -> Task:
    """Load the data of a task.

    Args:
        name: a name in :data:`TASKS`, with ``@revision`` to pin the hub's data set; or a set of one's own,
            a file, folder or hub id of scored pairs or re-ranking, told apart by their columns.
        data: the folder in which named sets are looked for; without it they come from the hub.
        convention: of re-ranking, ``"useb"`` or ``"mteb"``; None is every one that the data allow.

    Raises:
        DataError: the data is missing or malformed, or does not allow the convention.
        InputError: there is no such task or convention.
        MissingExtraError: the hub or a Parquet file without the extra ``bench``.
    """
    if convention is not None and convention not in CONVENTIONS:
        raise InputError(f"expected one of the conventions {', '.join(CONVENTIONS)}, got {convention!r}")
    folder = None if data is None else Path(data).expanduser()
    if folder is not None and not folder.is_dir():
        raise DataError(f"there is no data folder {folder}")
    conventions = CONVENTIONS if convention is None else (convention,)
    known, _, revision = name.partition("@")
    if known not in TASKS:
        return _own_task(_own_source(name, folder), conventions)
    if revision and (folder is not None or known == "sts"):
        raise InputError(f"{name!r}: a revision pins one data set on the hub, not a folder and not several sets")
    return TASKS[known](_Shelf(folder, revision or None), conventions)


@dataclass(frozen=True)
class _Shelf:
    """Where the sets of named tasks are: in a folder or, without one, on the hub."""

    folder: Path | None
    revision: str | None = None

    _PLACES = ("", "sts", "STS", "rerank", "downstream", "downstream/STS", "data-eval")
    """Sub-folders that hold sets: of a data folder of one's own, of SentEval's, of USEB's."""

    def find(self, *names: str, hub_id: str | None = None) -> Source:
        """The first of ``names`` in the folder; without a folder the hub's data set."""
        if self.folder is not None:
            places = (self.folder / place / name for place in self._PLACES for name in names)
            found = next((place for place in places if place.exists()), None)
            if found is None:
                raise DataError(f"{self.folder} has no {' or '.join(names)}")
            return found
        if hub_id is None:
            raise DataError(f"{names[0]} is not on the hub: a data folder must have it")
        return HubDataset(hub_id, self.revision)


# Sets of scored pairs


def _year(name: str, shelf: _Shelf) -> StsSet:
    return load_year(name, shelf.find(f"{name.upper()}-en-test", hub_id=f"mteb/{name}-sts"))


def _stsb(split: str, shelf: _Shelf) -> StsSet:
    return load_stsb(shelf.find("STSBenchmark", hub_id="mteb/stsbenchmark-sts"), split)


def _sick(split: str, shelf: _Shelf) -> StsSet:
    return load_sick(shelf.find("SICK", hub_id="mteb/sickr-sts" if split == "test" else None), split)


_SEVEN: dict[str, Callable[[_Shelf], StsSet]] = {
    **{name: partial(_year, name) for name in STS_YEARS},
    "stsb": partial(_stsb, "test"),
    "sickr": partial(_sick, "test"),
}


def _sts(shelf: _Shelf, _: tuple[str, ...]) -> Task:
    """The seven sets of the papers, those that are there."""
    sets, missing = [], {}
    for name, load in _SEVEN.items():
        try:
            sets.append(load(shelf))
        except DataError as error:
            missing[name] = str(error)
    if not sets:
        raise DataError("none of the seven STS sets can be loaded: " + "; ".join(missing.values()))
    return StsTask("sts", sets, average_of=len(_SEVEN), missing=missing)


def _one_set(load: Callable[[_Shelf], StsSet], shelf: _Shelf, _: tuple[str, ...]) -> Task:
    sts = load(shelf)
    return StsTask(sts.name, [sts])


# Re-ranking


def _askubuntu(shelf: _Shelf, conventions: tuple[str, ...]) -> Task:
    source = shelf.find(*_ASKUBUNTU, *_ASKUBUNTU_MTEB, hub_id="mteb/askubuntudupquestions-reranking")
    tests: Tests = {"mteb": partial(_mteb_test, "askubuntu", source, 361)}
    if isinstance(source, Path) and has_askubuntu(source):
        tests = {
            "useb": partial(_askubuntu_test, source, "test", 186),
            "mteb": partial(_askubuntu_pooled_test, source, 361),
        }
    return _reranking("askubuntu", source, tests, conventions)


def _askubuntu_dev(shelf: _Shelf, conventions: tuple[str, ...]) -> Task:
    source = shelf.find(*_ASKUBUNTU)
    tests: Tests = {"useb": partial(_askubuntu_test, Path(str(source)), "dev", 189)}
    return _reranking("askubuntu-dev", source, tests, conventions)


def _scidocs(shelf: _Shelf, conventions: tuple[str, ...]) -> Task:
    source = shelf.find(*_SCIDOCS, *_SCIDOCS_MTEB, hub_id="mteb/scidocs-reranking")
    tests: Tests = {"mteb": partial(_mteb_test, "scidocs", source, 3978)}
    if isinstance(source, Path) and has_scidocs(source):
        tests = {"useb": partial(_scidocs_test, source)}
    return _reranking("scidocs", source, tests, conventions)


def _reranking(name: str, source: Source, tests: Tests, conventions: tuple[str, ...]) -> Task:
    """A task of those tests that are wanted, loaded now."""
    wanted = [load() for convention, load in tests.items() if convention in conventions]
    if not wanted:
        raise DataError(f"{source} allows the convention {' or '.join(tests)} only")
    return RerankingTask(name, wanted)


def _askubuntu_test(folder: Path, split: str, expected: int) -> RankingTest:
    return RankingTest("useb", [load_askubuntu(folder, split)], {"map": stable}, str(folder), expected)


def _askubuntu_pooled_test(folder: Path, expected: int) -> RankingTest:
    return RankingTest("mteb", [load_askubuntu_pooled(folder)], _LIST_RULES, str(folder), expected)


def _scidocs_test(folder: Path) -> RankingTest:
    return RankingTest("useb", load_scidocs(folder), {"map": trec_eval}, str(folder))


def _mteb_test(name: str, source: Source, expected: int | None) -> RankingTest:
    if has_tables(source):
        return RankingTest("mteb", [load_tables(source, name=name)], _TABLE_RULES, str(source), expected)
    return RankingTest("mteb", [load_lists(source, name=name)], _LIST_RULES, str(source), expected)


# Sets of one's own


def _own_source(name: str, folder: Path | None) -> Source:
    """A path, a file's name in the data folder with or without ``.jsonl``, or a hub id."""
    if folder is not None and not Path(name).expanduser().exists():
        try:
            return _Shelf(folder).find(name, f"{name}.jsonl")
        except DataError:
            pass  # then it may be a hub id
    if "/" not in name and not Path(name).exists() and not plain_suffix(Path(name)):
        near = difflib.get_close_matches(name, TASKS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"the tasks are {', '.join(TASKS)}, a file or a hub id"
        raise InputError(f"there is no task {name!r}; {hint}")
    return locate(name)


def _own_task(source: Source, conventions: tuple[str, ...]) -> Task:
    name = source.id if isinstance(source, HubDataset) else source.name.partition(".")[0]
    if _is_reranking(source):
        return _reranking(name, source, {"mteb": partial(_mteb_test, name, source, None)}, conventions)
    return StsTask(name, [StsSet(name, [load_scored_pairs(source, name=name)], {}, str(source))])


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


TASKS: dict[str, Callable[[_Shelf, tuple[str, ...]], Task]] = {
    "sts": _sts,
    **{name: partial(_one_set, load) for name, load in _SEVEN.items()},
    "stsb-dev": partial(_one_set, partial(_stsb, "dev")),
    "sick-trial": partial(_one_set, partial(_sick, "trial")),
    "askubuntu": _askubuntu,
    "askubuntu-dev": _askubuntu_dev,
    "scidocs": _scidocs,
}
"""Task by name: called with where to look and the conventions wanted."""
