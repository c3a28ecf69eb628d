"""The express: every request with a JSON body takes it, and is answered as FastAPI would."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from embedkit import Collection
from embedkit.serving.http.app import _routers, create_routes
from embedkit.serving.http.catalogue import Assets
from embedkit.serving.http.express import Express
from embedkit.serving.http.guard import Guard
from embedkit.serving.http.keys import KeyRing
from embedkit.serving.http.observer import Observer
from embedkit.serving.http.service import Service
from embedkit.serving.http.settings import ServerSettings


@pytest.fixture
def service(toy_encoder, tmp_path):
    collection = Collection.build(
        [("a", "a dog")], encoder=toy_encoder, path=tmp_path / "i", show_progress_bar=False
    )
    service = Service(ServerSettings(allow_writes=True), lambda: Assets([toy_encoder], None, collection))
    yield service
    service.close()


def test_every_route_with_a_body_is_on_it(service):
    routes = create_routes(service)
    express = Express(routes, _routers(service), service)
    posts = {
        path
        for path, operations in routes.openapi()["paths"].items()
        if "requestBody" in operations.get("post", {})
    }
    assert express._stops.keys() == posts


REQUESTS = [
    ("/embed", {"inputs": "a dog"}),
    ("/embed", {"inputs": ["a dog"] * 2000}),  # more than it takes
    ("/v1/embeddings", {"input": "a dog", "model": "another"}),
    ("/v1/embeddings", {"input": "a dog", "dimensions": "3"}),
    ("/v1/rerank", {"query": "a", "documents": []}),
    ("/v1/search", {"query": "a dog", "k": 0}),
    ("/v1/search", {"query": "a dog", "filter": {"a": {"nix": 1}}}),
    ("/v1/documents/delete", {"ids": [1]}),
]


@pytest.mark.parametrize(("path", "content"), REQUESTS)
def test_answers_are_those_of_the_framework(service, path, content):
    async def ask(app):
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here") as client:
            return await client.post(path, json=content)

    async def both():
        routes = create_routes(service)
        apps = [routes, Express(routes, _routers(service), service)]
        return [
            await ask(Observer(Guard(app, ServerSettings(hosts=("here",)), KeyRing()), service.metrics))
            for app in apps
        ]

    plain, quick = asyncio.run(both())
    assert (quick.status_code, quick.json()) == (plain.status_code, plain.json())
    assert quick.headers["content-type"] == plain.headers["content-type"]


@pytest.mark.parametrize("kind", ["application/json", "application/json; charset=utf-8", "Application/JSON"])
def test_what_json_is_called_does_not_matter(client, kind):
    done = client.post("/embed", content=b'{"inputs": "a"}', headers={"content-type": kind})
    assert done.status_code == 200


def test_the_route_is_in_the_metrics(client):
    client.post("/embed", json={"inputs": "a"})
    assert 'embedkit_requests_total{route="/embed",status="200"}' in client.get("/metrics").text
