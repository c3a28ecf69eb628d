"""A collection on Qdrant, under ``qdrant:URL#NAME``, or in a folder of Qdrant's own, ``qdrant:FOLDER#NAME``.

Qdrant searches and filters; words are sparse vectors of term counts that Qdrant weights by inverse document
frequency. Needs ``pip install "embedkit-onnx[qdrant]"``. The only module that imports qdrant_client.
"""

from __future__ import annotations

import itertools
import os
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final

import numpy as np
from qdrant_client import QdrantClient
from qdrant_client import models as rest
from qdrant_client.common.client_exceptions import QdrantException
from qdrant_client.http.exceptions import ApiException

from embedkit.errors import InputError
from embedkit.protocols import FloatArray
from embedkit.runtime.arguments import is_unicode
from embedkit.serving.remote import RemoteCollectionInfo, RemoteFilter, RemoteStore, ScoredDocuments
from embedkit.serving.retrieval.documents import Document
from embedkit.serving.retrieval.filters import Combination, Comparison, Condition
from embedkit.serving.retrieval.store.analyzer import Analyzer
from embedkit.serving.retrieval.store.files import text_hash
from embedkit.serving.retrieval.store.index_kinds import AUTO

KEY_VARIABLE: Final = "EMBEDKIT_QDRANT_KEY"

_INDEX = "hnsw"
_USUAL_EF = 128
_ROWS_PER_REQUEST = 500
_INEXACT = 2**53  # from here to _MOST, integers of Qdrant have neighbours of the same float64
_MOST = 2**64
_SATURATION = 1.5  # k1 of BM25; lengths are not compared, because Qdrant does not store their mean
_IDS = uuid.UUID("5c3f4bd2-6c0a-4b6e-9d52-1f0e5d1f7c11")  # namespace of point ids, which must be numbers or UUIDs


class QdrantDocuments(RemoteStore):
    """See :class:`~embedkit.serving.retrieval.store.protocol.Store`.

    Other clients see points with the vectors ``embedding`` and ``words`` and the payload ``id``, ``text``,
    ``metadata``.
    """

    _ERRORS: ClassVar[tuple[type[Exception], ...]] = (
        ApiException,
        QdrantException,
        RuntimeError,
        OSError,
        ValueError,
    )

    _client: QdrantClient

    def compact(
        self,
        *,
        index: str | None,
        lexical: bool | None,
        show_progress_bar: bool | None,  # noqa: ARG002 - there is nothing to wait for
    ) -> None:
        """Do nothing: Qdrant compacts automatically; a change of ``index`` or ``lexical`` is an InputError."""
        if lexical not in (None, self.info.lexical) or index not in (None, AUTO, _INDEX):
            raise InputError(f"index and words are chosen when a collection is built; build {self._address} again")

    def drop(self) -> None:
        with self._asking():
            self._client.delete_collection(self._name)

    def sample(self, most: int, /) -> tuple[list[Document], FloatArray]:
        points = list(itertools.islice(self._all(), most))
        rows = np.array([point.vector["embedding"] for point in points], dtype=np.float32)
        return [_document(point) for point in points], rows.reshape(len(points), self.info.dimension)

    def nearest(self, queries: FloatArray, k: int, where: RemoteFilter, effort: float) -> list[ScoredDocuments]:
        wide = rest.SearchParams(hnsw_ef=max(k, round(_USUAL_EF * effort)))
        breadth = wide if "://" in self._address else None  # search in a folder is exact and has no parameters
        return [self._hit_lists(row.tolist(), "embedding", k, where, breadth) for row in queries]

    def matching(self, query: str, k: int, where: RemoteFilter) -> ScoredDocuments:
        words = _sparse(Analyzer.named(self.info.analyzer).query_terms(query))  # weighted by rarity
        return self._hit_lists(words, "words", k, where, None) if words.indices else []

    def _hit_lists(
        self,
        query: Any,
        vector: str,
        k: int,
        where: RemoteFilter,
        breadth: rest.SearchParams | None,
    ) -> ScoredDocuments:
        """Return the best ``k`` documents; asks again for more while some fail the recheck."""
        limit = k
        while True:
            with self._asking():
                answer = self._client.query_points(
                    self._name,
                    query=query,
                    using=vector,
                    limit=limit,
                    query_filter=where.expression,
                    search_params=breadth,
                )
            kept = where.kept([(point.score, _document(point)) for point in answer.points])[:k]
            if len(kept) == k or len(answer.points) < limit:
                return kept
            limit *= 4

    @staticmethod
    def _connect(place: str) -> QdrantClient:
        if not place:
            raise InputError(f"expected qdrant:http://HOST:PORT#NAME or qdrant:FOLDER#NAME, got {place!r}")
        if "://" in place:
            return QdrantClient(url=place, api_key=os.environ.get(KEY_VARIABLE))
        return QdrantClient(path=place, force_disable_check_same_thread=True)

    def _exists(self) -> bool:
        return bool(self._client.collection_exists(self._name))

    def _names(self) -> list[str]:
        return [collection.name for collection in self._client.get_collections().collections]

    def _read_facts(self) -> Mapping[str, Any]:
        return self._client.get_collection(self._name).config.metadata or {}

    @staticmethod
    def _kind(index: str) -> str:
        if index not in (AUTO, _INDEX):
            raise InputError(f"there is no index {index!r} on Qdrant; the kinds are {AUTO}, {_INDEX}")
        return _INDEX

    def _create(self, info: RemoteCollectionInfo) -> None:
        words = {"words": rest.SparseVectorParams(modifier=rest.Modifier.IDF)}
        self._client.create_collection(
            self._name,
            vectors_config={"embedding": rest.VectorParams(size=info.dimension, distance=rest.Distance.DOT)},
            sparse_vectors_config=words if info.lexical else None,
            metadata=info.facts(),
        )

    def _keep_facts(self, facts: Mapping[str, Any]) -> None:
        changed = {name: value for name, value in facts.items() if value != self._facts.get(name)}
        with self._asking():
            self._client.update_collection(self._name, metadata=changed)  # Qdrant keeps the other fields
        self._facts = dict(facts)

    def _count_documents(self) -> int:
        with self._asking():
            return int(self._client.count(self._name).count)

    def _read(self, ids: Sequence[str]) -> Iterator[Document]:
        return map(_document, self._points(ids, with_payload=True))

    def _read_embedded(self, ids: Sequence[str]) -> Iterator[tuple[Document, FloatArray]]:
        points = self._points(ids, with_payload=True, with_vectors=["embedding"])
        return ((_document(point), np.array(point.vector["embedding"], dtype=np.float32)) for point in points)

    def _present(self, ids: Sequence[str]) -> list[Any]:
        return [point.id for point in self._points(ids, with_payload=False)]

    def _delete(self, keys: Sequence[Any]) -> None:
        with self._asking():
            self._client.delete(self._name, rest.PointIdsList(points=list(keys)))

    def _matching(self, where: RemoteFilter) -> Iterator[Document]:
        points = self._all(where.expression)
        while some := [(0.0, _document(point)) for point in itertools.islice(points, _ROWS_PER_REQUEST)]:
            yield from (document for _, document in where.kept(some))

    def _all_embeddings(self) -> Iterator[FloatArray]:
        points = self._all()
        while some := list(itertools.islice(points, _ROWS_PER_REQUEST)):
            yield np.array([point.vector["embedding"] for point in some], dtype=np.float32)

    def _write(self, documents: Sequence[Document], embeddings: FloatArray) -> None:
        analyzer = Analyzer.named(self.info.analyzer) if self.info.lexical else None
        points = [_point(document, row, analyzer) for document, row in zip(documents, embeddings, strict=True)]
        for first in range(0, len(points), _ROWS_PER_REQUEST):
            with self._asking():
                self._client.upsert(self._name, points[first : first + _ROWS_PER_REQUEST], wait=True)

    def _has_field(self, field: str) -> bool:
        has_field = _condition(Comparison(field, "exists", value=True))
        with self._asking():
            return bool(self._client.count(self._name, count_filter=has_field).count)

    def _expression_of(self, conditions: Sequence[Condition]) -> rest.Filter | None:
        return rest.Filter(must=[_condition(condition) for condition in conditions]) if conditions else None

    def _points(self, ids: Sequence[str], *, with_payload: bool, with_vectors: Any = False) -> list[rest.Record]:
        points = []
        for first in range(0, len(ids), _ROWS_PER_REQUEST):
            wanted = [_point_id(id_) for id_ in ids[first : first + _ROWS_PER_REQUEST]]
            with self._asking():
                points += self._client.retrieve(
                    self._name, wanted, with_payload=with_payload, with_vectors=with_vectors
                )
        return points

    def _all(self, where: rest.Filter | None = None) -> Iterator[rest.Record]:
        """Yield all points of a filter, with payload and embedding, ordered by id."""
        offset: Any = None
        while True:
            with self._asking():
                points, offset = self._client.scroll(
                    self._name, where, limit=_ROWS_PER_REQUEST, offset=offset, with_vectors=["embedding"]
                )
            yield from points
            if offset is None:
                return


def _condition(condition: Condition) -> rest.Filter:
    if isinstance(condition, Combination):
        parts = [_condition(part) for part in condition.parts]
        if condition.operator == "or":
            return rest.Filter(should=parts)
        both = rest.Filter(must=parts)
        return rest.Filter(must_not=[both]) if condition.operator == "not" else both
    if "." not in condition.field:
        return _comparison(condition, condition.field)
    is_negative = condition.operator in ("ne", "not_in") or (
        condition.operator == "exists" and not condition.value
    )
    forms = [_comparison(condition, condition.field), _comparison(condition, condition.field.replace(".", '"."'))]
    return rest.Filter(must=forms) if is_negative else rest.Filter(should=forms)


def _comparison(condition: Comparison, field: str) -> rest.Filter:
    """Return the filter of a comparison; a field in an object is ``address"."city``."""
    value = condition.value
    if condition.operator in ("eq", "in"):
        nothing = rest.HasIdCondition(has_id=[])
        return rest.Filter(should=_equal_to(field, value)) if value != [] else rest.Filter(must=[nothing])
    if condition.operator in ("ne", "not_in"):
        return rest.Filter(must_not=_equal_to(field, value))
    if condition.operator == "exists":
        absent = [_is_absent(field)]
        return rest.Filter(must_not=absent) if value else rest.Filter(must=absent)
    if isinstance(value, str):
        raise InputError(f"filter: {field!r}: Qdrant does not order texts; compare numbers")
    return rest.Filter(must=[_within(field, condition.operator, value=value)])


def _equal_to(field: str, value: Any) -> list[Any]:
    values = value if isinstance(value, list) else [value]
    texts = [item for item in values if isinstance(item, str)]
    among = [rest.FieldCondition(key=_key(field), match=rest.MatchAny(any=texts))] if texts else []
    return among + [_equal(field, item) for item in values if not isinstance(item, str)]


def _equal(field: str, value: Any) -> Any:
    if value is None:
        return rest.IsNullCondition(is_null=rest.PayloadField(key=_key(field)))
    if isinstance(value, bool) or (isinstance(value, int) and _INEXACT <= abs(value) < 2**63):
        return rest.FieldCondition(key=_key(field), match=rest.MatchValue(value=value))
    return _within(field, "gte", "lte", value=value)  # a match would not find 2.0 by 2


def _within(field: str, *operators: str, value: float) -> rest.FieldCondition:
    """Compare with a number; Qdrant converts both sides to float64."""
    if _INEXACT <= abs(value) <= _MOST:
        raise InputError(
            f"filter: {field!r}: Qdrant compares numbers as float64, which cannot distinguish integers from 2^53 "
            f"to 2^64, such as {value!r}; it finds those below 2^63 by their exact value only"
        )
    try:
        bounds = dict.fromkeys(operators, float(value))
    except OverflowError:
        raise InputError(
            f"filter: {field!r}: Qdrant compares numbers up to 1.8e308, not {str(value)[:40]}"
        ) from None
    return rest.FieldCondition(key=_key(field), range=rest.Range(**bounds))


def _is_absent(field: str) -> rest.IsEmptyCondition:
    return rest.IsEmptyCondition(is_empty=rest.PayloadField(key=_key(field)))


def _key(field: str) -> str:
    if '"' in field.replace('"."', ""):
        raise InputError(f"filter: Qdrant cannot look for the field {field!r}, which has a quotation mark")
    return f'metadata."{field}"'


def _point(document: Document, embedding: FloatArray, analyzer: Analyzer | None) -> rest.PointStruct:
    vectors: dict[str, Any] = {"embedding": embedding.tolist()}
    if analyzer is not None:
        counts = Counter(analyzer.terms(document.content))
        vectors["words"] = _sparse({term: count / (count + _SATURATION) for term, count in counts.items()})
    payload = {"id": document.id, "text": document.text, "metadata": document.metadata or {}}
    return rest.PointStruct(id=_point_id(document.id), vector=vectors, payload=payload)


def _point_id(id_: str) -> str:
    # No document has an id with half of a surrogate pair; such an id still needs a point to be absent from.
    return str(uuid.uuid5(_IDS, id_ if is_unicode(id_) else repr(id_.encode(errors="surrogatepass"))))


def _sparse(weights: Mapping[str, float]) -> rest.SparseVector:
    """Return the weights of terms, each identified by the lower 32 bits of its hash."""
    values: dict[int, float] = {}
    for term, weight in weights.items():
        key = text_hash(term) & 0xFFFFFFFF
        values[key] = values.get(key, 0.0) + weight
    return rest.SparseVector(indices=list(values), values=list(values.values()))


def _document(point: Any) -> Document:
    payload = point.payload
    return Document(payload["id"], payload["text"], payload["metadata"] or None)
