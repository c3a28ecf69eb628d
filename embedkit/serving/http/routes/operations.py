"""Health, readiness, reload and metrics, for operators."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import JSONResponse, PlainTextResponse

from embedkit.serving.http.routes.answers import TEI_PROBLEMS, Operating
from embedkit.serving.http.schemas.openai import ModelList
from embedkit.serving.http.schemas.operations import Health

__all__ = ["router"]

router = APIRouter(tags=["operations"])


@router.get("/health/live", response_model=Health)
async def live() -> Response:
    """Whether the process responds."""
    return JSONResponse({"status": "ok"})


@router.get("/health/ready", response_model=Health, responses={503: {"model": Health}})
async def ready(service: Operating) -> Response:
    """Whether the server accepts requests; 503 during shutdown."""
    if service.draining:
        return JSONResponse({"status": "draining"}, 503)
    return JSONResponse({"status": "ok"})


@router.get("/health", response_model=Health, responses={503: {"model": Health}})
async def health(service: Operating) -> Response:
    """As ``/health/ready``, under the path of text-embeddings-inference."""
    return await ready(service)


@router.post("/admin/reload", response_model=ModelList, responses=TEI_PROBLEMS)
async def reload(service: Operating) -> dict[str, Any]:
    """Load models and collection again, and list the models; needs an API key with the scope ``admin``."""
    await service.reload_everywhere()
    return {"object": "list", "data": service.catalogue.cards()}


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(service: Operating) -> Response:
    """Counters for Prometheus."""
    return Response(await service.metrics_text(), media_type=CONTENT_TYPE_LATEST)
