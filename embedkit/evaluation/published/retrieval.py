"""Published retrieval corpora: small ones of BEIR."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from embedkit.evaluation.hub import HubDataset
from embedkit.evaluation.retrieval_sources import load_retrieval
from embedkit.evaluation.retrieval_task import RetrievalTask
from embedkit.evaluation.shelf import Conventions, Entry, Shelf
from embedkit.evaluation.tasks import Task

__all__ = ["RETRIEVAL_TASKS"]


class _Corpus(NamedTuple):
    what: str
    names: tuple[str, ...]
    hub: HubDataset
    queries: int
    documents: int


_CORPORA = {
    "scifact": _Corpus(
        "retrieval of abstracts for scientific claims",
        ("scifact",),
        HubDataset("mteb/scifact", "d56462d0e63a25450459c4f213e49ffdb866f7f9"),
        300,
        5183,
    ),
    "nfcorpus": _Corpus(
        "retrieval of medical abstracts",
        ("nfcorpus",),
        HubDataset("mteb/nfcorpus", "ec0fa4fe99da2ff19ca1214b7966684033a58814"),
        323,
        3633,
    ),
    "arguana": _Corpus(
        "retrieval of counter-arguments",
        ("arguana",),
        HubDataset("mteb/arguana", "c22ab2a51041ffd869aaddef7af8d8215647e41a"),
        1406,
        8674,
    ),
    "scidocs-retrieval": _Corpus(
        "retrieval of cited papers",
        ("scidocs-retrieval", "scidocs-beir"),
        HubDataset("mteb/scidocs", "f8c2fcf00f625baaa80f62ec5bd9e1fff3b8ae88"),
        1000,
        25657,
    ),
}


def _load(name: str, shelf: Shelf, _: Conventions) -> Task:
    corpus = _CORPORA[name]
    source = shelf.find(*corpus.names, hub=corpus.hub)
    retrieval = load_retrieval(source, name=name)
    return RetrievalTask(name, retrieval, str(source), (corpus.queries, corpus.documents))


RETRIEVAL_TASKS: dict[str, Entry] = {
    name: Entry(
        corpus.what,
        f"{corpus.queries:,} queries, {corpus.documents:,} documents",
        partial(_load, name),
        corpus.hub,
    )
    for name, corpus in _CORPORA.items()
}
