"""``/``: a page for trying out the server."""

from __future__ import annotations

from importlib import resources

from fastapi import APIRouter
from starlette.exceptions import HTTPException
from starlette.responses import Response

__all__ = ["router"]

router = APIRouter(include_in_schema=False)

_TYPES = {
    "index.html": "text/html; charset=utf-8",
    "page.css": "text/css; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
    "search.js": "text/javascript; charset=utf-8",
    "filter.js": "text/javascript; charset=utf-8",
    "highlight.js": "text/javascript; charset=utf-8",
    "compare.js": "text/javascript; charset=utf-8",
    "map.js": "text/javascript; charset=utf-8",
}
_FOLDER = resources.files("embedkit.serving.http.page")
_CONTENTS = {name: _FOLDER.joinpath(name).read_bytes() for name in _TYPES}
_HEADERS = {
    # Own resources only, nothing inline: content of documents can be shown but never executed.
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


@router.get("/")
async def index() -> Response:
    """Return the page."""
    return _file("index.html")


@router.get("/page/{name}")
async def part(name: str) -> Response:
    """Return a resource of the page."""
    if name not in _TYPES:
        raise HTTPException(404, "the web page has no such file")
    return _file(name)


def _file(name: str) -> Response:
    return Response(_CONTENTS[name], media_type=_TYPES[name], headers=_HEADERS)
