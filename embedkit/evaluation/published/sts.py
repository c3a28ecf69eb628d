"""Published sets of scored pairs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from embedkit.errors import DataError
from embedkit.evaluation.hub import HubDataset
from embedkit.evaluation.shelf import Conventions, Entry, Shelf
from embedkit.evaluation.sts_sources import (
    STS17_PAIRS,
    STS_YEARS,
    StsSet,
    load_sick,
    load_sts17,
    load_stsb,
    load_translated_stsb,
    load_year,
)
from embedkit.evaluation.sts_task import StsTask
from embedkit.evaluation.tasks import Task

__all__ = ["SEVEN", "STS_TASKS"]

_YEARS = {
    "sts12": "a0d554a64d88156834ff5ae9920b964011b16384",
    "sts13": "7e90230a92c190f1bf69ae9002b8cea547a64cca",
    "sts14": "6031580fec1f6af667f0bd2da0a551cf4f0b2375",
    "sts15": "ae752c7c21bf194d8b67fd573edf7ae58183cbe3",
    "sts16": "4d8694f8f0e0100860b497b999b3dbed754a0513",
}
_YEAR_HUBS = {name: HubDataset(f"mteb/{name}-sts", revision) for name, revision in _YEARS.items()}
_STSB_HUB = HubDataset("mteb/stsbenchmark-sts", "b0fddb56ed78048fa8b90373c8a3cfc37b684831")
_SICK_HUB = HubDataset("mteb/sickr-sts", "20a6d6f312dd54037fe07a32d58e5e168867909d")
_STS17_HUB = HubDataset("mteb/sts17-crosslingual-sts", "faeb762787bd10488a50c8b5be4a3b82e411949c")
_TRANSLATED_HUB = HubDataset("mteb/stsb_multi_mt", "29afa2569dcedaaa2fe6a3dcfebab33d28b82e8c")
_LANGUAGES = {
    "de": "German", "es": "Spanish", "fr": "French", "it": "Italian", "nl": "Dutch", "pl": "Polish",
    "pt": "Portuguese", "ru": "Russian", "zh": "Chinese",
}  # fmt: skip


def _year(name: str, shelf: Shelf) -> StsSet:
    return load_year(name, shelf.find(f"{name.upper()}-en-test", hub=_YEAR_HUBS[name]))


def _stsb(split: str, shelf: Shelf) -> StsSet:
    return load_stsb(shelf.find("STSBenchmark", hub=_STSB_HUB), split)


def _sick(split: str, shelf: Shelf) -> StsSet:
    return load_sick(shelf.find("SICK", hub=_SICK_HUB if split == "test" else None), split)


SEVEN: dict[str, Callable[[Shelf], StsSet]] = {
    **{name: partial(_year, name) for name in STS_YEARS},
    "stsb": partial(_stsb, "test"),
    "sickr": partial(_sick, "test"),
}
"""The seven sets of the papers."""


def _sts17(languages: str, shelf: Shelf) -> StsSet:
    return load_sts17(languages, shelf.find("STS2017-extended", "STS17", "sts17", hub=_STS17_HUB))


def _translated(language: str, split: str, shelf: Shelf) -> StsSet:
    return load_translated_stsb(language, shelf.find("stsb-multi-mt", "stsb_multi_mt", hub=_TRANSLATED_HUB), split)


def _sts(shelf: Shelf, _: Conventions) -> Task:
    """Return a task of the seven sets, those that are available."""
    return _several("sts", SEVEN, shelf)


def _sts17_all(shelf: Shelf, _: Conventions) -> Task:
    """Return a task of the eight language pairs, those that are available."""
    return _several("sts17", {f"sts17-{pair}": partial(_sts17, pair) for pair in STS17_PAIRS}, shelf)


def _several(name: str, loaders: Mapping[str, Callable[[Shelf], StsSet]], shelf: Shelf) -> Task:
    sets, missing = [], {}
    for each, load in loaders.items():
        try:
            sets.append(load(shelf))
        except DataError as error:
            missing[each] = str(error)
    if not sets:
        raise DataError(f"none of the {len(loaders)} sets of {name} can be loaded: " + "; ".join(missing.values()))
    return StsTask(name, sets, average_of=len(loaders), missing=missing)


def _one(load: Callable[[Shelf], StsSet], shelf: Shelf, _: Conventions) -> Task:
    sts = load(shelf)
    return StsTask(sts.name, [sts])


STS_TASKS: dict[str, Entry] = {
    "sts": Entry("STS12 to STS16, STS-B and SICK-R, and their mean", "seven sets", _sts),
    **{
        name: Entry(
            f"SemEval similarity of 20{name[3:]}",
            f"{sum(STS_YEARS[name].values()):,} pairs",
            partial(_one, SEVEN[name]),
            _YEAR_HUBS[name],
        )
        for name in STS_YEARS
    },
    "stsb": Entry("STS benchmark, test", "1,379 pairs", partial(_one, SEVEN["stsb"]), _STSB_HUB),
    "stsb-dev": Entry(
        "STS benchmark, development", "1,500 pairs", partial(_one, partial(_stsb, "dev")), _STSB_HUB
    ),
    "sickr": Entry("SICK relatedness, test", "4,927 pairs", partial(_one, SEVEN["sickr"]), _SICK_HUB),
    "sick-trial": Entry("SICK relatedness, trial", "500 pairs", partial(_one, partial(_sick, "trial"))),
    "sts17": Entry("similarity within and across languages, and its mean", "eight sets", _sts17_all, _STS17_HUB),
    **{
        f"stsb-{code}{part}": Entry(
            f"STS benchmark in {language}, {'development' if part else 'test'}",
            "1,500 pairs" if part else "1,379 pairs",
            partial(_one, partial(_translated, code, "dev" if part else "test")),
            _TRANSLATED_HUB,
        )
        for code, language in _LANGUAGES.items()
        for part in ("", "-dev")
    },
}
