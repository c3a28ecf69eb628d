"""Every route of the server, with bodies that no client should send: errors in its form, never a 500."""

from __future__ import annotations

import json
import re
import urllib.parse
from pathlib import Path

import httpx
import pytest

from embedkit import Collection, CrossEncoder
from embedkit.serving.http.protocols import cohere, collection, ollama, openai, operations, tei
from embedkit.serving.http.routing import HTTP_STATUSES

ROUTES = [
    route
    for routes in (
        *(openai.routes, cohere.routes, tei.routes, ollama.routes, collection.routes, operations.routes),
        *(collection.writing_routes, operations.page),
    )
    for route in routes
]
POSTS = [route.path for route in ROUTES if route.schema is not None]
GETS = [route.path for route in ROUTES if route.method == "GET"]

VALID = {
    "/v1/embeddings": {"input": ["a dog", "the sea"], "model": "toy"},
    "/v1/embed": {"texts": ["a dog", "the sea"], "model": "toy", "input_type": "search_query"},
    "/v2/embed": {"texts": ["a dog", "the sea"], "model": "toy", "input_type": "search_query"},
    "/v1/rerank": {"query": "a dog", "documents": ["a dog", "the sea"]},
    "/v2/rerank": {"query": "a dog", "documents": ["a dog", "the sea"]},
    "/embed": {"inputs": ["a dog", "the sea"]},
    "/similarity": {"inputs": {"source_sentence": "a dog", "sentences": ["the sea", "a cat"]}},
    "/tokenize": {"inputs": ["a dog", "the sea"]},
    "/rerank": {"query": "a dog", "texts": ["a dog", "the sea"]},
    "/api/embed": {"model": "toy", "input": ["a dog", "the sea"]},
    "/api/embeddings": {"model": "toy", "prompt": "a dog"},
    "/api/show": {"model": "toy"},
    "/v1/search": {"query": "a dog", "k": 2, "filter": {"lang": "en"}, "mode": "hybrid", "rerank": True},
    "/v1/documents": {"documents": [{"id": "new", "text": "a cat", "metadata": {"lang": "en"}}]},
    "/v1/documents/update": {"documents": [{"id": "dog", "metadata": {"lang": "en"}}]},
    "/v1/documents/delete": {"ids": ["nobody"]},
    "/v1/documents/find": {"filter": {"lang": "en"}, "limit": 2, "offset": 1},
    "/v1/documents/count": {"filter": {"lang": "en"}},
}
STRICT = {"/v1/search", *(path for path in POSTS if path.startswith("/v1/documents"))}
HOSTILE = [
    "x'] or id not in ['q",
    'say "hi"; DROP TABLE documents; --',
    "../../../etc/passwd",
    "trailing\\",
    "\0\x1b[31m\r\nset-cookie: a=b",
    "\ud800",
    "\u202e\ufeff",
    "%_{x}${jndi:ldap://x}",
    "",
    " ",
    "a" * 50_000,
]
WRONG = [None, True, 3, -1, 1e308, 10**30, float("nan"), "", [], {}, [None], [[]], {"": []}, [{"a": [{}]}]]


@pytest.fixture(scope="module")
def full(serve, toy_encoder, toy_cross_bundle, tmp_path_factory):
    """A server with everything that has a route."""
    documents = [{"id": "dog", "text": "a dog", "lang": "en"}, {"id": "sea", "text": "the sea", "lang": "de"}]
    path = tmp_path_factory.mktemp("routes") / "idx"
    found = Collection.build(documents, encoder=toy_encoder, path=path, lexical=True, show_progress_bar=False)
    settings = {"allow_writes": True, "max_body_bytes": 300_000, "max_characters": 100_000, "max_items": 1000}
    cross = CrossEncoder.load(toy_cross_bundle, threads=1)
    with (
        serve(collection=found, reranker=cross, **settings) as url,
        httpx.Client(base_url=url, timeout=60) as client,
    ):
        yield client


@pytest.fixture(autouse=True)
def nothing_unexpected(caplog):
    yield
    assert not [record for record in caplog.get_records("call") if record.getMessage() == "unexpected error"]


def post(client, path, content):
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    return client.post(path, content=body, headers={"content-type": "application/json"})


def check_error(done, path):
    """An error of a client, in the form of the route's clients."""
    assert 400 <= done.status_code < 500, done.text
    content = done.json()
    if path.startswith(("/v1/", "/v2/")):
        assert set(content["error"]) == {"message", "type", "param", "code"}
        assert content["error"]["message"]
    else:
        assert set(content) == {"error", "error_type"}
        assert content["error"]


def check_response(done, path):
    """A result, or an error of a client."""
    if done.status_code != 200:
        check_error(done, path)


def replaced(content, value):
    """Yield copies of JSON in each of which one value, at any depth, is another."""
    if isinstance(content, dict):
        for name in content:
            yield {**content, name: value}
            yield from ({**content, name: inner} for inner in replaced(content[name], value))
    elif isinstance(content, list):
        for place in range(len(content)):
            yield [*content[:place], value, *content[place + 1 :]]
            inner = replaced(content[place], value)
            yield from ([*content[:place], one, *content[place + 1 :]] for one in inner)


def test_every_route_with_a_body_is_tried():
    assert set(POSTS) == set(VALID)


@pytest.mark.parametrize("path", POSTS)
def test_the_valid_body_is_answered(full, path):
    assert post(full, path, VALID[path]).status_code == 200


@pytest.mark.parametrize("path", [path for path in POSTS if path not in STRICT])
def test_fields_of_other_servers_are_ignored(full, path):
    assert post(full, path, {**VALID[path], "field_of_another_server": [1]}).status_code == 200


@pytest.mark.parametrize(
    "content", [b"", b" ", b"null", b"[]", b"{}", b"3", b'"a"', b"{", b'{"a":}', b"\xff\xfe", b"NaN", b"[" * 5000]
)
@pytest.mark.parametrize("path", POSTS)
def test_a_body_that_is_no_request_is_refused(full, path, content):
    if content == b"{}" and path in ("/v1/documents/find", "/v1/documents/count"):
        return  # all documents
    check_error(post(full, path, content), path)


@pytest.mark.parametrize("path", POSTS)
def test_a_huge_body_is_refused(full, path):
    check_error(post(full, path, b" " * 300_001), path)
    for content in replaced(VALID[path], "word " * 30_000):
        check_response(post(full, path, content), path)
    for content in replaced(VALID[path], ["a"] * 2000):
        check_response(post(full, path, content), path)


@pytest.mark.parametrize("path", POSTS)
def test_a_value_of_another_type_is_refused_or_understood(full, path):
    for value in WRONG:
        for content in replaced(VALID[path], value):
            check_response(post(full, path, content), path)


@pytest.mark.parametrize("path", POSTS)
def test_hostile_strings_are_texts_or_refused(full, path):
    for value in HOSTILE:
        for content in replaced(VALID[path], value):
            check_response(post(full, path, content), path)
        check_response(post(full, path, {**VALID[path], value: value}), path)
    assert {"dog", "sea"} <= {point["id"] for point in full.get("/v1/collection/map").json()["points"]}


@pytest.mark.parametrize("path", POSTS)
def test_a_name_that_stands_twice_in_an_object_is_refused(full, path):
    body = json.dumps(VALID[path])
    name = next(iter(VALID[path]))
    done = post(full, path, f'{{"{name}": 3, {body[1:]}'.encode())
    check_error(done, path)
    assert f"'{name}' occurs twice in a JSON object" in done.text


@pytest.mark.parametrize(
    ("path", "name", "body"),
    [
        (path, name, {**VALID[path], name: [*VALID[path][name] * 600, {}]})
        for path, name in [
            ("/v1/embeddings", "input"),
            ("/v1/embed", "texts"),
            ("/v2/rerank", "documents"),
            ("/tokenize", "inputs"),
            ("/rerank", "texts"),
            ("/api/embed", "input"),
        ]
    ]
    + [
        ("/v2/embed", "inputs", {"inputs": [{"content": []}] * 1001}),
        ("/v1/documents", "documents", {"documents": [{"id": "", "text": ""}] * 1001}),
        ("/v1/documents/delete", "ids", {"ids": ["a"] * 1001 + [None]}),
        ("/similarity", "sentences", {"inputs": {"source_sentence": "a", "sentences": ["a"] * 1001 + [None]}}),
    ],
)
def test_a_long_list_is_refused_before_its_items_are_validated(full, path, name, body):
    done = post(full, path, body)
    check_error(done, path)
    assert done.status_code == 413
    assert re.search(f"'{name}': [0-9]+ items in one request; at most 1000 are allowed", done.text)


@pytest.mark.parametrize("path", GETS)
def test_hostile_paths_are_found_or_not(full, path):
    for value in HOSTILE:
        quoted = urllib.parse.quote(value[:3000].encode("utf-8", "surrogatepass"), safe="")
        for target in (
            path.replace("{id}", quoted),
            f"{path.replace('{id}', 'x')}?model={quoted}&{quoted}={quoted}",
        ):
            done = full.get(target)
            if done.status_code != 200:
                check_error(done, path)


@pytest.mark.parametrize("path", sorted({*POSTS, *GETS}))
def test_other_methods_are_refused(full, path):
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS"):
        done = full.request(method, path.replace("{id}", "x"))
        assert done.status_code == 405
        check_error(done, path)
        assert done.headers["allow"]


DOCUMENT = (Path(__file__).parents[4] / "docs" / "server.md").read_text(encoding="utf-8")


def cells(header):
    """Return the cells of the rows of the document's table with this header."""
    _, _, after = DOCUMENT.partition(f"\n{header}\n")
    lines = after.partition("\n\n")[0].splitlines()[1:]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip("|"))] for line in lines]


def test_the_document_lists_every_route_and_no_other():
    listed = set()
    for first, *_ in cells("| route | clients | purpose |"):
        method = ""
        for found in re.finditer(
            r"`(?:(GET|POST) )?(/[^`]*)`|(GET|POST)", first.replace("`, `GET /", "`, GET `/")
        ):
            method = found[1] or found[3] or method
            if found[2]:
                listed.add((method, found[2].replace("ID", "{id}")))
    there = {(route.method, route.path) for route in ROUTES if route.tag}
    assert listed - {("GET", "/openapi.json")} == there


def test_the_document_lists_the_status_of_every_error():
    listed = {int(status) for status, _ in cells("| status | cause |")}
    assert {status for _, status in HTTP_STATUSES} <= listed
    assert {400, 401, 403, 404, 405, 408, 413, 415, 429, 431, 500, 503, 504, 507} == listed


def test_the_document_lists_the_routes_of_each_scope():
    for name, routes in cells("| scope | allows |"):
        scope = name.split("`")[1]
        if scope != "read":
            there = {route.path for route in ROUTES if route.scope == scope}
            assert set(re.findall(r"`(/[^`]*)`", routes)) == there


def test_what_the_document_calls_unsupported_is_refused(full):
    for path in ("/embed_all", "/predict"):
        assert full.post(path, json={"inputs": "a"}).status_code == 404
    for path, content in [
        ("/embed", {"inputs": "a", "truncation_direction": "left"}),
        ("/rerank", {"query": "a", "texts": ["b"], "truncation_direction": "left"}),
        ("/embed", {"inputs": "a", "normalize": False}),
        ("/v1/embeddings", {"input": "a", "late_chunking": True}),
        (
            "/v1/rerank",
            {"query": "a", "documents": [{"text": "b", "title": "c"}], "rank_fields": ["title", "text"]},
        ),
        ("/v2/embed", {"texts": ["a"], "truncate": "START"}),
    ]:
        check_error(post(full, path, content), path)
