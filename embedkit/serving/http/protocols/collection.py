"""``/v1/search`` and ``/v1/documents``: search and change the server's collection."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from pydantic import ConfigDict, Field, field_validator, model_validator

from embedkit.errors import InputError, did_you_mean
from embedkit.serving.http.app import Request
from embedkit.serving.http.protocols.fields import Listed, OwnSchema, Problem, Schema
from embedkit.serving.http.responses import Response, problem, to_json
from embedkit.serving.http.routing import Routes
from embedkit.serving.retrieval.documents import Document
from embedkit.serving.retrieval.filters import read_filter
from embedkit.serving.retrieval.options import Mode, SearchOptions
from embedkit.serving.retrieval.search import Hit, Hits

routes = Routes("collection", errors=Problem)
writing_routes = Routes("collection", errors=Problem, scope="write")


def option(name: str, *, default: Any = None, **limits: Any) -> Any:
    """Declare a field for one of :class:`SearchOptions`, with its default and description."""
    declared = SearchOptions.__dataclass_fields__[name]
    value = declared.default if default is None else default
    return Field(value, description=declared.metadata["doc"], **limits)


class SearchRequest(OwnSchema):
    """A search."""

    synonyms = {"q": "query", "top_k": "k", "limit": "k", "filters": "filter"}  # noqa: RUF012 - of the base class

    query: str
    k: int = option("k", ge=1, le=1000)
    mode: Mode | None = option("mode")
    filter: dict[str, Any] | str | None = Field(
        None,
        description=f"{SearchOptions.__dataclass_fields__['filter'].metadata['doc']}, "
        'or as a person writes them: "lang = en, year >= 2020"',
    )
    rerank: bool = option("rerank", default=False)
    rerank_weight: float | None = option("rerank_weight", ge=0, le=1)
    candidates: int | None = option("candidates", ge=1, le=1000)
    effort: float = option("effort", gt=0, le=16)
    hybrid: bool | None = Field(None, description='older form of "mode": true is "hybrid", false "dense"')


def check_json(value: Any) -> Any:
    """Reject values that Python's JSON parser accepts but JSON lacks: NaN and unpaired surrogates."""
    json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    return value


class StoredDocument(Schema):
    """A document of the collection."""

    id: str
    text: str
    metadata: dict[str, Any] | None = None


class DocumentBody(OwnSchema):
    """A document to add; further fields are metadata, as in a ``.jsonl`` file."""

    model_config = ConfigDict(json_schema_extra={"additionalProperties": True})

    id: str = Field(min_length=1, description="a document with the same id is replaced")
    text: str
    metadata: dict[str, Any] | None = Field(None, description="fields that searches can filter by")

    _json = field_validator("metadata", mode="before")(check_json)

    @model_validator(mode="before")
    @classmethod
    def _gather_metadata(cls, data: Any) -> Any:
        """Move fields beside ``metadata`` into it."""
        if not isinstance(data, dict) or data.keys() <= cls.model_fields.keys():
            return data
        flat = {name: value for name, value in data.items() if name not in cls.model_fields}
        for name, value in flat.items():
            hint = did_you_mean(name, ["metadata"], "") if isinstance(value, dict) else ""
            if hint and "metadata" not in data:
                raise ValueError(f"unknown field {name!r:.40}; {hint}")
        nested = data.get("metadata") or {}
        if not isinstance(nested, dict):
            return data
        if twice := flat.keys() & nested.keys():
            raise ValueError(f"the field {min(twice)!r:.40} is given twice, in metadata and beside it")
        return {**{name: data[name] for name in ("id", "text") if name in data}, "metadata": {**flat, **nested}}

    def record(self) -> dict[str, object]:
        """Return the document as a record of a file."""
        metadata = self.metadata or {}
        if taken := {"id", "text"} & metadata.keys():
            raise InputError(f"metadata: {min(taken)!r} is a field of the document itself; choose another name")
        return {"id": self.id, "text": self.text, **metadata}


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


class DeleteRequest(OwnSchema):
    """Documents to delete."""

    ids: Listed[str]


class DeleteAnswer(Schema):
    """Number of deleted documents."""

    deleted: int


@routes.post("/v1/search", SearchAnswer)
async def search(body: SearchRequest, request: Request) -> Response:
    """Find the documents nearest in meaning to a query."""
    collection, limits = request.registry.needed_collection(), request.registry.limits
    conditions = body.filter
    if isinstance(conditions, str):
        written = conditions
        limits.check([written])
        conditions = await limits.offload(len(written), lambda: read_filter(written))
    given = body.model_dump(exclude={"query", "filter"}) | {"filter": conditions}
    hits = await collection.search(body.query, SearchOptions.of(**given))
    request.note(hits=len(hits), **{f"{stage}_ms": round(ms, 2) for stage, ms in hits.latency_ms.items()})
    characters = sum(len(hit.text) for hit in hits)
    content = await limits.offload(characters, lambda: _hits_to_json(hits, limits.check_response))
    return Response(content)


@routes.get("/v1/collection", CollectionCard | None)
async def describe(request: Request) -> Response:
    """Describe the collection and the available search stages; null if the server has none."""
    collection = request.registry.collection
    return to_json(None if collection is None else collection.card())


@routes.get("/v1/collection/map", CollectionMap)
async def draw_map(request: Request) -> Response:
    """Return the documents in two dimensions, the principal axes of their embeddings."""
    return _to_json(await request.registry.needed_collection().map())


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


@writing_routes.post("/v1/documents/delete", DeleteAnswer)
async def delete(body: DeleteRequest, request: Request) -> Response:
    """Delete documents by id; unknown ids are ignored."""
    deleted = await request.registry.needed_collection().delete(body.ids)
    request.note(deleted=deleted)
    return to_json({"deleted": deleted})


def _content(document: Document | Hit) -> dict[str, Any]:
    return {"id": document.id, "text": document.text, "metadata": document.metadata}


def _hits_to_json(hits: Hits, check: Callable[[int], None]) -> bytes:
    """Write hits in pieces, between which other threads run, and check the size as it grows."""
    content = bytearray(b'{"hits":[')
    for number, hit in enumerate(hits):
        content += b"," if number else b""
        content += _dump({**_content(hit), "score": hit.score, "scores": hit.scores})
        check(len(content))
    content += b"]," + _dump({"latency_ms": hits.latency_ms, "warnings": hits.warnings})[1:]
    return bytes(content)


def _to_json(content: Any) -> Response:
    return Response(_dump(content))


def _dump(content: Any) -> bytes:
    """Return content that may contain integers of any size, which orjson cannot write, as JSON."""
    return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
