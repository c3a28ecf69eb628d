"""Published sets of classified texts: SentEval's transfer tasks, its inference probes, and intents."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from embedkit.errors import DataError
from embedkit.evaluation.classifiers import (
    Float64Array,
    few_shot,
    folds_then_test,
    nested_folds,
    validated_test,
)
from embedkit.evaluation.hub import HubDataset
from embedkit.evaluation.rows import read_rows
from embedkit.evaluation.shelf import Conventions, Entry, Shelf
from embedkit.evaluation.tasks import Task
from embedkit.evaluation.transfer import (
    ClassifiedTexts,
    Features,
    Probe,
    TransferTask,
    differences_and_products,
    pairs_differences_and_products,
    single,
)
from embedkit.evaluation.transfer_sources import (
    load_binary,
    load_intents,
    load_mrpc,
    load_nli,
    load_sick_entailment,
    load_sst,
    load_trec,
)

__all__ = ["SEVEN", "TRANSFER_TASKS"]

_NO_DECAY = [1e9]


class _Set(NamedTuple):
    """A published set: its folder names, its reader and its protocol."""

    what: str
    folders: tuple[str, ...]
    read: Callable[[Path], list[ClassifiedTexts]]
    protocol: Callable[..., Float64Array]
    sizes: tuple[int, ...]
    features: Features = single


_SETS = {
    "mr": _Set(
        "sentiment of film reviews",
        ("MR",), partial(load_binary, positive="rt-polarity.pos", negative="rt-polarity.neg"),
        nested_folds, (10662,),
    ),
    "cr": _Set(
        "sentiment of product reviews",
        ("CR",), partial(load_binary, positive="custrev.pos", negative="custrev.neg"),
        nested_folds, (3775,),
    ),
    "subj": _Set(
        "subjective or objective",
        ("SUBJ",), partial(load_binary, positive="subj.objective", negative="subj.subjective"),
        nested_folds, (10000,),
    ),
    "mpqa": _Set(
        "polarity of opinions",
        ("MPQA",), partial(load_binary, positive="mpqa.pos", negative="mpqa.neg"),
        nested_folds, (10606,),
    ),
    "sst2": _Set(
        "sentiment of sentences of film reviews",
        ("SST2", "SST/binary"), load_sst, validated_test, (6920, 872, 1821),
    ),
    "trec": _Set("types of questions", ("TREC",), load_trec, folds_then_test, (5452, 500)),
    "mrpc-transfer": _Set(
        "paraphrases in news, by a classifier",
        ("mrpc", "MRPC", "MSRParaphraseCorpus"), load_mrpc, folds_then_test, (4076, 1725),
        differences_and_products,
    ),
    "sick-e": _Set(
        "inference, SICK",
        ("SICK",), load_sick_entailment, validated_test, (4500, 500, 4927), differences_and_products,
    ),
    "snli": _Set(
        "inference, SNLI",
        ("SNLI",), load_nli, partial(validated_test, strengths=_NO_DECAY), (549367, 9842, 9824),
        pairs_differences_and_products,
    ),
}  # fmt: skip

SEVEN = ("mr", "cr", "subj", "mpqa", "sst2", "trec", "mrpc-transfer")
"""The sets in the papers' average."""

_BANKING_HUB = HubDataset("mteb/banking77", "0fd18e25b25c072e09e0d92ab615fda904d66300")
_BANKING_SIZES = (10003, 3080)


def _probe(name: str, shelf: Shelf) -> Probe:
    wanted = _SETS[name]
    folder = Path(str(shelf.find(*wanted.folders)))
    return Probe(name, wanted.read(folder), wanted.protocol, wanted.features, str(folder), wanted.sizes)


def _one(name: str, shelf: Shelf, _: Conventions) -> Task:
    return TransferTask(name, [_probe(name, shelf)])


def _transfer(shelf: Shelf, _: Conventions) -> Task:
    """Return a task of the seven sets, those that are available."""
    probes, missing = [], {}
    for name in SEVEN:
        try:
            probes.append(_probe(name, shelf))
        except DataError as error:
            missing[name] = str(error)
    if not probes:
        raise DataError("none of the 7 sets of transfer can be loaded: " + "; ".join(missing.values()))
    return TransferTask("transfer", probes, average_of=len(SEVEN), missing=missing)


def _banking(shelf: Shelf, _: Conventions) -> Task:
    source = shelf.find("banking77", hub=_BANKING_HUB)
    parts = {
        part: source.rows(split=part) if isinstance(source, HubDataset) else read_rows(source / f"{part}.csv")
        for part in ("train", "test")
    }
    probe = Probe("banking77", load_intents(parts), few_shot, single, str(source), _BANKING_SIZES)
    return TransferTask("banking77", [probe])


def _size(sizes: tuple[int, ...]) -> str:
    return " + ".join(f"{size:,}" for size in sizes) + " texts"


TRANSFER_TASKS: dict[str, Entry] = {
    "transfer": Entry("the next seven sets, and their mean", "seven sets", _transfer),
    **{name: Entry(each.what, _size(each.sizes), partial(_one, name)) for name, each in _SETS.items()},
    "banking77": Entry("intents of bank customers", _size(_BANKING_SIZES), _banking, _BANKING_HUB),
}
