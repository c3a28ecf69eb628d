"""A typical server in twenty lines: FastAPI, and sentence-transformers in FastAPI's own thread pool.

MODEL=FOLDER THREADS=1 uvicorn plain:app
"""

from __future__ import annotations

import os
from typing import Any

import torch
from fastapi import FastAPI
from pydantic import BaseModel
from sentence_transformers import SentenceTransformer

app = FastAPI()
torch.set_num_threads(int(os.environ["THREADS"]))
encoder = SentenceTransformer(os.environ["MODEL"], device="cpu")


class EmbeddingsRequest(BaseModel):
    """The relevant part of OpenAI's request."""

    input: str | list[str]
    model: str


@app.post("/v1/embeddings")
def embed(request: EmbeddingsRequest) -> dict[str, Any]:
    """Embed one text or several."""
    texts = [request.input] if isinstance(request.input, str) else request.input
    rows = encoder.encode(texts, show_progress_bar=False).tolist()
    data = [{"object": "embedding", "index": index, "embedding": row} for index, row in enumerate(rows)]
    return {"object": "list", "data": data, "model": request.model}
