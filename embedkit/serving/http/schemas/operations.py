"""Schemas of the routes for operators."""

from __future__ import annotations

from typing import Literal

from embedkit.serving.http.schemas.fields import Schema

__all__ = ["Health"]


class Health(Schema):
    """Status of the server."""

    status: Literal["ok", "draining"]
