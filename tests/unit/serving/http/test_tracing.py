"""Traces: a span of each request and of its parts, in the caller's trace, without any of its texts."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import httpx
import pytest

from embedkit.serving.http.tracing import TRACING

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SECRET = "elephant"


@pytest.fixture
def spans(monkeypatch):
    """Return finished spans, from a provider that the test sets up as `opentelemetry-instrument` would."""
    sdk = pytest.importorskip("opentelemetry.sdk.trace")
    from opentelemetry import trace
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    memory, provider = InMemorySpanExporter(), sdk.TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(memory))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    monkeypatch.setattr(TRACING, "is_on", False)  # afterwards, as before
    return memory


def test_a_request_and_its_parts_are_spans_of_the_callers_trace(serve, spans):
    with serve() as url:
        headers = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
        done = httpx.post(f"{url}/embed?{SECRET}", json={"inputs": f"an {SECRET}"}, headers=headers)
        assert done.status_code == 200
    found = {span.name: span for span in spans.get_finished_spans()}
    whole = found["POST /embed"]
    assert f"{whole.context.trace_id:032x}" == TRACE
    assert f"{whole.parent.span_id:016x}" == PARENT
    assert whole.attributes["http.response.status_code"] == 200
    assert whole.attributes["embedkit.texts"] == 1
    for name in ("tokenize", "wait and embed"):
        assert found[name].parent.span_id == whole.context.span_id
        assert found[name].attributes["embedkit.model"] == "toy"


def test_spans_hold_no_text(serve, spans):
    with serve(on_overflow="error") as url:
        for content in ({"inputs": SECRET}, {"inputs": f"{SECRET} " * 30}, {"inputs": "a", "prompt_name": SECRET}):
            httpx.post(f"{url}/embed", json=content)
        httpx.get(f"{url}/{SECRET}")
    told = [span.to_json() for span in spans.get_finished_spans()]
    assert len(told) >= 4
    assert SECRET not in "".join(told)


def test_without_a_provider_there_are_no_spans():
    assert not TRACING.is_on
    with TRACING.request("GET", []) as found:
        assert found is None


def test_a_collector_gets_the_spans(start, toy_bundle):
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    bodies = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self):
            bodies.append(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Collector) as collector:
        thread = threading.Thread(target=collector.serve_forever, daemon=True)
        thread.start()
        server = start(toy_bundle, OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{collector.server_port}")
        assert httpx.post(f"{server.url}/embed", json={"inputs": SECRET}).status_code == 200
        assert server.end() == 0
        collector.shutdown()
        thread.join()
    assert any(b"POST /embed" in body for body in bodies)
    assert not any(SECRET.encode() in body for body in bodies)
    assert all(json.loads(line) for line in server.lines)
