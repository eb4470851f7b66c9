"""A route: one entry of the table that the server is built from, and the OpenAPI document is written from.

`Endpoint` puts the same steps before every handler: how often this visitor asks, where the request comes from, its
token, its parameters, its body. Handlers only see requests that passed them all.
"""

from __future__ import annotations

import json
import re
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ..console import note, plain
from ..errors import UserError, unknown
from .access import Refused, Visitor, is_loopback
from .bodies import NotJson, read_body
from .exposition import Counts
from .job import DamagedJob
from .jobs import NotNow, UnknownJob
from .limits import Buckets
from .service import Service, UnknownTraces
from .uploaded import UnknownUpload
from .uploads import NoRoom, TooLarge

BODY_BYTES = 1 << 20
WRONG_TOKEN_COST = 10.0
Schema = Mapping[str, Any]
_STATUS = {
    NotJson: 400,
    Refused: 403,
    UnknownJob: 404,
    UnknownTraces: 404,
    UnknownUpload: 404,
    NotNow: 409,
    TooLarge: 413,
    DamagedJob: 503,
    NoRoom: 507,
}


class Failure(Exception):
    """An answer other than the one asked for: `status`, one line, and headers."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.headers = status, dict(headers or {})


@dataclass(frozen=True, slots=True)
class Parameter:
    """A part of the path or a key of the query. `schema`: a JSON schema of type integer, boolean or string."""

    name: str
    schema: Schema
    doc: str
    where: str = "query"


@dataclass(frozen=True, slots=True)
class Call:
    """A request that passed every check. `values`: its parameters; `options`: its body, of a command."""

    service: Service
    visitor: Visitor
    counts: Counts
    values: Mapping[str, Any]
    options: Mapping[str, Any]
    request: Request


@dataclass(frozen=True, slots=True)
class Reply:
    """What a handler answers: an object, or text of another media type."""

    content: Any
    status: int = 200
    media_type: str = "application/json"


@dataclass(frozen=True, slots=True)
class Route:
    """One operation. `verb`: the command whose options are the body; `streams`: its body is a file for the handler.

    `answers`: status → (what it means, schema or media type); the failures that the checks make are added by `openapi`.
    """

    method: str
    path: str
    summary: str
    handler: Callable[[Call], Reply] | Callable[[Call], Awaitable[Reply]]
    answers: Mapping[int, tuple[str, Schema | str]]
    parameters: Sequence[Parameter] = ()
    verb: str | None = None
    streams: bool = False
    public: bool = False
    failures: Mapping[int, str] = field(default_factory=dict)


class Endpoint:
    """All operations of one path, as an ASGI application."""

    def __init__(self, routes: Sequence[Route], service: Service, buckets: Buckets, counts: Counts) -> None:
        self.routes = {route.method: route for route in routes}
        self.path = routes[0].path if routes else "unknown"
        self.public = any(route.public for route in routes)
        self._service, self._buckets, self._counts = service, buckets, counts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, whatever happens."""
        request = Request(scope, receive)
        method = "GET" if request.method == "HEAD" else request.method
        try:
            reply = await self._answered(request, method)
            response = _response(reply)
        except ClientDisconnect:
            return
        except Failure as failure:
            response = _response(Reply({"error": str(failure)}, failure.status), failure.headers)
        except Exception as error:
            # Our bug: the log has the traceback, the visitor does not.
            note(f"{method} {self.path}: {''.join(traceback.format_exception(error))}")
            response = _response(Reply({"error": "a bug of kvmill; the server's log says where"}, 500))
        known = method if method in self.routes else "other"
        self._counts.requests[known, self.path, response.status_code] += 1
        await response(scope, receive, send)

    async def _answered(self, request: Request, method: str) -> Reply:
        visitor = self._admitted(request)
        route = self.routes.get(method)
        if not self.routes:
            raise Failure(404, f"there is no {request.url.path}; GET /api/v1/openapi.json lists what there is")
        if route is None:
            raise Failure(405, f"{method} is not for {self.path}", {"Allow": ", ".join(sorted(self.routes))})
        call = Call(
            service=self._service,
            visitor=visitor,
            counts=self._counts,
            values=_values(route, request),
            options=await _body(route, request) if route.verb else {},
            request=request,
        )
        try:
            if route.streams:
                return await route.handler(call)  # type: ignore[misc]
            return await run_in_threadpool(route.handler, call)  # type: ignore[arg-type]
        except UserError as error:
            status = next((status for kind, status in _STATUS.items() if isinstance(error, kind)), 422)
            raise Failure(status, " ".join(str(error).split())) from None

    def _admitted(self, request: Request) -> Visitor:
        """Who asks. Failure if too often, from elsewhere, or without the token."""
        client = request.client.host if request.client else "unknown"
        wait_s = self._buckets.take(client)
        if wait_s:
            raise Failure(429, "too many requests; wait", {"Retry-After": str(int(wait_s) + 1)})
        access = self._service.access
        if self.public:
            return Visitor(f"api {client}", verified=False)
        if not access.needed:
            _require_from_here(request)
            return Visitor(f"api {client}", verified=True)
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer" or not access.matches(token.strip()):
            self._buckets.charge(client, WRONG_TOKEN_COST)
            raise Failure(401, "give the token in the header: Authorization: Bearer …", {"WWW-Authenticate": "Bearer"})
        return Visitor(f"api {client}", verified=True)


def _require_from_here(request: Request) -> None:
    """Without a token, pages of other sites must not act through the user's browser (nor by a name they control)."""
    origin = request.headers.get("origin")
    hosts = [request.url.hostname or "", *([re.sub(r"^\w+://|:\d+$", "", origin)] if origin else [])]
    if not all(is_loopback(host) for host in hosts):
        raise Failure(403, "without a token only requests from this machine's own pages and programs are answered")
    if request.headers.get("sec-fetch-site") in ("cross-site", "same-site"):
        raise Failure(403, "without a token requests from other sites are not answered")


def _values(route: Route, request: Request) -> dict[str, Any]:
    """Parameters by name, as their schemas say. Failure (422) for unknown, repeated and unfit ones."""
    query = {parameter.name: parameter for parameter in route.parameters if parameter.where == "query"}
    found = {p.name: request.path_params[p.name] for p in route.parameters if p.where == "path"}
    for parameter in route.parameters:
        if parameter.where == "path" and not re.fullmatch(parameter.schema.get("pattern", ".*"), found[parameter.name]):
            raise Failure(404, f"there is no {parameter.name} {found[parameter.name]!r}")
    for name, text in request.query_params.multi_items():
        if name not in query:
            raise Failure(422, str(unknown("parameter", name, query)))
        if name in found:
            raise Failure(422, f"parameter {name} is given twice")
        found[name] = _value(query[name], text)
    for name, parameter in query.items():
        if name not in found:
            if "default" not in parameter.schema:
                raise Failure(422, f"parameter {name} is missing: {parameter.doc}")
            found[name] = parameter.schema["default"]
    return found


def _value(parameter: Parameter, text: str) -> Any:
    schema, name = parameter.schema, parameter.name
    if schema["type"] == "integer":
        if not re.fullmatch(r"-?[0-9]{1,16}", text):
            raise Failure(422, f"parameter {name}: {text!r} is no whole number")
        if not schema["minimum"] <= int(text) <= schema["maximum"]:
            raise Failure(422, f"parameter {name}: give a number from {schema['minimum']} to {schema['maximum']}")
        return int(text)
    if "enum" in schema and text not in schema["enum"]:
        raise Failure(422, str(unknown(f"value of {name}:", text, schema["enum"])))
    if len(text) > schema.get("maxLength", 200) or len(text) < schema.get("minLength", 0):
        raise Failure(
            422, f"parameter {name}: give {schema.get('minLength', 0)} to {schema.get('maxLength', 200)} letters"
        )
    if not re.fullmatch(schema.get("pattern", ".*"), text, re.DOTALL):
        raise Failure(422, f"parameter {name}: {text!r} does not fit. {parameter.doc}")
    return text


async def _body(route: Route, request: Request) -> dict[str, Any]:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Failure(415, "give the options as application/json")
    raw = b""
    async for piece in request.stream():
        raw += piece
        if len(raw) > BODY_BYTES:
            raise Failure(413, f"more than {BODY_BYTES:,} bytes of options are not read")
    try:
        return read_body(route.verb or "", raw)
    except UserError as error:
        raise Failure(400 if isinstance(error, NotJson) else 422, str(error)) from None


def _response(reply: Reply, headers: Mapping[str, str] | None = None) -> Response:
    if reply.media_type == "application/json":
        content = json.dumps(plain(reply.content), allow_nan=False)
    else:
        content = reply.content
    given = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", **(headers or {})}
    return Response(content, reply.status, given, reply.media_type)
