"""``/v1/embed`` and ``/v2/embed``, for Cohere's clients."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any, Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from embedkit.protocols import FloatArray
from embedkit.runtime.encoder import Encoder
from embedkit.runtime.packing import Precision
from embedkit.serving.http.embedding import Embedded, Embedder, Role
from embedkit.serving.http.routes.answers import PROBLEMS, Serving, answer, note, to_base64
from embedkit.serving.http.schemas.cohere import CohereEmbedAnswer, CohereEmbedRequest

__all__ = ["router"]

router = APIRouter(tags=["Cohere and Jina"], responses=PROBLEMS)

_PRECISIONS: Final[dict[str, Precision]] = {
    "float": "float32",
    "base64": "float32",
    "int8": "int8",
    "uint8": "uint8",
    "binary": "binary",
    "ubinary": "ubinary",
}
_ROLES: Final[dict[str, Role]] = {"search_query": "query", "search_document": "document"}


@router.post("/v2/embed", response_model=CohereEmbedAnswer)
async def embed(body: CohereEmbedRequest, request: Request, catalogue: Serving) -> Response:
    """Embed texts: lists of rows by type."""
    embedder = catalogue.embedder(body.model)
    done = await _embed(body, request, embedder)
    return answer(
        _content(body, done, _by_type(body, body.embedding_types or ["float"], done.rows, embedder.encoder))
    )


@router.post("/v1/embed", response_model=CohereEmbedAnswer)
async def embed_as_before(body: CohereEmbedRequest, request: Request, catalogue: Serving) -> Response:
    """Embed texts: a list of rows, or lists by type if types are requested."""
    embedder = catalogue.embedder(body.model)
    done = await _embed(body, request, embedder)
    found = _by_type(body, body.embedding_types or ["float"], done.rows, embedder.encoder)
    return answer(_content(body, done, found if body.embedding_types else found["float"]))


async def _embed(body: CohereEmbedRequest, request: Request, embedder: Embedder) -> Embedded:
    """Embed with all dimensions, from which bytes and bits are computed even if fewer dimensions are requested."""
    embedder.check_dimensions(body.output_dimension, "output_dimension")
    role = _ROLES.get(body.input_type or "")
    truncate = None if body.truncate is None else body.truncate == "END"
    done = await embedder.embed(body.texts, role=role, truncate=truncate)
    note(request, texts=len(done.rows), tokens=done.tokens, truncated=done.truncated)
    return done


def _content(body: CohereEmbedRequest, done: Embedded, embeddings: Any) -> dict[str, Any]:
    units = {"input_tokens": done.tokens}
    return {
        "id": str(uuid.uuid4()),
        "response_type": "embeddings_floats" if isinstance(embeddings, list) else "embeddings_by_type",
        "embeddings": embeddings,
        "texts": body.texts,
        "meta": {"api_version": {"version": "2"}, "billed_units": units, "tokens": units},
    }


def _by_type(
    body: CohereEmbedRequest, types: Sequence[str], rows: FloatArray, encoder: Encoder
) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for kind in types:
        packed = encoder.pack(rows, _PRECISIONS[kind], truncate_dim=body.output_dimension)
        found[kind] = to_base64(packed) if kind == "base64" else list(packed)
    return found
