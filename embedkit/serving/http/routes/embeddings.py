"""``/v1/embeddings`` and ``/v1/models``, for OpenAI's clients."""

from __future__ import annotations

from typing import Any, cast

from fastapi import APIRouter, Request
from starlette.responses import Response

from embedkit.errors import InputError
from embedkit.serving.http.catalogue import Catalogue
from embedkit.serving.http.embedding import Embedder
from embedkit.serving.http.routes.answers import PROBLEMS, Serving, answer, as_texts, note, to_base64
from embedkit.serving.http.schemas.openai import EmbeddingsAnswer, EmbeddingsRequest, ModelCard, ModelList

__all__ = ["router"]

router = APIRouter(prefix="/v1", tags=["OpenAI"], responses=PROBLEMS)


@router.post("/embeddings", response_model=EmbeddingsAnswer)
async def embed(body: EmbeddingsRequest, request: Request, catalogue: Serving) -> Response:
    """Embed one text or several."""
    embedder = catalogue.embedder(body.model)
    if body.tokenizer is None:
        texts = as_texts(cast(str | list[str], body.input))
        done = await embedder.embed(texts, prompt_name=body.prompt_name, dimensions=body.dimensions)
    else:
        done = await embedder.embed_ids(_token_ids(body, embedder, catalogue), dimensions=body.dimensions)
    note(request, texts=len(done.rows), tokens=done.tokens, truncated=done.truncated)
    usage = {"prompt_tokens": done.tokens, "total_tokens": done.tokens}
    data = [
        {"object": "embedding", "index": index, "embedding": row}
        for index, row in enumerate(to_base64(done.rows) if body.encoding_format == "base64" else done.rows)
    ]
    return answer({"object": "list", "data": data, "model": embedder.encoder.name, "usage": usage})


def _token_ids(body: EmbeddingsRequest, embedder: Embedder, catalogue: Catalogue) -> list[list[int]]:
    """Return the token ids of a request, if they belong to the model that embeds them."""
    encoder = embedder.encoder
    if body.tokenizer != encoder.fingerprint and catalogue.embedder(body.tokenizer).encoder is not encoder:
        raise InputError(f"tokenizer: expected {encoder.name!r}, the requested model, got {body.tokenizer!r:.80}")
    if body.prompt_name is not None:
        raise InputError("prompt_name: prompts cannot be prepended to token ids; send texts")
    given = body.input
    if not isinstance(given, list) or any(isinstance(one, str) for one in given):
        raise InputError("input: expected token ids, because tokenizer is set; omit it to send texts")
    return cast(list[list[int]], given if given and isinstance(given[0], list) else [given])


@router.get("/models", response_model=ModelList)
async def list_models(catalogue: Serving) -> dict[str, Any]:
    """The models of this server."""
    return {"object": "list", "data": catalogue.cards()}


@router.get("/models/{id:path}", response_model=ModelCard)
async def describe_model(id: str, catalogue: Serving) -> dict[str, Any]:  # noqa: A002 - the name that the path has
    """One model of this server, by its name or an alias."""
    return catalogue.card(id)
