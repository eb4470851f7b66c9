"""The server keeps to its OpenAPI document: generated requests, right and wrong ones, and requests for what exists."""

from __future__ import annotations

import fabricate
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.generation import GenerationMode
from schemathesis.schemas import APIOperation, BaseSchema
from serving import BEARER, application, client, service_of
from starlette.testclient import TestClient

from kvmill.dashboard.openapi import document
from kvmill.dashboard.routes import Route
from kvmill.dashboard.service import Service
from kvmill.dashboard.table import ROUTES, served

DOCUMENT = "/api/v1/openapi.json"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Service:
    where = tmp_path_factory.mktemp("contract") / "store"
    fabricate.filled(where)
    return service_of(where)


@pytest.fixture(scope="module")
def schema(service: Service) -> BaseSchema:
    return schemathesis.openapi.from_asgi(DOCUMENT, application(service), headers=dict(BEARER))


def _asked() -> list[tuple[Route, GenerationMode]]:
    """Right requests to every route, and wrong ones where there is something to get wrong."""
    routes = [route for route in ROUTES if route.path != DOCUMENT]
    wrong = [route for route in routes if route.parameters or route.verb]
    return [(route, GenerationMode.POSITIVE) for route in routes] + [
        (route, GenerationMode.NEGATIVE) for route in wrong
    ]


@pytest.mark.parametrize(
    ("route", "mode"), _asked(), ids=lambda it: f"{it.method} {it.path}" if isinstance(it, Route) else it.name
)
def test_generated_requests_are_answered_as_the_document_says(route: Route, mode: GenerationMode, schema: BaseSchema):
    @settings(max_examples=10, suppress_health_check=list(HealthCheck))
    @given(case=schema[route.path][route.method].as_strategy(generation_mode=mode))
    def check(case: schemathesis.Case) -> None:
        case.call_and_validate(headers=dict(BEARER))

    check()


def test_what_exists_is_answered_with_what_the_document_promises(service: Service, schema: BaseSchema):
    run = service.store.runs("replay")[0].run_id
    job = service.jobs.submit("replay", by="ann").id
    told = {"run": run, "table": "cells", "job": job}
    seen = set()
    for found in schema.get_all_operations():
        operation: APIOperation = found.ok()
        names = {parameter.name for parameter in operation.path_parameters}
        if operation.method.upper() == "GET" and names <= set(told):
            case = operation.Case(path_parameters={name: told[name] for name in names})
            answer = case.call_and_validate(headers=dict(BEARER))
            assert answer.status_code == (409 if operation.path.endswith("/result") else 200)
            seen.add(operation.path)
    assert {"/api/v1/runs/{run}/rows/{table}", "/api/v1/jobs/{job}/log", "/healthz"} <= seen


def test_the_document_is_the_table_and_the_server_is_the_table(service: Service):
    api: TestClient = client(service)
    told = api.get(DOCUMENT).json()
    assert told == document(ROUTES)
    assert told["openapi"] == "3.1.0"
    listed = {(method.upper(), path) for path, methods in told["paths"].items() for method in methods}
    assert listed == {(route.method, route.path) for route in ROUTES}
    mounted = {route.path.replace(":path", "") for route in served(service)}
    assert mounted == {route.path for route in ROUTES} | {"/api/{rest}"}
    names = [operation["operationId"] for methods in told["paths"].values() for operation in methods.values()]
    assert len(names) == len(set(names))


def test_every_operation_asks_for_the_token_but_health():
    told = document(ROUTES)
    assert told["security"] == [{"token": []}]
    own = {path for path, methods in told["paths"].items() for found in methods.values() if "security" in found}
    assert own == {"/healthz"}


def test_options_in_the_document_are_those_of_the_command_line():
    from kvmill.dashboard.verbs import options_of

    schemas = document(ROUTES)["components"]["schemas"]
    for verb, name in (("replay", "Replay"), ("plan", "Plan"), ("traces ingest", "TracesIngest")):
        assert schemas[name]["properties"].keys() == {option.name for option in options_of(verb)}
        assert schemas[name].get("required", []) == [option.name for option in options_of(verb) if option.required]
        assert schemas[name]["additionalProperties"] is False
