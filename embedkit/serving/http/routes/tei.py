"""``/embed``, ``/similarity``, ``/`` and ``/info``, for clients of text-embeddings-inference."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from embedkit import __version__
from embedkit.errors import InputError
from embedkit.serving.http.routes.answers import TEI_PROBLEMS, Serving, answer, as_texts, note
from embedkit.serving.http.schemas import (
    InferRequest,
    SimilarityInputs,
    SimilarityParameters,
    SimilarityRequest,
    TeiEmbedRequest,
    TeiInfo,
)

__all__ = ["router"]

router = APIRouter(tags=["text-embeddings-inference"], responses=TEI_PROBLEMS)


@router.post("/embed", response_model=list[list[float]])
async def embed(body: TeiEmbedRequest, request: Request, catalogue: Serving) -> Response:
    """Embed one text or several: a list of embeddings."""
    if body.normalize is False:
        raise InputError("normalize: false is not possible here, as this server gives unit rows")
    done = await catalogue.embedder(body.model).embed(
        as_texts(body.inputs), prompt_name=body.prompt_name, dimensions=body.dimensions, truncate=body.truncate
    )
    note(request, texts=len(done.rows), tokens=done.tokens, truncated=done.truncated)
    return answer(list(done.rows))


@router.post("/similarity", response_model=list[float])
async def compare(body: SimilarityRequest, request: Request, catalogue: Serving) -> Response:
    """The cosine of one text with each of several."""
    given, how = body.inputs, body.parameters or SimilarityParameters(prompt_name=None)
    done = await catalogue.embedder(body.model).embed(
        [given.source_sentence, *given.sentences], prompt_name=how.prompt_name, truncate=how.truncate
    )
    note(request, texts=len(done.rows), tokens=done.tokens, truncated=done.truncated)
    return answer(done.rows[1:] @ done.rows[0])


@router.post("/", response_model=list[list[float]] | list[float])
async def infer(body: InferRequest, request: Request, catalogue: Serving) -> Response:
    """As ``/embed`` for texts, and as ``/similarity`` for ``{"source_sentence", "sentences"}``."""
    if isinstance(body.inputs, SimilarityInputs):
        return await compare(
            SimilarityRequest(inputs=body.inputs, parameters=body.parameters, model=body.model), request, catalogue
        )
    return await embed(body, request, catalogue)


@router.get("/info", response_model=TeiInfo)
async def info(catalogue: Serving, model: str | None = None) -> dict[str, Any]:
    """A model, the default one unless another is named, and the limits."""
    encoder, settings = catalogue.embedder(model).encoder, catalogue.settings
    manifest = encoder.manifest
    return {
        "model_id": manifest.name,
        "model_sha": encoder.fingerprint,
        "model_dtype": manifest.precision,
        "model_type": {"embedding": {"pooling": manifest.pooling}},
        "max_concurrent_requests": settings.concurrent_requests,
        "max_input_length": manifest.max_length,
        "max_batch_tokens": settings.batch_tokens,
        "max_client_batch_size": settings.max_items,
        "auto_truncate": settings.on_overflow == "truncate",
        "version": __version__,
    }
