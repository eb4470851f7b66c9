"""The whole API: the table of its routes, and the same as what Starlette serves."""

from __future__ import annotations

from itertools import groupby

from starlette.routing import Route as StarletteRoute

from .. import __version__
from . import routes_jobs, routes_runs, routes_uploads
from .exposition import Counts, exposition, readable
from .limits import Buckets
from .openapi import document
from .routes import Call, Endpoint, Failure, Reply, Route, Schema
from .service import Service

RATE_PER_S, BURST = 20.0, 100.0
_TEXT = "text/plain; version=0.0.4; charset=utf-8"
_HEALTH: Schema = {
    "title": "Health",
    "type": "object",
    "properties": {"status": {"const": "ok"}, "version": {"type": "string"}},
    "required": ["status", "version"],
    "additionalProperties": False,
}


def _healthz(call: Call) -> Reply:
    why = readable(call.service)
    if why is not None:
        # Everybody may ask for this: what is wrong is for those who have the token, at /metrics.
        raise Failure(503, "the store cannot be read")
    return Reply({"status": "ok", "version": __version__})


def _metrics(call: Call) -> Reply:
    why = readable(call.service)
    if why is not None:
        raise Failure(503, why)
    return Reply(exposition(call.service, call.counts), media_type=_TEXT)


def _openapi(_call: Call) -> Reply:
    return Reply(document(ROUTES))


ROUTES: tuple[Route, ...] = (
    Route(
        "GET",
        "/healthz",
        "Whether the server works and its store can be read.",
        _healthz,
        {200: ("all is well", _HEALTH)},
        public=True,
        failures={503: "the store cannot be read"},
    ),
    Route(
        "GET",
        "/metrics",
        "Metrics for Prometheus.",
        _metrics,
        {200: ("metrics", _TEXT)},
        failures={503: "the store cannot be read"},
    ),
    Route("GET", "/api/v1/openapi.json", "This document.", _openapi, {200: ("the document", {"type": "object"})}),
    *routes_uploads.ROUTES,
    *routes_runs.ROUTES,
    *routes_jobs.ROUTES,
)


def served(service: Service, buckets: Buckets | None = None) -> list[StarletteRoute]:
    """The routes of a service for Starlette, longer paths first; whatever else is below /api is answered with 404."""
    buckets, counts = buckets or Buckets(RATE_PER_S, BURST), Counts()
    by_path = {path: list(found) for path, found in groupby(sorted(ROUTES, key=_path), key=_path)}
    # A path that is spelled out before one with a part left open, as /jobs/replay before /jobs/{job}.
    order = sorted(by_path, key=lambda path: ("{" in path, path))
    return [
        *(StarletteRoute(_open_ended(path), Endpoint(by_path[path], service, buckets, counts)) for path in order),
        StarletteRoute("/api/{rest:path}", Endpoint([], service, buckets, counts)),
    ]


def _open_ended(path: str) -> str:
    """Ids of trajectories are others' names: they may hold slashes."""
    return path.replace("{id}", "{id:path}")


def _path(route: Route) -> str:
    return route.path
