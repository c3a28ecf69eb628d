"""``/v1/search`` and ``/v1/documents``: search and change the server's collection."""

from __future__ import annotations

import dataclasses
from typing import Any

from fastapi import APIRouter, Request
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from embedkit.errors import InputError
from embedkit.serving.http.routes.answers import PROBLEMS, Serving, answer, note
from embedkit.serving.http.schemas.search import (
    CollectionCard,
    CollectionMap,
    DeleteAnswer,
    DeleteRequest,
    DocumentBody,
    SearchAnswer,
    SearchRequest,
    UpsertAnswer,
    UpsertRequest,
)

__all__ = ["router", "writing_router"]

# JSONResponse instead of `answer`: metadata may contain integers of any size, which orjson cannot write.

router = APIRouter(prefix="/v1", tags=["collection"], responses=PROBLEMS)
writing_router = APIRouter(prefix="/v1", tags=["collection"], responses=PROBLEMS)


@router.post("/search", response_model=SearchAnswer)
async def search(body: SearchRequest, request: Request, catalogue: Serving) -> Response:
    """Find the documents nearest in meaning to a query."""
    catalogue.gate.check_limits([body.query])
    hits = await catalogue.needed_library().search(
        body.query,
        body.k,
        conditions=body.filter,
        hybrid=body.hybrid,
        rerank=body.rerank,
        candidates=body.candidates,
        effort=body.effort,
    )
    note(request, hits=len(hits), **{f"{stage}_ms": round(ms, 2) for stage, ms in hits.latency_ms.items()})
    found = [dataclasses.asdict(hit) for hit in hits]
    return JSONResponse({"hits": found, "latency_ms": hits.latency_ms, "warnings": hits.warnings})


@router.get("/collection", response_model=CollectionCard | None)
async def describe(catalogue: Serving) -> dict[str, Any] | None:
    """Describe the collection and the available search stages; null if the server has none."""
    return None if catalogue.library is None else catalogue.library.card()


@router.get("/collection/map", response_model=CollectionMap)
async def draw_map(catalogue: Serving) -> Response:
    """Return the documents in two dimensions, the principal axes of their embeddings."""
    return JSONResponse(await catalogue.needed_library().map())


@router.get("/documents/{id:path}", response_model=DocumentBody)
async def get_document(id: str, catalogue: Serving) -> Response:  # noqa: A002 - the name that the path has
    """Return the document with this id."""
    document = await catalogue.needed_library().get(id)
    if document is None:
        raise HTTPException(404, "there is no document with this id")
    return JSONResponse(dataclasses.asdict(document))


@writing_router.post("/documents", response_model=UpsertAnswer)
async def upsert(body: UpsertRequest, request: Request, catalogue: Serving) -> Response:
    """Add documents, replacing those with the same ids. They are stored when the response arrives."""
    catalogue.gate.check_limits([document.text for document in body.documents])
    added, replaced = await catalogue.needed_library().upsert([_record(document) for document in body.documents])
    note(request, added=added, replaced=replaced)
    return answer({"added": added, "replaced": replaced})


@writing_router.post("/documents/delete", response_model=DeleteAnswer)
async def delete(body: DeleteRequest, request: Request, catalogue: Serving) -> Response:
    """Delete documents by id; unknown ids are ignored."""
    catalogue.gate.check_limits(body.ids)
    deleted = await catalogue.needed_library().delete(body.ids)
    note(request, deleted=deleted)
    return answer({"deleted": deleted})


def _record(document: DocumentBody) -> dict[str, object]:
    metadata = document.metadata or {}
    if taken := {"id", "text"} & metadata.keys():
        raise InputError(f"metadata: {min(taken)!r} is a field of the document itself; choose another name")
    return {"id": document.id, "text": document.text, **metadata}
