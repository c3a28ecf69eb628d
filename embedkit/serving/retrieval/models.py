"""The models of a collection: one embeds documents, and another may embed queries in the same embedding space.

Two models can share a space if one was distilled from the other, or both from the same teacher. Whether they do is
measured: both embed a sample of documents, whose embeddings must agree.

A model is given as an object, or by its name or path. A collection records where its models were, so that they can
be found again.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from embedkit.config import setting
from embedkit.errors import FingerprintError, InputError, ModelNotFoundError, shown
from embedkit.protocols import FloatArray, TextEncoder
from embedkit.runtime.find import absolute_source
from embedkit.runtime.numerics import numerics_of, warn_of_mixture
from embedkit.serving.retrieval.embedding import embed_texts
from embedkit.serving.retrieval.store.analyzer import LANGUAGES

if TYPE_CHECKING:
    from pathlib import Path

    from embedkit.runtime.encoder import Encoder

SAMPLE: Final = 64
"""Number of texts that both models of a pair embed."""

LEAST_AGREEMENT: Final = 0.5
"""Minimum mean cosine between the two embeddings of a text; it is about 0 in unrelated spaces."""


@dataclass(frozen=True, kw_only=True)
class QueryModel:
    """The model that embeds queries, if it differs from that of the documents.

    Attributes:
        source: where it can be loaded from; None if unknown.
        fingerprint: its fingerprint, hex SHA-256.
        agreement: mean cosine between both models' embeddings of a document, on a sample.
    """

    model: str
    source: str | None
    fingerprint: str
    agreement: float


@dataclass(frozen=True, kw_only=True)
class Root:
    """A folder of documents, with which a collection is kept in step (see `sync`).

    Attributes:
        label: begins the names of its documents; may be empty.
        path: its absolute path.
        max_tokens: maximum size of windows; None for as many tokens as the model takes.
        overlap: tokens that consecutive windows share.
    """

    label: str
    path: str
    max_tokens: int | None = setting(None, minimum=1)
    overlap: int = setting(0, minimum=0)


@dataclass(frozen=True, kw_only=True)
class CollectionInfo(ABC):
    """A store's metadata of a collection, and of the encoder that created its embeddings.

    Attributes:
        model: name of the encoder.
        source: where it can be loaded from; None if unknown.
        fingerprint: its fingerprint, hex SHA-256.
        dimension: D, the width of an embedding.
        index: requested kind of index.
        lexical: whether there is a keyword index, for hybrid search.
        language: the language whose words are stemmed there; "auto" for those of the texts, and "none".
        queries: the model of the queries; None if it is that of the documents.
        numerics: the arithmetics that created the embeddings; several if it changed between writes. See
            :attr:`embedkit.Encoder.numerics`.
        roots: the folders of its documents, if these came from folders.
    """

    model: str
    source: str | None
    fingerprint: str
    dimension: int = setting(minimum=1)
    index: str
    lexical: bool
    language: str = setting(choices=("auto", *LANGUAGES))
    queries: QueryModel | None = setting(None, optional=True)
    numerics: tuple[str, ...]
    roots: tuple[Root, ...] = setting((), optional=True)

    @property
    @abstractmethod
    def count(self) -> int:
        """N, number of documents."""


def loaded(encoder: TextEncoder | str | os.PathLike[str], name: str) -> TextEncoder:
    """Return a model, loaded if it is given by its name or path; ``name`` is the argument, for messages."""
    if isinstance(encoder, (str, os.PathLike)):
        from embedkit.runtime.encoder import Encoder  # noqa: PLC0415 - imports stay quick

        return Encoder.load(encoder)
    if not isinstance(encoder, TextEncoder) or isinstance(encoder, type):
        raise InputError(f"{name} must be an encoder, or the name or path of one, not {shown(encoder)}")
    return encoder


def source_of(encoder: TextEncoder | str | os.PathLike[str] | None) -> str | None:
    """Return where a model can be found again, if that is known."""
    if isinstance(encoder, (str, os.PathLike)):
        return absolute_source(encoder)
    source = getattr(encoder, "source", None)
    return source if isinstance(source, str) else None


def recorded_model(info: CollectionInfo | QueryModel, **options: Any) -> Encoder:
    """Load the model that a collection records: by its path, else by its bundled name, with options of ``load``.

    A collection may come from an untrusted source, so models that it records are never fetched from a network.
    """
    from embedkit.runtime.encoder import Encoder  # noqa: PLC0415 - imports stay quick
    from embedkit.runtime.find import is_local  # noqa: PLC0415

    for source in filter(None, (info.source, info.model)):
        if is_local(source):
            return Encoder.load(source, **options)
    raise ModelNotFoundError(
        f"the collection was built with {info.model}, from {info.source}, which is not on this machine; "
        "pass its location or its name with -m MODEL, in Python with Collection.open(..., encoder=...)"
    )


@dataclass(frozen=True, slots=True)
class Models:
    """The models that a collection was opened with; that of the queries may be that of the documents.

    Without any, they are loaded on first use from where the collection recorded them.
    """

    encoder: TextEncoder | None = None
    queries: TextEncoder | None = None
    _recorded: dict[str, Encoder] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def given_for_queries(self) -> TextEncoder | None:
        """The model that embeds queries, by default that of the documents, if any was given."""
        return self.queries or self.encoder

    def of_documents(self, place: Path | str, info: CollectionInfo) -> TextEncoder:
        """Return the model that embeds new documents of the collection at ``place``.

        InputError if only that of the queries was given, or the recorded one is not on this machine.
        """
        if self.given_for_queries is None:
            return self._find(place, info, info)
        encoder = next(self._of_documents(info), None)
        if encoder is None:
            raise InputError(
                f"{place} was opened without an encoder for its documents; give "
                f"Collection.open(..., encoder=...) the model that it was built with, {info.model}"
            )
        return encoder

    def of_queries(self, place: Path | str, info: CollectionInfo) -> TextEncoder:
        """Return the model that embeds queries of the collection at ``place``; raises as :meth:`of_documents`."""
        return self.given_for_queries or self._find(place, info, info.queries or info)

    def _find(self, place: Path | str, info: CollectionInfo, model: CollectionInfo | QueryModel) -> TextEncoder:
        """Return a recorded model, loaded once."""
        if model.fingerprint not in self._recorded:
            try:
                encoder = recorded_model(model)
            except ModelNotFoundError as error:
                raise InputError(f"{place} was opened without an encoder, and {error}") from error
            if encoder.fingerprint != model.fingerprint:
                raise FingerprintError(
                    f"{place} was built with {model.model} (fingerprint {model.fingerprint[:12]}), but "
                    f"{encoder.source} is {encoder.name} ({encoder.fingerprint[:12]}); "
                    "build it again with this model, or pass the one that it was built with: -m MODEL, in Python "
                    "Collection.open(..., encoder=...); a model that stayed in its space searches it: queries=..."
                )
            warn_of_mixture(place, info.numerics, Models(encoder).numerics(info))
            self._recorded[model.fingerprint] = encoder
        return self._recorded[model.fingerprint]

    def numerics(self, info: CollectionInfo) -> tuple[str, ...]:
        """Return the arithmetics of the models that are the collection's own and could reproduce its bits."""
        return tuple({numerics_of(encoder) for encoder in self._of_documents(info)})

    def _of_documents(self, info: CollectionInfo) -> Iterator[TextEncoder]:
        for encoder in (self.encoder, self.queries):
            if encoder is not None and encoder.fingerprint == info.fingerprint:
                yield encoder

    def is_recorded(self, info: CollectionInfo) -> bool:
        """Whether the query model is named by the collection, or none was given."""
        known = {info.fingerprint, info.queries and info.queries.fingerprint}
        return self.queries is None or self.queries.fingerprint in known

    def check(self, place: str, info: CollectionInfo) -> None:
        """Reject an encoder that the collection was not built with; :func:`agreement` checks models of queries."""
        made = info.fingerprint
        if self.encoder is not None and self.encoder.fingerprint != made:
            is_for_queries = info.queries and info.queries.fingerprint == self.encoder.fingerprint
            advice = (
                "open the collection with queries= instead, since it embeds the queries"
                if is_for_queries
                else "open it with the one, or build it again with the other"
            )
            raise FingerprintError(
                f"{place} was built with {info.model} (fingerprint {made[:12]}), not with "
                f"{self.encoder.name} ({self.encoder.fingerprint[:12]}): {advice}",
                parameters=["queries"],
            )


def agreement(queries: TextEncoder, texts: Sequence[str], embeddings: FloatArray, model: str) -> float:
    """Return the mean cosine between the query model's and the documents' model's embeddings of some documents.

    ``embeddings`` are those of the N texts, at least one, by the documents' ``model``: ``(N, D) float32, unit
    rows``. A mean below :data:`LEAST_AGREEMENT`, or another width, is a FingerprintError.
    """
    width = embeddings.shape[1]
    if queries.dimension != width:
        raise FingerprintError(
            f"queries: {queries.name} gives {queries.dimension} dimensions, the documents' model {model} {width}"
        )
    cosine = float(np.einsum("nd,nd->n", embed_texts(texts, queries), embeddings).mean())
    if not cosine >= LEAST_AGREEMENT:
        raise FingerprintError(
            f"queries: {queries.name} and {model} embed the same {len(texts)} documents with a mean cosine of "
            f"{cosine:.2f}, where models of one space reach {LEAST_AGREEMENT}; give the documents' model itself, "
            "its student, or a student of the same teacher"
        )
    return cosine


def evenly_spaced(count: int, most: int) -> npt.NDArray[np.int64]:
    """Return at most ``most`` rows of ``count``, ascending."""
    return np.unique(np.linspace(0, count - 1, min(most, count)).round().astype(np.int64))
