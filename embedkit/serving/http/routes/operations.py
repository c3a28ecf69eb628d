"""Health and metrics, for whoever runs the server."""

from __future__ import annotations

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import JSONResponse, PlainTextResponse

from embedkit.serving.http.routes.answers import Serving
from embedkit.serving.http.schemas import Health

__all__ = ["router"]

router = APIRouter(tags=["operations"])


@router.get("/health/live", response_model=Health)
async def live() -> Response:
    """Whether the process answers at all."""
    return JSONResponse({"status": "ok"})


@router.get("/health/ready", response_model=Health, responses={503: {"model": Health}})
async def ready(service: Serving) -> Response:
    """Whether it takes requests; 503 once it was told to end."""
    if service.draining:
        return JSONResponse({"status": "draining"}, 503)
    return JSONResponse({"status": "ok"})


@router.get("/health", response_model=Health, responses={503: {"model": Health}})
async def health(service: Serving) -> Response:
    """As ``/health/ready``, under the name that text-embeddings-inference has for it."""
    return await ready(service)


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(service: Serving) -> Response:
    """Counters for Prometheus."""
    return Response(service.metrics.text(), media_type=CONTENT_TYPE_LATEST)
