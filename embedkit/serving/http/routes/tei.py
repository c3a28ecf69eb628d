"""``/embed`` and ``/info``, for clients of text-embeddings-inference."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from embedkit import __version__
from embedkit.errors import InputError
from embedkit.serving.http.routes.answers import TEI_PROBLEMS, Serving, answer, as_texts, note
from embedkit.serving.http.schemas import TeiEmbedRequest, TeiInfo

__all__ = ["router"]

router = APIRouter(tags=["text-embeddings-inference"], responses=TEI_PROBLEMS)


@router.post("/embed", response_model=list[list[float]])
async def embed(body: TeiEmbedRequest, request: Request, service: Serving) -> Response:
    """Embed one text or several: a list of embeddings."""
    if not body.normalize:
        raise InputError("normalize=false is not possible here: this server gives unit rows")
    done = await service.embedder.embed(
        as_texts(body.inputs), prompt_name=body.prompt_name, dimensions=body.dimensions, truncate=body.truncate
    )
    note(request, texts=len(done.rows), tokens=done.tokens, truncated=done.truncated)
    return answer(list(done.rows))


@router.get("/info", response_model=TeiInfo)
async def info(service: Serving) -> dict[str, Any]:
    """The model and the limits."""
    manifest, settings = service.encoder.manifest, service.settings
    return {
        "model_id": manifest.name,
        "model_sha": service.encoder.fingerprint,
        "model_dtype": manifest.precision,
        "model_type": {"embedding": {"pooling": manifest.pooling}},
        "max_concurrent_requests": settings.concurrent_requests,
        "max_input_length": manifest.max_length,
        "max_batch_tokens": settings.batch_tokens,
        "max_client_batch_size": settings.max_items,
        "auto_truncate": settings.on_overflow == "truncate",
        "version": __version__,
    }
