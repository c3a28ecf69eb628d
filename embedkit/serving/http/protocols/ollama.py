"""``/api/embed`` and what else Ollama's clients need to connect and to embed."""

from __future__ import annotations

import time
from typing import Any, Literal

import numpy as np
from pydantic import Field

from embedkit import __version__
from embedkit.errors import ModelNotFoundError
from embedkit.serving.http.app import Request
from embedkit.serving.http.embedding import Embedder, EmbeddingResult
from embedkit.serving.http.protocols.fields import Dimensions, Schema, TeiProblem, Texts, Truncate, as_texts
from embedkit.serving.http.routing import Response, Routes, to_json

_TAG = ":latest"  # which clients append to names without a tag
_NOTHING = EmbeddingResult(np.empty((0, 0), np.float32), tokens=0, truncated=0)

routes = Routes("Ollama", errors=TeiProblem)


class OllamaEmbedRequest(Schema):
    """Ollama's request; ``options`` and ``keep_alive`` are ignored."""

    model: str
    input: Texts | None = None
    truncate: Truncate = None
    dimensions: Dimensions = None


class OllamaEmbedAnswer(Schema):
    """Ollama's response; times are in nanoseconds."""

    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int
    prompt_eval_count: int = Field(description="number of tokens processed, including special tokens")


class OllamaEmbeddingsRequest(Schema):
    """Ollama's earlier request, for one text."""

    model: str
    prompt: str | None = None


class OllamaEmbeddingsAnswer(Schema):
    """Ollama's earlier response."""

    embedding: list[float]


class OllamaDetails(Schema):
    """Properties of a model."""

    format: Literal["onnx"]
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class OllamaModel(Schema):
    """A model in Ollama's format."""

    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: OllamaDetails


class OllamaModels(Schema):
    """All models that embed."""

    models: list[OllamaModel]


class OllamaShowRequest(Schema):
    """The name of a model."""

    model: str


class OllamaShowAnswer(Schema):
    """Properties of a model."""

    details: OllamaDetails
    model_info: dict[str, Any]
    capabilities: list[str]


class OllamaVersion(Schema):
    """Version of the server."""

    version: str


@routes.post("/api/embed", OllamaEmbedAnswer)
async def embed(body: OllamaEmbedRequest, request: Request) -> Response:
    """Embed one text, several or none, by which clients of Ollama ask for a model to be loaded."""
    began = time.perf_counter_ns()
    embedder, done = _embedder(body.model, request), _NOTHING
    if body.input is not None and body.input != []:
        done = await embedder.embed(as_texts(body.input), truncate=body.truncate, dimensions=body.dimensions)
    request.note(texts=len(done.rows), tokens=done.tokens, truncated=done.truncated)
    return to_json(
        {
            "model": body.model,
            "embeddings": list(done.rows),
            "total_duration": time.perf_counter_ns() - began,
            "load_duration": 0,
            "prompt_eval_count": done.tokens,
        }
    )


@routes.post("/api/embeddings", OllamaEmbeddingsAnswer)
async def embed_one(body: OllamaEmbeddingsRequest, request: Request) -> Response:
    """Embed one text or none, as earlier clients ask for it."""
    embedder, done = _embedder(body.model, request), _NOTHING
    if body.prompt is not None:
        done = await embedder.embed([body.prompt])
    request.note(texts=len(done.rows), tokens=done.tokens, truncated=done.truncated)
    return to_json({"embedding": done.rows.ravel()})


@routes.get("/api/tags", OllamaModels)
async def list_models(request: Request) -> Response:
    """The models that embed."""
    cards = [card for card in request.registry.cards() if card["kind"] == "encoder"]
    models = [
        {
            "name": f"{card['id']}{_TAG}",
            "model": f"{card['id']}{_TAG}",
            "modified_at": "1970-01-01T00:00:00Z",
            "size": 0,
            "digest": card["fingerprint"],
            "details": _details(request.registry.embedder(card["id"])),
        }
        for card in cards
    ]
    return to_json({"models": models})


@routes.post("/api/show", OllamaShowAnswer)
async def show(body: OllamaShowRequest, request: Request) -> Response:
    """Describe a model."""
    embedder = _embedder(body.model, request)
    family = embedder.encoder.manifest.kind
    info = {
        "general.architecture": family,
        f"{family}.embedding_length": embedder.encoder.dimension,
        f"{family}.context_length": embedder.encoder.max_length,
    }
    return to_json({"details": _details(embedder), "model_info": info, "capabilities": ["embedding"]})


@routes.get("/api/version", OllamaVersion)
async def version(_: Request) -> Response:
    """The version of embedkit."""
    return to_json({"version": __version__})


def _embedder(name: str, request: Request) -> Embedder:
    try:
        return request.registry.embedder(name)
    except ModelNotFoundError:
        return request.registry.embedder(name.removesuffix(_TAG))


def _details(embedder: Embedder) -> dict[str, Any]:
    manifest = embedder.encoder.manifest
    return {
        "format": "onnx",
        "family": manifest.kind,
        "families": [manifest.kind],
        "parameter_size": "",
        "quantization_level": manifest.precision,
    }
