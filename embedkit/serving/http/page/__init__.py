"""The server's page at ``/``: plain HTML, CSS and JavaScript without external resources."""

from __future__ import annotations

__all__: list[str] = []
