"""Published sets of candidates to re-rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from embedkit.errors import DataError
from embedkit.evaluation.hub import HubDataset
from embedkit.evaluation.reranking import Rule, merged, stable, trec_eval, trec_eval_1000
from embedkit.evaluation.reranking_sources import load_lists, load_tables
from embedkit.evaluation.reranking_task import RankingTest, RerankingTask
from embedkit.evaluation.shelf import Conventions, Entry, Shelf, Source
from embedkit.evaluation.tables import has_tables
from embedkit.evaluation.tasks import Task
from embedkit.evaluation.useb import (
    has_askubuntu,
    has_scidocs,
    load_askubuntu,
    load_askubuntu_pooled,
    load_scidocs,
)

__all__ = ["RERANKING_TASKS", "mteb_task"]

Tests = Mapping[str, Callable[[], RankingTest]]
"""Convention -> loader of its test."""

_LIST_RULES: dict[str, Rule] = {"map": merged, "map_at_1000": trec_eval_1000}
_TABLE_RULES: dict[str, Rule] = {"map_at_1000": trec_eval_1000}

_ASKUBUNTU = ("askubuntu", "AskUbuntu", "askubuntu-master")
_ASKUBUNTU_MTEB = ("askubuntudupquestions-reranking", "AskUbuntuDupQuestions", "askubuntu.jsonl")
_ASKUBUNTU_HUB = HubDataset("mteb/askubuntudupquestions-reranking", "2000358ca161889fa9c082cb41daa8dcfb161a54")
_SCIDOCS = ("scidocs", "SciDocs")
_SCIDOCS_MTEB = ("scidocs-reranking", "SciDocsRR", "scidocs.jsonl")
_SCIDOCS_HUB = HubDataset("mteb/scidocs-reranking", "d3c5e1fc0b855ab6097bf1cda04dd73947d7caab")


def mteb_task(name: str, source: Source, conventions: Conventions) -> Task:
    """Return a task for a custom set in MTEB's form.

    Raises:
        DataError: it is malformed, or MTEB's convention was not requested.
    """
    return _task(name, source, {"mteb": partial(_mteb_test, name, source, None)}, conventions)


def _askubuntu(shelf: Shelf, conventions: Conventions) -> Task:
    source = shelf.find(*_ASKUBUNTU, *_ASKUBUNTU_MTEB, hub=_ASKUBUNTU_HUB)
    tests: Tests = {"mteb": partial(_mteb_test, "askubuntu", source, 361)}
    if isinstance(source, Path) and has_askubuntu(source):
        tests = {
            "useb": partial(_askubuntu_test, source, "test", 186),
            "mteb": partial(_askubuntu_pooled_test, source, 361),
        }
    return _task("askubuntu", source, tests, conventions)


def _askubuntu_dev(shelf: Shelf, conventions: Conventions) -> Task:
    source = shelf.find(*_ASKUBUNTU)
    tests: Tests = {"useb": partial(_askubuntu_test, Path(str(source)), "dev", 189)}
    return _task("askubuntu-dev", source, tests, conventions)


def _scidocs(shelf: Shelf, conventions: Conventions) -> Task:
    source = shelf.find(*_SCIDOCS, *_SCIDOCS_MTEB, hub=_SCIDOCS_HUB)
    tests: Tests = {"mteb": partial(_mteb_test, "scidocs", source, 3978)}
    if isinstance(source, Path) and has_scidocs(source):
        tests = {"useb": partial(_scidocs_test, source)}
    return _task("scidocs", source, tests, conventions)


def _task(name: str, source: Source, tests: Tests, conventions: Conventions) -> Task:
    """Load the requested tests and return a task of them."""
    wanted = [load() for convention, load in tests.items() if convention in conventions]
    if not wanted:
        raise DataError(f"{source} supports only the convention {' or '.join(tests)}")
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


RERANKING_TASKS: dict[str, Entry] = {
    "askubuntu": Entry(
        "re-ranking of similar questions", "186 queries (useb), 361 (mteb)", _askubuntu, _ASKUBUNTU_HUB
    ),
    "askubuntu-dev": Entry("development questions of askubuntu", "189 queries (useb)", _askubuntu_dev),
    "scidocs": Entry(
        "re-ranking of related papers", "four tasks (useb), 3,978 queries (mteb)", _scidocs, _SCIDOCS_HUB
    ),
}
