"""The page that a server shows at ``/``: plain HTML, CSS and JavaScript, from this server alone."""

from __future__ import annotations

__all__: list[str] = []
