"""The OpenAPI document is true: every request, valid or not, is answered, and never with a 500."""

from __future__ import annotations

import httpx
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import response_schema_conformance, status_code_conformance

from embedkit import Collection

from .test_routes import ROUTES

OPERATIONS = [(route.method, route.path) for route in ROUTES if route.tag]
CHECKS = [not_a_server_error, status_code_conformance, response_schema_conformance]


@pytest.fixture(scope="module")
def served(serve, toy_encoder, tmp_path_factory):
    path = tmp_path_factory.mktemp("openapi") / "idx"
    collection = Collection.build([("dog", "a dog")], encoder=toy_encoder, path=path, show_progress_bar=False)
    with serve(collection=collection, allow_writes=True) as url:
        yield url


@pytest.fixture(scope="module")
def schema(served):
    return schemathesis.openapi.from_dict(httpx.get(f"{served}/openapi.json").json())


def test_every_operation_is_tried(schema):
    assert {(found.ok().method.upper(), found.ok().path) for found in schema.get_all_operations()} == {*OPERATIONS}


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_nothing_is_a_server_error(served, schema, method, path):
    operation = schema[path][method]
    for mode in schemathesis.GenerationMode if operation.body else [schemathesis.GenerationMode.POSITIVE]:
        strategy = operation.as_strategy(generation_mode=mode)

        @settings(
            max_examples=8,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=[*HealthCheck],
        )
        @given(case=strategy)
        def try_one(case):
            with requests.Session() as session:
                case.call_and_validate(base_url=served, session=session, checks=CHECKS)

        try_one()
