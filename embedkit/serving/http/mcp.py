"""Tools for agents, over the Model Context Protocol: search a collection, add to it, embed texts."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Annotated, Any

from pydantic import Field

from embedkit import __version__
from embedkit.errors import EmbedkitError, InputError, TooLargeError
from embedkit.extras import require
from embedkit.serving.http.admission import CALLER
from embedkit.serving.http.app import Request
from embedkit.serving.http.protocols.collection import DocumentBody, MetadataBody, changes, option
from embedkit.serving.http.protocols.fields import Listed
from embedkit.serving.http.registry import ModelRegistry, Service
from embedkit.serving.http.routing import Response, Route, client_message
from embedkit.serving.retrieval.search import Mode, SearchOptions

logger = logging.getLogger(__name__)

PATH = "/mcp"

_HITS, _DOCUMENTS = 5, 10
_MOST_TEXTS = 64  # to embed in one call
_MOST_BYTES = 4_194_304  # of a result, which the SDK copies several times, and which is to fit an agent's context

_INSTRUCTIONS = """Search a collection of documents by meaning and keywords. Ask in whole phrases; \
filter by metadata where the user names a value."""


class McpServer:
    """An MCP server, based on the official SDK, for a service that has a collection.

    A tool for writing exists only if the service's settings allow writes.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        sdk = require("mcp.server.mcpserver", extra="mcp")
        security = require("mcp.server.transport_security", extra="mcp")
        self._tool_error: type[Exception] = require("mcp.server.mcpserver.exceptions", extra="mcp").ToolError
        self._types = require("mcp_types", extra="mcp")
        functions = [self.describe, self.search, self.find, self.embed]
        if service.settings.allow_writes:
            functions += [self.add, self.update, self.delete]
        tool_type = require("mcp.server.mcpserver.tools", extra="mcp").Tool
        tools = [_refuse_unknown(tool_type.from_function(function)) for function in functions]
        self._server = sdk.MCPServer("embedkit", version=__version__, instructions=_INSTRUCTIONS, tools=tools)
        self._server.streamable_http_app(  # creates the manager to which `__call__` passes requests
            json_response=True,
            stateless_http=True,  # so that any worker can answer any request
            transport_security=security.TransportSecuritySettings(
                enable_dns_rebinding_protection=False  # AccessControl checks the Host header
            ),
        )

    async def describe(self) -> dict[str, Any]:
        """Describe the collection: its size, and the fields that a filter may name, each with an example."""
        with self._answering() as registry:
            collection = registry.needed_collection()
            card = collection.card() | {"fields": await collection.fields()}
            described: dict[str, Any] = self._result(card, "the examples of fields are long")
        return described

    async def search(
        self,
        query: Annotated[str, Field(description="keywords or a question")],
        k: Annotated[int | None, option("k", default=_HITS, ge=1, le=100)] = None,
        mode: Annotated[Mode | None, option("mode")] = None,
        filter: Annotated[dict[str, Any] | None, option("filter")] = None,  # noqa: A002 - what an agent sees
        rerank: Annotated[bool | None, option("rerank", default=False)] = None,
    ) -> list[dict[str, Any]]:
        """Find the documents of the collection that answer a query best, best first."""
        with self._answering() as registry:
            options = SearchOptions(k=k or _HITS, mode=mode, filter=filter, rerank=rerank)
            hits = await registry.needed_collection().search(query, options)
            documents: list[dict[str, Any]] = self._result(
                [{"id": hit.id, "text": hit.text, "metadata": hit.metadata, "score": hit.score} for hit in hits],
                "ask for fewer documents (k)",
                hits.warnings,
            )
        return documents

    async def find(
        self,
        filter: Annotated[dict[str, Any] | None, option("filter")] = None,  # noqa: A002 - what an agent sees
        limit: Annotated[int | None, Field(ge=0, le=100, description="0 counts only; default: 10")] = None,
    ) -> dict[str, Any]:
        """Count the documents that a filter selects, and list the first of them; without a filter, of all."""
        limit = _DOCUMENTS if limit is None else limit
        with self._answering() as registry:
            collection = registry.needed_collection()
            count, warnings = await collection.count(filter)
            documents, _ = await collection.find(filter, limit=limit) if limit else ([], None)
            listed = [{"id": each.id, "text": each.text, "metadata": each.metadata} for each in documents]
            content = {"count": count, "documents": listed}
            found: dict[str, Any] = self._result(content, "ask for fewer documents (limit)", warnings)
        return found

    async def embed(
        self,
        texts: Annotated[Listed[str], Field(min_length=1, max_length=_MOST_TEXTS, description="texts to embed")],
        model: Annotated[str | None, Field(description="name of the model; default: the first one")] = None,
    ) -> list[list[float]]:
        """Embed texts: unit vectors, whose inner products are the texts' similarities."""
        with self._answering() as registry:
            done = await registry.embedder(model).embed(texts)
            embeddings: list[list[float]] = self._result(done.rows.tolist(), "send fewer texts")
        return embeddings

    async def add(
        self, documents: Annotated[Listed[DocumentBody], Field(min_length=1, description="documents to add")]
    ) -> dict[str, int]:
        """Add documents to the collection: how many are new, and how many replaced others."""
        with self._answering() as registry:
            self._require_write()
            added, replaced = await registry.needed_collection().upsert(
                [document.record() for document in documents]
            )
        return {"added": added, "replaced": replaced}

    async def update(
        self, documents: Annotated[Listed[MetadataBody], Field(min_length=1, description="ids and new metadata")]
    ) -> dict[str, int]:
        """Change metadata of documents, which keep their texts and other metadata: how many there were."""
        with self._answering() as registry:
            self._require_write()
            return {"updated": await registry.needed_collection().update(changes(documents))}

    async def delete(
        self,
        ids: Annotated[Listed[str] | None, Field(description="ids of documents")] = None,
        filter: Annotated[dict[str, Any] | None, option("filter")] = None,  # noqa: A002 - what an agent sees
    ) -> dict[str, int]:
        """Delete documents, either by their ids or all that a filter selects: how many there were."""
        with self._answering() as registry:
            self._require_write()
            if (ids is None) == (filter is None):
                raise InputError("expected either ids or a filter")
            return {"deleted": await registry.needed_collection().delete(ids, filter)}

    @staticmethod
    def _require_write() -> None:
        if not CALLER.get().may_write:
            raise InputError("this API key does not have the scope 'write'")

    def _result(self, content: Any, advice: str, warnings: Sequence[str] = ()) -> Any:
        """Return a tool's result, limited in size, and warnings, as of a filter on a field that no document has.

        The SDK's own conversion would write every number on a line.
        """
        text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
        if len(text.encode()) > _MOST_BYTES:
            raise TooLargeError(f"the result has more than {_MOST_BYTES} bytes, the maximum; {advice}")
        blocks = [self._types.TextContent(type="text", text=each) for each in (text, *warnings)]
        return self._types.CallToolResult(
            content=blocks, structured_content=content if isinstance(content, dict) else {"result": content}
        )

    @contextlib.contextmanager
    def _answering(self) -> Iterator[ModelRegistry]:
        """Lease the registry; report only the messages of embedkit's own errors to agents."""
        try:
            with self._service.lease() as registry:
                yield registry
        except EmbedkitError as error:
            message = client_message(error)
            if message != str(error):
                logger.error("%s", error)  # noqa: TRY400 - for operators
            raise self._tool_error(message) from error

    @property
    def route(self) -> Route:
        """The route of requests over streamable HTTP."""
        return Route("POST", PATH, self._answer, None, None)

    async def _answer(self, request: Request) -> Response:
        """Answer a request, which the SDK reads and answers over ASGI."""
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": request.method,
            "scheme": "http",
            "path": PATH,
            "raw_path": PATH.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": list(request.headers.items()),
            "client": None,
            "server": None,
        }
        events = [{"type": "http.request", "body": bytes(request.body), "more_body": False}]
        head: dict[str, Any] = {}
        body = bytearray()

        async def receive() -> dict[str, Any]:
            return events.pop() if events else {"type": "http.disconnect"}

        async def send(event: dict[str, Any]) -> None:
            head.update(event if event["type"] == "http.response.start" else {})
            body.extend(event.get("body", b""))

        await self._server.session_manager.handle_request(scope, receive, send)
        headers = dict(head["headers"])
        kind = headers.pop(b"content-type", b"application/json")
        headers.pop(b"content-length", None)
        return Response(bytes(body), head["status"], kind, tuple(headers.items()))

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Answer requests over HTTP within the block; its errors are not wrapped in a group of the SDK's tasks."""
        failure: EmbedkitError | None = None
        async with self._server.session_manager.run():
            try:
                yield
            except EmbedkitError as error:
                failure = error
        if failure is not None:
            raise failure

    async def run_on_stdio(self) -> None:
        """Answer requests on standard input and output until the input ends."""
        await self._server.run_stdio_async()


def _refuse_unknown(tool: Any) -> Any:
    """Make unknown arguments of a tool errors, which the SDK would ignore."""
    arguments = tool.fn_metadata.arg_model
    arguments.model_config["extra"] = "forbid"
    arguments.model_rebuild(force=True)
    tool.parameters = arguments.model_json_schema(by_alias=True)
    return tool
