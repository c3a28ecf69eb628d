"""Health, reload and metrics, for operators; the OpenAPI document; and the page for trying out the server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib import resources
from typing import Final, Literal

from prometheus_client import CONTENT_TYPE_LATEST

from embedkit.errors import EmbedkitError
from embedkit.serving.http.app import Request
from embedkit.serving.http.protocols.fields import Schema, TeiProblem
from embedkit.serving.http.protocols.openai import ModelList
from embedkit.serving.http.routing import Response, Routes, explain, problem, to_json

_TYPES: Final = {"html": b"text/html", "css": b"text/css", "js": b"text/javascript"}
_FOLDER = resources.files("embedkit.serving.http") / "page"
_FILES: Final = {
    file.name: file.read_bytes() for file in _FOLDER.iterdir() if file.name.rpartition(".")[2] in _TYPES
}
_PAGE_HEADERS = (
    # Own resources only, nothing inline: content of documents can be shown but never executed.
    (
        b"content-security-policy",
        (
            b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
            b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        ),
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-cache"),
)

routes, page = Routes("operations"), Routes(scope=None)


class Health(Schema):
    """Status of the server."""

    status: Literal["ok", "draining"]


@routes.get("/health/live", Health, scope=None)
async def live(_: Request) -> Response:
    """Whether the process responds."""
    return to_json({"status": "ok"})


async def ready(request: Request) -> Response:
    """Whether the server accepts requests; 503 during shutdown."""
    if request.service.draining:
        return Response(b'{"status":"draining"}', 503)
    return to_json({"status": "ok"})


for path in ("/health/ready", "/health"):  # the latter is text-embeddings-inference's
    routes.get(path, Health, scope=None, others={503: Health})(ready)


@routes.post("/admin/reload", ModelList, scope="admin", errors=TeiProblem)
async def reload(request: Request) -> Response:
    """Load models and collection again, and list the models; needs an API key with the scope ``admin``."""
    try:
        await request.service.reload_everywhere()
    except EmbedkitError as error:
        return explain(error, request.path, in_full=True)
    return to_json({"object": "list", "data": request.service.registry.cards()})


@routes.get("/metrics", scope="metrics")
async def metrics(request: Request) -> Response:
    """Counters for Prometheus."""
    return Response(await request.service.metrics_text(), content_type=CONTENT_TYPE_LATEST.encode())


def _file(name: str) -> Callable[[Request], Awaitable[Response]]:
    kind = _TYPES[name.rpartition(".")[2]] + b"; charset=utf-8"

    async def answer(_: Request) -> Response:
        return Response(_FILES[name], content_type=kind, headers=_PAGE_HEADERS)

    return answer


async def _missing(request: Request) -> Response:
    return problem(request.path, 404, "the web page has no such file")


page.get("/")(_file("index.html"))
page.get("/page/{id}")(_missing)
for name in _FILES:
    page.get(f"/page/{name}")(_file(name))
