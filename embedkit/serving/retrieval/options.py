"""The options of a search, defined once for Python, the command line, HTTP and agents."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final, Literal, TypedDict, get_args

from embedkit.config import setting
from embedkit.errors import InputError, shown
from embedkit.protocols import PairScorer, TextEncoder
from embedkit.runtime.arguments import check_choice, check_count, check_number, check_whole
from embedkit.serving.retrieval.filters import Filter

Mode = Literal["hybrid", "dense", "lexical"]
MODES: Final[tuple[str, ...]] = get_args(Mode)

Reranker = PairScorer | TextEncoder

CANDIDATES: Final = 50
"""Default number of documents that each ranking passes to the fusion, if no more results are wanted."""

RERANKED: Final = 30
"""Default number of documents that a re-ranker reads."""


class SearchKeywords(TypedDict, total=False):
    """The types of the keyword arguments of a search, for type checkers; see :class:`SearchOptions`."""

    mode: Mode | None
    filter: Filter | None
    rerank: Reranker | str | os.PathLike[str] | None
    rerank_weight: float | None
    candidates: int | None
    effort: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """How to search; validated when it is created.

    ``rerank`` is a model or its name, or True where the caller runs the model.

    Raises:
        InputError: an option is invalid, or two of them contradict each other.
    """

    k: int = setting(10, "number of results")
    mode: Mode | None = setting(
        None,
        "dense ranks by meaning, lexical by keywords, hybrid fuses both; default: hybrid if the collection has a "
        "keyword index, else dense",
    )
    filter: Filter | None = setting(
        None, 'conditions on the metadata, for example {"lang": "en", "year": {"gte": 2020}}'
    )
    rerank: Reranker | str | os.PathLike[str] | bool | None = setting(
        None, "whether the re-ranker orders the candidates"
    )
    rerank_weight: float | None = setting(
        None,
        "fixed weight of the re-ranker's scores, from 0 to 1; default: a document rises by the probability that "
        "it is an answer",
    )
    candidates: int | None = setting(
        None,
        f"number of documents passed from one stage to the next; default: {CANDIDATES}, {RERANKED} to re-rank",
    )
    effort: float = setting(
        1.0, "search breadth of an approximate index: 2 finds more and takes longer; default: 1"
    )

    def __post_init__(self) -> None:
        check_whole(self.k, "k")
        if self.mode is not None:
            check_choice(self.mode, MODES, "mode")
        if check_count(self.candidates, "candidates") is not None and self.wanted < self.k:
            raise InputError(
                f"candidates must be at least the number of results, {shown(self.k)}, not {self.candidates}",
                parameters=["candidates"],
            )
        if check_number(self.effort, "effort") <= 0:
            raise InputError(
                f"expected an effort above 0; 1 is the default and 2 searches twice as broadly; got {self.effort}"
            )
        if self.rerank_weight is None:
            return
        if not 0 <= check_number(self.rerank_weight, "rerank_weight") <= 1:
            raise InputError(
                f"rerank_weight must be from 0 to 1, not {self.rerank_weight}", parameters=["rerank_weight"]
            )
        if not self.reranks:
            raise InputError(
                "rerank_weight: there is no re-ranker; give one with rerank",
                parameters=["rerank_weight", "rerank"],
            )

    @property
    def wanted(self) -> int:
        """Number of documents that each stage passes to the next."""
        return self.candidates or max(self.k, CANDIDATES)

    @property
    def reranked(self) -> int:
        """Number of documents that the re-ranker reads."""
        return self.candidates or max(self.k, RERANKED)

    @property
    def is_cross_encoder(self) -> bool:
        """Whether the re-ranker's scores are probabilities or logits; True and a name mean a cross-encoder."""
        kind = getattr(getattr(self.rerank, "manifest", None), "kind", None)
        return isinstance(self.rerank, (bool, str, os.PathLike)) or kind == "cross-encoder"

    @property
    def reranks(self) -> bool:
        """Whether a re-ranker orders the candidates."""
        return self.rerank is not None and self.rerank is not False
