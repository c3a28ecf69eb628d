"""``/v1/embeddings`` and ``/v1/models``, for OpenAI's clients."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from embedkit.serving.http.routes.answers import PROBLEMS, Serving, answer, as_texts, note, to_base64
from embedkit.serving.http.schemas import EmbeddingsAnswer, EmbeddingsRequest, ModelCard, ModelList

__all__ = ["router"]

router = APIRouter(prefix="/v1", tags=["OpenAI"], responses=PROBLEMS)


@router.post("/embeddings", response_model=EmbeddingsAnswer)
async def embed(body: EmbeddingsRequest, request: Request, catalogue: Serving) -> Response:
    """Embed one text or several."""
    embedder = catalogue.embedder(body.model)
    done = await embedder.embed(as_texts(body.input), prompt_name=body.prompt_name, dimensions=body.dimensions)
    note(request, texts=len(done.rows), tokens=done.tokens, truncated=done.truncated)
    usage = {"prompt_tokens": done.tokens, "total_tokens": done.tokens}
    data = [
        {"object": "embedding", "index": index, "embedding": row}
        for index, row in enumerate(to_base64(done.rows) if body.encoding_format == "base64" else done.rows)
    ]
    return answer({"object": "list", "data": data, "model": embedder.encoder.name, "usage": usage})


@router.get("/models", response_model=ModelList)
async def list_models(catalogue: Serving) -> dict[str, Any]:
    """The models of this server."""
    return {"object": "list", "data": catalogue.cards()}


@router.get("/models/{id:path}", response_model=ModelCard)
async def describe_model(id: str, catalogue: Serving) -> dict[str, Any]:  # noqa: A002 - the name that the path has
    """One model of this server, by its name or an alias."""
    return catalogue.card(id)
