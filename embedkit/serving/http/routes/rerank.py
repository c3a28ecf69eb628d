"""``/v1/rerank`` for the clients of Cohere and Jina, ``/rerank`` for those of text-embeddings-inference."""

from __future__ import annotations

import uuid
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from embedkit.errors import InputError
from embedkit.serving.http.ranking import Ranked
from embedkit.serving.http.routes.answers import PROBLEMS, TEI_PROBLEMS, Serving, answer, note
from embedkit.serving.http.schemas.cohere import RerankAnswer, RerankRequest
from embedkit.serving.http.schemas.tei import TeiRank, TeiRerankRequest

__all__ = ["router"]

router = APIRouter()


@router.post("/v1/rerank", response_model=RerankAnswer, tags=["Cohere and Jina"], responses=PROBLEMS)
@router.post("/v2/rerank", response_model=RerankAnswer, tags=["Cohere and Jina"], responses=PROBLEMS)
async def rerank(body: RerankRequest, request: Request, catalogue: Serving) -> Response:
    """Order documents by relevance to a query, best first."""
    ranker = catalogue.ranker(body.model)
    texts = [document if isinstance(document, str) else document.text for document in body.documents]
    ranked = await ranker.rank(body.query, texts)
    _note(request, ranked)
    results: list[dict[str, Any]] = [
        {"index": index, "relevance_score": float(ranked.scores[index])}
        | ({"document": {"text": texts[index]}} if body.return_documents else {})
        for index in ranked.best(body.top_n)
    ]
    return answer(
        {
            "id": str(uuid.uuid4()),
            "model": ranker.manifest.name,
            "results": results,
            "usage": {"prompt_tokens": ranked.tokens, "total_tokens": ranked.tokens},
            "meta": {"api_version": {"version": "2"}, "billed_units": {"search_units": 0}},
        }
    )


@router.post("/rerank", response_model=list[TeiRank], tags=["text-embeddings-inference"], responses=TEI_PROBLEMS)
async def rerank_as_tei(body: TeiRerankRequest, request: Request, catalogue: Serving) -> Response:
    """Order texts by relevance to a query, best first."""
    if body.raw_scores:
        raise InputError("raw_scores: true is not supported, because scores are those of the whole model")
    ranked = await catalogue.ranker(body.model).rank(body.query, body.texts, truncate=body.truncate)
    _note(request, ranked)
    return answer(
        [
            {"index": index, "score": float(ranked.scores[index])}
            | ({"text": body.texts[index]} if body.return_text else {})
            for index in ranked.best()
        ]
    )


def _note(request: Request, ranked: Ranked) -> None:
    note(request, texts=len(ranked.scores), tokens=ranked.tokens, truncated=ranked.truncated)
