"""``/v1/search`` and ``/v1/documents``: search and change the server's collection."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, Self

from pydantic import ConfigDict, Field, field_validator, model_validator

from embedkit.errors import InputError, did_you_mean
from embedkit.serving.http.app import Request
from embedkit.serving.http.embedding import Limits
from embedkit.serving.http.protocols.fields import Listed, OwnSchema, Problem, Schema
from embedkit.serving.http.routing import Response, Routes, problem, to_json
from embedkit.serving.retrieval.documents import Document
from embedkit.serving.retrieval.filters import read_filter
from embedkit.serving.retrieval.search import Hit, Mode, SearchOptions

_FEW = 8  # fields that are compared with the name that was meant

routes = Routes("collection", errors=Problem)
writing_routes = Routes("collection", errors=Problem, scope="write")


def option(name: str, *, default: Any = None, **limits: Any) -> Any:
    """Declare a field for one of :class:`SearchOptions`, with its default and description."""
    declared = SearchOptions.__dataclass_fields__[name]
    value = declared.default if default is None else default
    return Field(value, description=declared.metadata["doc"], **limits)


FilterBody = Annotated[
    dict[str, Any] | str | None,
    Field(
        description=f"{SearchOptions.__dataclass_fields__['filter'].metadata['doc']}, "
        'or as a person writes them: "lang = en, year >= 2020"',
    ),
]


class SearchRequest(OwnSchema):
    """A search."""

    synonyms = {"q": "query", "top_k": "k", "limit": "k", "filters": "filter"}  # noqa: RUF012 - of the base class

    query: str
    k: int = option("k", ge=1, le=1000)
    mode: Mode | None = option("mode")
    filter: FilterBody = None
    rerank: bool = option("rerank", default=False)
    rerank_weight: float | None = option("rerank_weight", ge=0, le=1)
    candidates: int | None = option("candidates", ge=1, le=1000)
    effort: float = option("effort", gt=0, le=16)


def check_json(value: Any) -> Any:
    """Reject values that Python's JSON parser accepts but JSON lacks: NaN and unpaired surrogates."""
    json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    return value


class StoredDocument(Schema):
    """A document of the collection."""

    id: str
    text: str
    metadata: dict[str, Any] | None = None


class MetadataBody(OwnSchema):
    """New metadata of a document, which keeps its other metadata; further fields are metadata, too."""

    model_config = ConfigDict(json_schema_extra={"additionalProperties": True})

    id: str = Field(min_length=1)
    metadata: dict[str, Any] | None = Field(None, description="fields that searches can filter by")

    _json = field_validator("metadata", mode="before")(check_json)

    @model_validator(mode="before")
    @classmethod
    def _gather_metadata(cls, data: Any) -> Any:
        """Move fields beside ``metadata`` into it."""
        if not isinstance(data, dict) or data.keys() <= cls.model_fields.keys():
            return data
        flat = {name: value for name, value in data.items() if name not in cls.model_fields}
        objects = (name for name, value in flat.items() if isinstance(value, dict) and "metadata" not in data)
        for name in itertools.islice(objects, _FEW):
            if hint := did_you_mean(name, ["metadata"], ""):
                raise ValueError(f"unknown field {name!r:.40}; {hint}")
        nested = data.get("metadata") or {}
        if not isinstance(nested, dict):
            return data
        if twice := flat.keys() & nested.keys():
            raise ValueError(f"the field {min(twice)!r:.40} is given twice, in metadata and beside it")
        own = {name: value for name, value in data.items() if name in cls.model_fields}
        return {**own, "metadata": {**flat, **nested}}

    def fields(self) -> dict[str, object]:
        """Return the metadata; InputError if a name is that of a document's own field."""
        metadata = self.metadata or {}
        if taken := {"id", "text"} & metadata.keys():
            raise InputError(f"metadata: {min(taken)!r} is a field of the document itself; choose another name")
        return metadata


class DocumentBody(MetadataBody):
    """A document to add; further fields are metadata, as in a ``.jsonl`` file."""

    id: str = Field(min_length=1, description="a document with the same id is replaced")
    text: str

    def record(self) -> dict[str, object]:
        """Return the document as a record of a file."""
        return {"id": self.id, "text": self.text, **self.fields()}


class SearchHit(StoredDocument):
    """A search result."""

    score: float
    scores: dict[str, float] = Field(description="scores by stage: dense, lexical, fused, rerank, blended")


class SearchAnswer(Schema):
    """Hits, best first, and the milliseconds of each stage."""

    hits: list[SearchHit]
    latency_ms: dict[str, float]
    warnings: list[str] = Field(description="likely mistakes, such as a filter on a field that no document has")


class CollectionCard(Schema):
    """Description of the collection."""

    model: str
    reranker: str | None
    documents: int
    lexical: bool = Field(description="whether there is a keyword index")
    index: str = Field(description="kinds of index; effort has no effect on exact ones")


class MapPoint(Schema):
    """A document on the map: its coordinates and the beginning of its text."""

    id: str
    x: float
    y: float
    text: str


class CollectionMap(Schema):
    """Documents in two dimensions; an evenly spaced sample if there are many."""

    points: list[MapPoint]
    explained: float = Field(description="share of the embeddings' variance along the two axes")


class UpsertRequest(OwnSchema):
    """Documents to add; existing ones with the same ids are replaced."""

    documents: Listed[DocumentBody] = Field(min_length=1)


class UpsertAnswer(Schema):
    """Numbers of new and replaced documents."""

    added: int
    replaced: int


class UpdateRequest(OwnSchema):
    """Documents whose metadata change; nothing is embedded again."""

    documents: Listed[MetadataBody] = Field(min_length=1)


class UpdateAnswer(Schema):
    """Number of changed documents."""

    updated: int


class CountRequest(OwnSchema):
    """Documents to count."""

    synonyms = {"filters": "filter"}  # noqa: RUF012 - of the base class

    filter: FilterBody = None


class CountAnswer(Schema):
    """Number of documents that a filter selects."""

    count: int
    warnings: list[str] = Field(description="fields of the filter that no document has")


class FindRequest(CountRequest):
    """Documents to list."""

    limit: int = Field(100, ge=1, le=1000, description="number of documents")
    offset: int = Field(0, ge=0, le=2**31, description="number of documents to leave out before the first")


class FindAnswer(Schema):
    """Documents that a filter selects, in their order."""

    documents: list[StoredDocument]
    warnings: list[str] = Field(description="fields of the filter that no document has")


class DeleteRequest(CountRequest):
    """Documents to delete, either by their ids or by a filter with at least one condition."""

    ids: Listed[str] | None = None

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.ids is None) == (self.filter is None):
            raise ValueError("expected either ids or a filter")
        return self


class DeleteAnswer(Schema):
    """Number of deleted documents."""

    deleted: int


@routes.post("/v1/search", SearchAnswer)
async def search(body: SearchRequest, request: Request) -> Response:
    """Find the documents nearest in meaning to a query."""
    collection, limits = request.registry.needed_collection(), request.registry.limits
    conditions = await _conditions(body.filter, limits)
    given = body.model_dump(exclude={"query", "filter"}) | {"filter": conditions}
    hits = await collection.search(body.query, SearchOptions(**given))
    request.note(hits=len(hits), **{f"{stage}_ms": round(ms, 2) for stage, ms in hits.latency_ms.items()})
    characters = sum(len(hit.text) for hit in hits)
    items = ({**_content(hit), "score": hit.score, "scores": hit.scores} for hit in hits)
    rest = {"latency_ms": hits.latency_ms, "warnings": hits.warnings}
    return Response(
        await limits.offload(characters, lambda: _to_pieces("hits", items, rest, limits.check_response))
    )


@routes.get("/v1/collection", CollectionCard | None)
async def describe(request: Request) -> Response:
    """Describe the collection and the available search stages; null if the server has none."""
    collection = request.registry.collection
    return to_json(None if collection is None else collection.card())


@routes.get("/v1/collection/map", CollectionMap)
async def draw_map(request: Request) -> Response:
    """Return the documents in two dimensions, the principal axes of their embeddings."""
    return _to_json(await request.registry.needed_collection().map())


@routes.post("/v1/documents/find", FindAnswer)
async def find(body: FindRequest, request: Request) -> Response:
    """List documents that a filter selects, in their order."""
    collection, limits = request.registry.needed_collection(), request.registry.limits
    conditions = await _conditions(body.filter, limits)
    documents, warnings = await collection.find(conditions, limit=body.limit, offset=body.offset)
    request.note(documents=len(documents))
    characters = sum(len(document.text) for document in documents)
    items, rest = map(_content, documents), {"warnings": warnings}
    content = await limits.offload(characters, lambda: _to_pieces("documents", items, rest, limits.check_response))
    return Response(content)


@routes.post("/v1/documents/count", CountAnswer)
async def count(body: CountRequest, request: Request) -> Response:
    """Count the documents that a filter selects."""
    conditions = await _conditions(body.filter, request.registry.limits)
    found, warnings = await request.registry.needed_collection().count(conditions)
    return to_json({"count": found, "warnings": warnings})


@routes.get("/v1/documents/{id}", StoredDocument)
async def get_document(request: Request) -> Response:
    """Return the document with this id."""
    document = await request.registry.needed_collection().get(request.match.id)
    if document is None:
        return problem(request.path, 404, "there is no document with this id")
    return _to_json(_content(document))


@writing_routes.post("/v1/documents", UpsertAnswer)
async def upsert(body: UpsertRequest, request: Request) -> Response:
    """Add documents, replacing those with the same ids. They are stored when the response arrives."""
    added, replaced = await request.registry.needed_collection().upsert(
        [document.record() for document in body.documents]
    )
    request.note(added=added, replaced=replaced)
    return to_json({"added": added, "replaced": replaced})


@writing_routes.post("/v1/documents/update", UpdateAnswer)
async def update(body: UpdateRequest, request: Request) -> Response:
    """Change metadata of documents, of which unknown ones are ignored, and keep texts and other metadata."""
    updated = await request.registry.needed_collection().update(changes(body.documents))
    request.note(updated=updated)
    return to_json({"updated": updated})


@writing_routes.post("/v1/documents/delete", DeleteAnswer)
async def delete(body: DeleteRequest, request: Request) -> Response:
    """Delete documents by id, of which unknown ones are ignored, or all that a filter selects."""
    conditions = await _conditions(body.filter, request.registry.limits)
    deleted = await request.registry.needed_collection().delete(body.ids, conditions)
    request.note(deleted=deleted)
    return to_json({"deleted": deleted})


def changes(documents: Sequence[MetadataBody]) -> dict[str, dict[str, object]]:
    """Return new metadata by id; InputError if an id occurs twice."""
    by_id = {document.id: document.fields() for document in documents}
    if len(by_id) < len(documents):
        (twice, _), *_ = Counter(document.id for document in documents).most_common(1)
        raise InputError(f"documents: the id {twice!r:.80} occurs twice")
    return by_id


def _content(document: Document | Hit) -> dict[str, Any]:
    return {"id": document.id, "text": document.text, "metadata": document.metadata}


async def _conditions(given: dict[str, Any] | str | None, limits: Limits) -> dict[str, Any] | None:
    """Return a filter that may be written as text."""
    if not isinstance(given, str):
        return given
    limits.check([given])
    return await limits.offload(len(given), lambda: read_filter(given))


def _to_pieces(
    name: str, items: Iterable[dict[str, Any]], rest: dict[str, Any], check: Callable[[int], None]
) -> bytes:
    """Write a list in pieces, between which other threads run, and check the size as it grows."""
    content = bytearray(b'{"%b":[' % name.encode())
    for number, item in enumerate(items):
        content += b"," if number else b""
        content += _dump(item)
        check(len(content))
    return bytes(content + b"]," + _dump(rest)[1:])


def _to_json(content: Any) -> Response:
    return Response(_dump(content))


def _dump(content: Any) -> bytes:
    """Return content that may contain integers of any size, which orjson cannot write, as JSON."""
    return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
