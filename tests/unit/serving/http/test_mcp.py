"""`embedkit mcp` with the client of the official SDK, over stdio and over HTTP."""

from __future__ import annotations

import asyncio
import gzip
import os
import signal
import subprocess
import sys

import httpx
import numpy as np
import pytest

from embedkit import Collection
from embedkit.errors import CollectionError

from .conftest import bearer, ring

DOCUMENTS = [
    {"id": "dog", "text": "a dog in the garden", "lang": "en"},
    {"id": "sea", "text": "the sea and a boat", "lang": "fr", "place": {"city": "Brest"}},
]


@pytest.fixture
def place(toy_encoder, toy_bundle, tmp_path):
    path = tmp_path / "idx"
    Collection.build(DOCUMENTS, encoder=toy_encoder, path=path, source=str(toy_bundle), show_progress_bar=False)
    return path


def content_of(result):
    """Return the structured content of a tool's result."""
    assert not result.is_error, result.content
    found = result.structured_content
    return found.get("result", found) if isinstance(found, dict) else found


async def use_all_tools(client, expected):
    tools = {tool.name for tool in (await client.list_tools()).tools}
    assert tools == {"describe", "search", "find", "embed", "add", "update", "delete"}
    hits = content_of(await client.call_tool("search", {"query": "a dog", "k": 1}))
    assert [(hit["id"], hit["text"], hit["metadata"]) for hit in hits] == [
        ("dog", "a dog in the garden", {"lang": "en"})
    ]
    french = content_of(await client.call_tool("search", {"query": "a dog", "filter": {"lang": "fr"}}))
    assert [hit["id"] for hit in french] == ["sea"]
    rows = content_of(await client.call_tool("embed", {"texts": ["the sea", "a dog"]}))
    np.testing.assert_allclose(rows, expected, atol=1e-6)
    new = {"documents": [{"id": "snow", "text": "snow on the mountain", "metadata": {"year": 1802}}]}
    assert content_of(await client.call_tool("add", new)) == {"added": 1, "replaced": 0}
    found = content_of(await client.call_tool("search", {"query": "snow on the mountain", "k": 1}))
    assert found[0]["metadata"] == {"year": 1802}
    flat = {"documents": [{"id": "ice", "text": "ice on the lake", "lang": "de"}]}
    assert content_of(await client.call_tool("add", flat)) == {"added": 1, "replaced": 0}
    found = content_of(await client.call_tool("search", {"query": "ice on the lake", "k": 1}))
    assert found[0]["metadata"] == {"lang": "de"}
    changed = {"documents": [{"id": "ice", "place": {"city": "Oslo"}}, {"id": "nobody", "lang": "de"}]}
    assert content_of(await client.call_tool("update", changed)) == {"updated": 1}
    found = content_of(await client.call_tool("find", {"filter": {"place.city": "Oslo"}}))
    assert found["documents"] == [
        {"id": "ice", "text": "ice on the lake", "metadata": {"lang": "de", "place": {"city": "Oslo"}}}
    ]
    unknown = await client.call_tool("search", {"query": "a", "top_k": 1})
    assert unknown.is_error
    assert "top_k" in unknown.content[0].text
    wrong = await client.call_tool("search", {"query": "a", "filter": {"lang": {"nix": 1}}})
    assert wrong.is_error
    assert "nix" in wrong.content[0].text


def test_agents_search_add_and_embed_over_stdio(place, toy_encoder):
    mcp = pytest.importorskip("mcp")
    arguments = ["-m", "embedkit", "mcp", str(place), "--allow-writes", "--threads", "1"]

    async def run():
        server = mcp.StdioServerParameters(command=sys.executable, args=arguments, env=dict(os.environ))
        async with mcp.Client(server) as client:
            await use_all_tools(client, toy_encoder.encode(["the sea", "a dog"]))

    asyncio.run(run())
    assert len(Collection.open(place)) == 4


@pytest.mark.skipif(sys.platform == "win32", reason="signals of Unix")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_server_on_stdio_while_it_waits(place, number):
    pytest.importorskip("mcp")
    command = [sys.executable, "-m", "embedkit", "mcp", str(place), "--threads", "1"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            process.stdin.write(b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}\n')
            process.stdin.flush()
            assert process.stdout.readline()
            process.send_signal(number)
            assert process.wait(250) == -number
        finally:
            process.kill()


@pytest.fixture
def agents_url(place, toy_encoder, served):
    pytest.importorskip("mcp")
    from embedkit.serving.http.mcp import McpServer
    from embedkit.serving.http.registry import LoadedModels, Service
    from embedkit.serving.http.settings import ServerSettings

    collection = Collection.open(place, encoder=toy_encoder)
    service = Service(
        ServerSettings(port=0, allow_writes=True, refresh_s=0),
        lambda: LoadedModels([toy_encoder], None, collection),
    )
    with served(service, ring(reader={"read"}, writer={"read", "write"}), mcp=McpServer(service)) as url:
        yield url


def ask(url, name, work):
    """Run ``work(client)`` with a client that sends the key of this name."""
    mcp = pytest.importorskip("mcp")
    http = pytest.importorskip("httpx2")
    from mcp.client.streamable_http import streamable_http_client

    async def run():
        async with (
            http.AsyncClient(headers=bearer(name), timeout=250) as connection,
            mcp.Client(streamable_http_client(f"{url}/mcp", http_client=connection)) as client,
        ):
            return await work(client)

    return asyncio.run(run())


def test_agents_search_add_and_embed_over_http(agents_url, toy_encoder):
    ask(agents_url, "writer", lambda client: use_all_tools(client, toy_encoder.encode(["the sea", "a dog"])))


def test_a_filter_on_an_unknown_field_is_named(agents_url):
    async def work(client):
        return await client.call_tool("search", {"query": "a", "k": None, "rerank": None, "filter": {"nix": 1}})

    done = ask(agents_url, "reader", work)
    assert content_of(done) == []
    assert "nix" in done.content[1].text
    assert "lang" in done.content[1].text


def test_agents_see_fields_and_list_count_and_delete_by_a_filter(agents_url):
    async def work(client):
        card = content_of(await client.call_tool("describe", {}))
        one = content_of(await client.call_tool("find", {"filter": {"lang": "fr"}}))
        all_ = content_of(await client.call_tool("find", {"limit": 0}))
        gone = [await client.call_tool("delete", {"filter": {name: "fr"}}) for name in ("lagn", "lang")]
        return card, one, all_, gone

    card, one, all_, (unknown, gone) = ask(agents_url, "writer", work)
    assert (card["documents"], card["fields"]) == (2, {"lang": "en", "place.city": "Brest"})
    assert (one["count"], one["documents"][0]["id"]) == (1, "sea")
    assert all_ == {"count": 2, "documents": []}
    assert unknown.is_error
    assert "did you mean 'lang'" in unknown.content[0].text
    assert content_of(gone) == {"deleted": 1}

    async def try_to_delete(client):
        return await client.call_tool("delete", {"ids": ["dog"]})

    assert "scope 'write'" in ask(agents_url, "reader", try_to_delete).content[0].text


def test_agents_read_no_places_on_the_servers_disk(agents_url, place, monkeypatch, caplog):
    def fail(*_, **__):
        raise CollectionError(f"{place} is damaged")

    async def work(client):
        return await client.call_tool("search", {"query": "a"})

    monkeypatch.setattr(Collection, "search_steps", fail)
    done = ask(agents_url, "reader", work)
    assert done.is_error
    assert "the server's log has the details" in done.content[0].text
    assert str(place) not in done.content[0].text
    assert str(place) in caplog.text


def test_agents_need_a_key_and_share_the_server_with_others(agents_url):
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    assert httpx.post(f"{agents_url}/mcp", json=body).status_code == 401
    assert httpx.get(f"{agents_url}/health/ready").status_code == 200
    headers = bearer("reader")
    assert httpx.get(f"{agents_url}/mcp", headers=headers).status_code == 405
    done = httpx.post(f"{agents_url}/v1/search", json={"query": "a dog"}, headers=headers)
    assert done.json()["hits"][0]["id"] == "dog"


def test_a_body_of_a_message_may_be_compressed(agents_url):
    body = gzip.compress(b'{"jsonrpc": "2.0", "id": 1, "method": "tools/list"}')
    headers = {**bearer("reader"), "content-type": "application/json", "accept": "application/json"}

    def send(content, encoding):
        return httpx.post(f"{agents_url}/mcp", content=content, headers={**headers, "content-encoding": encoding})

    assert len(send(body, "gzip").json()["result"]["tools"]) == 7
    assert send(body[:-4], "gzip").status_code == 400
    assert send(body, "br").status_code == 415


@pytest.mark.parametrize("content", [b"", b"null", b"[]", b"3", b"{", b'{"method": 3}', b"\xff", b"[" * 5000])
def test_a_body_that_is_no_message_is_refused(agents_url, content):
    headers = {
        **bearer("reader"),
        "content-type": "application/json",
        "accept": "application/json, text/event-stream",
    }
    assert 400 <= httpx.post(f"{agents_url}/mcp", content=content, headers=headers).status_code < 500


@pytest.mark.usefixtures("toy_encoder")
def test_without_permission_there_is_no_tool_to_write(place):
    mcp = pytest.importorskip("mcp")
    arguments = ["-m", "embedkit", "mcp", str(place), "--threads", "1"]

    async def run():
        server = mcp.StdioServerParameters(command=sys.executable, args=arguments, env=dict(os.environ))
        async with mcp.Client(server) as client:
            return {tool.name for tool in (await client.list_tools()).tools}

    assert asyncio.run(run()) == {"describe", "search", "find", "embed"}


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        ('{"query": "a", "filter": {"lang": "en", "lang": "fr"}}', 400, "'lang' occurs twice in a JSON object"),
        ('{"documents": [%s{}]}' % ("{}, " * 3000), 413, "'documents': 3001 items in one request; at most 2048"),
    ],
)
def test_a_message_is_checked_as_other_requests_are(agents_url, arguments, status, words):
    call = '{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "search", "arguments": %s}}'
    done = httpx.post(f"{agents_url}/mcp", content=call % arguments, headers=bearer("reader"))
    assert (done.status_code, words in done.text) == (status, True)
