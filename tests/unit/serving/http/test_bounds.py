"""Work and answers are bounded on every route: tokens, filters, hits, and the tools of agents."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from embedkit import Collection
from embedkit.serving.http.registry import LoadedModels, Service
from embedkit.serving.http.settings import ServerSettings

from .conftest import wait_for


@pytest.fixture(scope="module")
def shelf(toy_encoder, tmp_path_factory):
    documents = [{"id": str(n), "text": f"{'sea ' * 500}{n}", "n": n} for n in range(50)]
    path = tmp_path_factory.mktemp("bounds") / "idx"
    return Collection.build(documents, encoder=toy_encoder, path=path, show_progress_bar=False)


@pytest.fixture(scope="module")
def small(serve, shelf):
    with (
        serve(collection=shelf, max_items=20, max_answer_bytes=60_000) as url,
        httpx.Client(base_url=url) as client,
    ):
        yield client


def test_tokens_are_admitted_like_other_work(serve, toy_encoder, monkeypatch):
    gate, spans, running, most = threading.Event(), toy_encoder.token_spans, [], []

    def wait(*arguments, **more):
        running.append(1)
        most.append(len(running))
        assert gate.wait(250)
        running.pop()
        return spans(*arguments, **more)

    monkeypatch.setattr(toy_encoder, "token_spans", wait)
    with serve(queue_s=0.05) as url, ThreadPoolExecutor(12) as pool:
        content = {"inputs": "word " * 5000}
        pending = [pool.submit(httpx.post, f"{url}/tokenize", json=content, timeout=60) for _ in range(12)]
        wait_for(lambda: any(one.done() for one in pending))
        gate.set()
        statuses = [one.result().status_code for one in pending]
    assert set(statuses) == {200, 429}
    assert max(most) == 1


def test_the_bytes_of_an_answer_are_limited(small):
    few = small.post("/tokenize", json={"inputs": "word " * 100})
    assert (few.status_code, len(few.json()[0])) == (200, 102)
    for path, content in [
        ("/tokenize", {"inputs": "word " * 2000}),
        ("/v1/search", {"query": "the sea", "k": 50}),
        ("/rerank", {"query": "a", "texts": ["word " * 1000] * 19, "return_text": True}),
    ]:
        done = small.post(path, json=content)
        assert done.status_code == 413, path
        assert "60000 bytes" in done.text
    assert small.post("/v1/search", json={"query": "the sea", "k": 10}).status_code == 200


@pytest.mark.parametrize(
    ("conditions", "status"),
    [
        ({"n": {"in": [*range(20)]}}, 200),
        ({"n": {"in": [*range(21)]}}, 413),
        ({"n": {"in": [*range(15)], "not_in": [*range(15)]}}, 413),
        ({f"field {number}": 1 for number in range(21)}, 413),
    ],
)
def test_the_values_of_a_filter_are_limited(small, conditions, status):
    done = small.post("/v1/search", json={"query": "the sea", "k": 1, "filter": conditions})
    assert done.status_code == status
    assert status == 200 or "filter: " in done.json()["error"]["message"]


def agents_of(toy_encoder, collection):
    pytest.importorskip("mcp")
    from embedkit.serving.http.mcp import McpServer

    return McpServer(Service(ServerSettings(), lambda: LoadedModels([toy_encoder], None, collection)))


def call(agents, tool, arguments):
    async def run():
        mcp = pytest.importorskip("mcp")
        async with mcp.Client(agents._server) as client:
            return await client.call_tool(tool, arguments)

    return asyncio.run(run())


def test_an_agent_embeds_a_limited_number_of_texts(toy_encoder, shelf):
    agents = agents_of(toy_encoder, shelf)
    done = call(agents, "embed", {"texts": ["the sea"] * 64})
    assert len(done.structured_content["result"]) == 64
    assert len(done.content) == 1
    assert call(agents, "embed", {"texts": ["the sea"] * 65}).is_error


def test_an_agent_gets_a_limited_number_of_bytes(toy_encoder, shelf, monkeypatch):
    monkeypatch.setattr("embedkit.serving.http.mcp._MOST_BYTES", 20_000)
    agents = agents_of(toy_encoder, shelf)
    assert not call(agents, "search", {"query": "the sea", "k": 5}).is_error
    refused = call(agents, "search", {"query": "the sea", "k": 50})
    assert "ask for fewer documents (k)" in refused.content[0].text
    much = call(agents, "search", {"query": "the sea", "filter": {"n": {"in": [*range(3000)]}}})
    assert "at most 2048" in much.content[0].text
