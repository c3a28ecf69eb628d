"""OpenTelemetry traces, if its packages are installed; spans contain numbers and names, never texts."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from typing import Any, Final

from embedkit.errors import MissingExtraError
from embedkit.extras import require

VARIABLES = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
"""Environment variables defined by OpenTelemetry, one of which sets the destination of spans."""

_SERVER_ERROR = 500
_NOTHING: Final = contextlib.nullcontext()


class Tracing:
    """Creates a span of each request, and of its parts, in the trace named by its headers.

    Without OpenTelemetry's API, or without a tracer provider (see :meth:`detect_provider`), nothing is done.
    """

    def __init__(self) -> None:
        self.is_on = False
        try:
            self._api: Any = require("opentelemetry.trace", extra="otel")
            self._propagate: Any = require("opentelemetry.propagate", extra="otel")
        except MissingExtraError:
            self._api = None

    def start(self) -> bool:
        """Export spans to the destination in the environment, if any; call this once, before the server starts."""
        if not any(os.environ.get(name) for name in VARIABLES):
            return False
        sdk = require("opentelemetry.sdk.trace", extra="otel")
        export = require("opentelemetry.sdk.trace.export", extra="otel")
        resources = require("opentelemetry.sdk.resources", extra="otel")
        otlp = require("opentelemetry.exporter.otlp.proto.http.trace_exporter", extra="otel")
        name = os.environ.get("OTEL_SERVICE_NAME", "embedkit")
        provider = sdk.TracerProvider(resource=resources.Resource.create({"service.name": name}))
        provider.add_span_processor(export.BatchSpanProcessor(otlp.OTLPSpanExporter()))
        self._api.set_tracer_provider(provider)
        return True

    def detect_provider(self) -> None:
        """Determine whether spans are exported; call this when the server starts, because it is slow."""
        self.is_on = (
            self._api is not None and type(self._api.get_tracer_provider()).__name__ != "ProxyTracerProvider"
        )

    def request(
        self, method: str, headers: Iterable[tuple[bytes, bytes]]
    ) -> contextlib.AbstractContextManager[Any]:
        """Return the span of a request, in the trace that its headers may name, or None."""
        if not self.is_on:
            return _NOTHING
        names = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}
        context, kind = self._propagate.extract(names), self._api.SpanKind.SERVER
        return self._started(method, context=context, kind=kind)

    def describe(self, span: Any, method: str, route: str, status: int, notes: Mapping[str, Any]) -> None:
        """Complete the span of an answered request."""
        span.update_name(f"{method} {route}")
        span.set_attribute("http.request.method", method)
        span.set_attribute("http.route", route)
        span.set_attribute("http.response.status_code", status)
        for name, value in notes.items():
            span.set_attribute(f"embedkit.{name}", value)
        if status >= _SERVER_ERROR:
            span.set_status(self._api.StatusCode.ERROR)

    def part(self, name: str, **numbers: str | float) -> contextlib.AbstractContextManager[Any]:
        """Create a span inside that of the request."""
        if not self.is_on:
            return _NOTHING
        return self._started(name, attributes={f"embedkit.{key}": value for key, value in numbers.items()})

    def _started(self, name: str, **options: Any) -> contextlib.AbstractContextManager[Any]:
        tracer = self._api.get_tracer("embedkit")
        # Exceptions are not recorded, because their messages may contain a user's text.
        manager: contextlib.AbstractContextManager[Any] = tracer.start_as_current_span(
            name, record_exception=False, set_status_on_exception=False, **options
        )
        return manager


TRACING = Tracing()
span = TRACING.part
