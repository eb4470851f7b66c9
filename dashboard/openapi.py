"""The OpenAPI 3.1 document, written from the table of routes that the server runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import __version__
from .bodies import model_of
from .routes import Parameter, Route, Schema

_ERROR: Schema = {
    "title": "Failure",
    "type": "object",
    "properties": {"error": {"type": "string", "description": "what, where, and what to do"}},
    "required": ["error"],
    "additionalProperties": False,
}
_ALWAYS = {
    401: "the token is missing or wrong",
    403: "without a token: not from this machine",
    429: "too many requests",
    500: "a bug",
}
_OF_BODIES = {400: "the body is not JSON", 413: "the body is too large", 415: "the body is no application/json"}
_RETRY = {"Retry-After": {"schema": {"type": "integer"}, "description": "seconds to wait"}}


def document(routes: Sequence[Route]) -> dict[str, Any]:
    """The whole document. Titled schemas become components."""
    components: dict[str, Any] = {}
    paths: dict[str, Any] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, components)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "kvmill",
            "version": __version__,
            "description": "Upload traces, run replays, simulations and plans as jobs, and read what they found.",
        },
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": dict(sorted(components.items())),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(route: Route, components: dict[str, Any]) -> dict[str, Any]:
    failures = dict(_ALWAYS)
    if route.public:
        del failures[401], failures[403]
    if route.parameters or route.verb:
        failures[422] = "a parameter or an option does not fit; the line lists what is known"
    failures |= _OF_BODIES if route.verb else {}
    failures |= route.failures
    told: dict[str, Any] = {
        "operationId": _name(route),
        "summary": route.summary,
        "responses": {
            str(status): _answer(meaning, schema, route, components)
            for status, (meaning, schema) in route.answers.items()
        },
    }
    for status, meaning in sorted(failures.items()):
        if str(status) not in told["responses"]:
            told["responses"][str(status)] = {
                "description": meaning,
                "content": {"application/json": {"schema": _referred(_ERROR, components)}},
                **({"headers": _RETRY} if status == 429 else {}),
            }
    if route.parameters:
        told["parameters"] = [_parameter(parameter) for parameter in route.parameters]
    if route.verb:
        body = {"application/json": {"schema": _referred(_body(route.verb), components)}}
        told["requestBody"] = {"required": True, "content": body}
    if route.streams:
        told["requestBody"] = {
            "required": True,
            "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
        }
    return told | ({"security": []} if route.public else {})


def _answer(meaning: str, schema: Schema | str, route: Route, components: dict[str, Any]) -> dict[str, Any]:
    if isinstance(schema, str):
        return {"description": meaning, "content": {schema.partition(";")[0]: {"schema": {"type": "string"}}}}
    content: dict[str, Any] = {"application/json": {"schema": _referred(schema, components)}}
    if any("csv" in parameter.schema.get("enum", ()) for parameter in route.parameters):
        content["text/csv"] = {"schema": {"type": "string"}}
    return {"description": meaning, "content": content}


def _referred(schema: Schema, components: dict[str, Any]) -> dict[str, Any]:
    """A reference to a titled schema, which becomes a component; any other one as it is."""
    if "title" not in schema:
        return dict(schema)
    whole = dict(schema)
    for name, part in schema.get("properties", {}).items():
        if "title" in part.get("items", {}):
            whole["properties"] = {**whole["properties"], name: {**part, "items": _referred(part["items"], components)}}
    components[schema["title"]] = whole
    return {"$ref": f"#/components/schemas/{schema['title']}"}


def _body(verb: str) -> dict[str, Any]:
    return model_of(verb).model_json_schema()


def _parameter(parameter: Parameter) -> dict[str, Any]:
    needed = parameter.where == "path" or "default" not in parameter.schema
    return {
        "name": parameter.name,
        "in": parameter.where,
        "required": needed,
        "description": parameter.doc,
        "schema": dict(parameter.schema),
    }


def _name(route: Route) -> str:
    words = route.path.removeprefix("/api/v1").replace("{", "of-").replace("}", "").replace(".", "-").split("/")
    return "-".join([route.method.lower(), *filter(None, words)])
