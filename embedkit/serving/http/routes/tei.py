"""Routes for clients of text-embeddings-inference, except ``/rerank``."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from fastapi import APIRouter, Request
from starlette.responses import Response

from embedkit import __version__
from embedkit.errors import InputError
from embedkit.serving.http.routes.answers import TEI_PROBLEMS, Serving, answer, as_texts, note
from embedkit.serving.http.schemas.tei import (
    InferRequest,
    SimilarityInputs,
    SimilarityParameters,
    SimilarityRequest,
    TeiEmbedRequest,
    TeiInfo,
    TeiPrediction,
    TeiPredictRequest,
    TeiToken,
    TeiTokenizeRequest,
)

__all__ = ["router"]

_LABEL = "LABEL_0"  # transformers' default name of a single label

router = APIRouter(tags=["text-embeddings-inference"], responses=TEI_PROBLEMS)


@router.post("/embed", response_model=list[list[float]])
async def embed(body: TeiEmbedRequest, request: Request, catalogue: Serving) -> Response:
    """Embed one text or several: a list of embeddings."""
    if body.normalize is False:
        raise InputError("normalize: false is not supported, because this server returns unit vectors")
    done = await catalogue.embedder(body.model).embed(
        as_texts(body.inputs), prompt_name=body.prompt_name, dimensions=body.dimensions, truncate=body.truncate
    )
    note(request, texts=len(done.rows), tokens=done.tokens, truncated=done.truncated)
    return answer(list(done.rows))


@router.post("/similarity", response_model=list[float])
async def compare(body: SimilarityRequest, request: Request, catalogue: Serving) -> Response:
    """Return the cosine of one text with each of several."""
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


@router.post("/tokenize", response_model=list[list[TeiToken]])
async def tokenize(body: TeiTokenizeRequest, request: Request, catalogue: Serving) -> Response:
    """Return the tokens of one text or several, not truncated, with their character offsets."""
    texts, encoder = as_texts(body.inputs), catalogue.embedder(body.model).encoder
    catalogue.gate.check_limits(texts)
    found = await asyncio.to_thread(
        lambda: encoder.token_spans(texts, special_tokens=body.add_special_tokens, prompt_name=body.prompt_name)
    )
    note(request, texts=len(texts), tokens=sum(map(len, found)))
    return answer([[one._asdict() for one in tokens] for tokens in found])


@router.post("/predict", response_model=list[TeiPrediction] | list[list[TeiPrediction]])
async def predict(body: TeiPredictRequest, request: Request, catalogue: Serving) -> Response:
    """Return the cross-encoder's scores of a pair of texts, or of several pairs."""
    if body.raw_scores:
        raise InputError("raw_scores: true is not supported, because scores are those of the whole model")
    several = isinstance(body.inputs[0], list)
    pairs = cast(list[tuple[str, str]], body.inputs if several else [body.inputs])
    pairs = [(first, second) for first, second in pairs]
    ranked = await catalogue.needed_cross().predict(pairs, truncate=body.truncate)
    note(request, texts=len(pairs), tokens=ranked.tokens, truncated=ranked.truncated)
    found = [[{"score": score, "label": _LABEL}] for score in ranked.scores.tolist()]
    return answer(found if several else found[0])


@router.get("/info", response_model=TeiInfo)
async def info(catalogue: Serving, model: str | None = None) -> dict[str, Any]:
    """Describe a model, by default the default one, and the limits."""
    encoder, settings = catalogue.embedder(model).encoder, catalogue.settings
    manifest = encoder.manifest
    return {
        "model_id": manifest.name,
        "model_sha": encoder.fingerprint,
        "model_numerics": encoder.numerics,
        "model_dtype": manifest.precision,
        "model_type": {"embedding": {"pooling": manifest.pooling}},
        "max_concurrent_requests": settings.concurrent_requests,
        "max_input_length": manifest.max_length,
        "max_batch_tokens": settings.batch_tokens,
        "max_client_batch_size": settings.max_items,
        "auto_truncate": settings.on_overflow == "truncate",
        "version": __version__,
    }
