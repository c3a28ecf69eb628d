"""The observer: one line per request, without any of its texts; and unexpected errors."""

from __future__ import annotations

import json
import logging

import httpx
import pytest

from embedkit import Encoder
from embedkit.serving.http.metrics import JsonFormatter

OURS = "embedkit"
SECRET = "guitar zoo elephant"


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.DEBUG)

    def lines():
        return [
            json.loads(JsonFormatter().format(record)) for record in caplog.records if record.name.startswith(OURS)
        ]

    return lines


def test_a_request_is_one_line_of_numbers(client, lines, toy_encoder):
    texts = [SECRET.removesuffix(" elephant"), "word " * 30]
    client.post("/v1/embeddings", json={"input": texts}, headers={"x-request-id": "abc-1"})
    (line,) = [line for line in lines() if line["message"] == "request"]
    assert line.pop("ms") > 0
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "info",
        "message": "request",
        "method": "POST",
        "route": "/v1/embeddings",
        "status": 200,
        "texts": 2,
        "tokens": sum(map(len, toy_encoder.tokenize(texts).ids)),
        "truncated": 1,
        "request_id": "abc-1",
    }


@pytest.mark.parametrize(
    "body", [{"input": SECRET}, {"input": [SECRET, 3]}, {"input": SECRET, "model": SECRET}, {"nix": SECRET}]
)
def test_no_text_is_in_the_log(client, lines, body):
    client.post(f"/v1/embeddings?q={SECRET}", json=body, headers={"x-request-id": SECRET, "user-agent": SECRET})
    assert SECRET.split(maxsplit=1)[0] not in json.dumps(lines())


@pytest.mark.parametrize("given", [None, "with space", "x" * 65, "ü"])
def test_an_odd_request_id_is_replaced(client, given):
    headers = {} if given is None else {"x-request-id": given.encode()}
    found = client.get("/health/live", headers=headers).headers["x-request-id"]
    assert found != given
    assert len(found) == 16


class BrokenEncoder(Encoder):
    """Fails unexpectedly."""

    def encode_tokens(self, tokens):
        raise RuntimeError(f"cannot do {SECRET}")


@pytest.mark.parametrize("path", ["/v1/embeddings", "/embed"])
def test_a_bug_is_a_500_located_only_in_the_log(serve, toy_bundle, lines, path):
    with serve(encoder=BrokenEncoder.load(toy_bundle)) as url:
        done = httpx.post(f"{url}{path}", json={"input": SECRET, "inputs": SECRET})
        metrics = httpx.get(f"{url}/metrics").text
    assert done.status_code == 500
    assert "internal error" in done.text
    text = json.dumps(lines())
    assert "RuntimeError" in text
    assert "encode_tokens" in text
    assert SECRET not in text + done.text
    assert f'embedkit_requests_total{{route="{path}",status="500"}} 1.0' in metrics


def test_metrics_count_requests_tokens_and_cut_texts(serve, toy_encoder):
    texts = ["the sea", "word " * 30]
    with serve() as url:
        httpx.post(f"{url}/embed", json={"inputs": texts})
        httpx.get(f"{url}/wp-admin/{SECRET}")
        metrics = httpx.get(f"{url}/metrics").text
    tokens = sum(map(len, toy_encoder.tokenize(texts).ids))
    for line in (
        'embedkit_requests_total{route="/embed",status="200"} 1.0',
        'embedkit_requests_total{route="other",status="404"} 1.0',
        'embedkit_request_seconds_count{route="/embed"} 1.0',
        f'embedkit_tokens_total{{model="toy"}} {tokens}.0',
        'embedkit_batch_texts_sum{model="toy"} 2.0',
        'embedkit_queue_tokens{model="toy"} 0.0',
        'embedkit_truncated_texts_total{model="toy"} 1.0',
        "embedkit_requests_in_flight 1.0",
    ):
        assert line in metrics
    assert "process_resident_memory_bytes" in metrics
    assert SECRET not in metrics
