"""Routes of runs: list, look, results of a replay, rows of a table."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import UserError
from ..traces import manifest
from ..traces.manifest import RunInfo
from ..traces.store import Store
from ..traces.tables import SCHEMAS
from .access import safe_csv
from .routes import Call, Failure, Parameter, Reply, Route, Schema
from .routes_jobs import LIMIT

_BY = ("policy", "turn", "age", "kind", "family")
_MAYBE_TEXT = {"type": ["string", "null"]}
RUN: Schema = {
    "title": "Run",
    "type": "object",
    "properties": {
        "run": {"type": "string"},
        "kind": {"type": "string"},
        "state": {"enum": [*manifest.STATES, "killed"]},
        "created_at": {"type": "string"},
        "finished_at": _MAYBE_TEXT,
        "seed": {"type": "integer"},
        "device": _MAYBE_TEXT,
        "git_revision": _MAYBE_TEXT,
        "versions": {"type": "object"},
        "config": {"type": "object"},
        "rows": {"type": "object", "additionalProperties": {"type": "integer"}},
    },
}
RUN = {**RUN, "required": list(RUN["properties"]), "additionalProperties": False}
LIST: Schema = {
    "title": "Runs",
    "type": "object",
    "properties": {"total": {"type": "integer"}, "runs": {"type": "array", "items": RUN}},
    "required": ["total", "runs"],
}
ROWS: Schema = {
    "title": "Rows",
    "type": "object",
    "properties": {"total": {"type": "integer"}, "rows": {"type": "array", "items": {"type": "object"}}},
    "required": ["total", "rows"],
}
_DAMAGED = {503: "the store is damaged; `kvmill store check` says where"}
_GONE = {404: "there is no such run, or it has none of this"} | _DAMAGED


def _list(call: Call) -> Reply:
    store = call.service.store
    with _read():
        runs = store.runs(None if call.values["kind"] == "any" else call.values["kind"])
    return Reply({"total": len(runs), "runs": [_told(store, run) for run in runs[: call.values["limit"]]]})


def _get(call: Call) -> Reply:
    return Reply(_told(call.service.store, _info(call)))


def _results(call: Call) -> Reply:
    from ..replay.results import summary

    info = _info(call)
    if info.kind != "replay" or not info.rows("cells"):
        raise Failure(404, f"run {info.run_id} is no replay with cells: it has no results")
    with _read():
        return Reply(summary(call.service.store, info.run_id, call.values["by"]))


def _rows(call: Call) -> Reply:
    info, table = _info(call), call.values["table"]
    if table not in SCHEMAS or not info.rows(table):
        held = ", ".join(name for name in SCHEMAS if info.rows(name)) or "none"
        raise Failure(404, f"run {info.run_id} has no table {table!r}; it has: {held}")
    with _read():
        whole = call.service.store.open_run(info.run_id).read(table)
    rows = whole.slice(call.values["offset"], call.values["limit"]).to_pylist()
    if call.values["as"] == "csv":
        return Reply(safe_csv(rows), media_type="text/csv; charset=utf-8")
    return Reply({"total": whole.num_rows, "rows": rows})


def _info(call: Call) -> RunInfo:
    """The run that is asked for. Failure 404 if there is none, 503 if it is damaged."""
    store, run = call.service.store, call.values["run"]
    if not store.storage.home(run).exists():
        raise Failure(404, f"no run {run!r}; GET /api/v1/runs lists them")
    with _read():
        return store.info(run)


def _told(store: Store, run: RunInfo) -> dict[str, object]:
    killed = run.state == "running" and not store.busy(run.run_id)
    return {
        "run": run.run_id,
        "kind": run.kind,
        "state": "killed" if killed else run.state,
        "created_at": run.created_at,
        "finished_at": run.finished_at,
        "seed": run.seed,
        "device": run.device,
        "git_revision": run.git_revision,
        "versions": run.versions,
        "config": run.config,
        "rows": {table: run.rows(table) for table in SCHEMAS if run.rows(table)},
    }


@contextmanager
def _read() -> Iterator[None]:
    """What the store cannot read is 503: it is not the visitor's mistake."""
    try:
        yield
    except UserError as error:
        raise Failure(503, str(error)) from None


_RUN = Parameter(
    "run", {"type": "string", "maxLength": 128, "pattern": r"^[A-Za-z0-9][A-Za-z0-9._-]*$"}, "A run.", "path"
)
_TABLE = Parameter("table", {"type": "string", "enum": list(SCHEMAS)}, "A table of the store.", "path")
_OFFSET = Parameter("offset", {"type": "integer", "minimum": 0, "maximum": 2**40, "default": 0}, "Rows passed over.")
_ROW_LIMIT = Parameter(
    "limit", {"type": "integer", "minimum": 1, "maximum": 10_000, "default": 1000}, "At most so many rows."
)
_KIND = Parameter(
    "kind", {"type": "string", "enum": ["any", *manifest.KINDS], "default": "any"}, "Only runs of this kind."
)
_GROUP = Parameter("by", {"type": "string", "enum": list(_BY), "default": "policy"}, "How results are grouped.")
_AS = Parameter(
    "as", {"type": "string", "enum": ["json", "csv"], "default": "json"}, "csv: text that spreadsheets do not obey."
)
ROUTES = (
    Route(
        "GET", "/api/v1/runs", "Runs, newest first.", _list, {200: ("runs", LIST)}, (_KIND, LIMIT), failures=_DAMAGED
    ),
    Route("GET", "/api/v1/runs/{run}", "One run.", _get, {200: ("the run", RUN)}, (_RUN,), failures=_GONE),
    Route(
        "GET",
        "/api/v1/runs/{run}/results",
        "Results of a replay: the object of `kvmill results RUN --json`.",
        _results,
        {200: ("results", {"type": "object"})},
        (_RUN, _GROUP),
        failures=_GONE,
    ),
    Route(
        "GET",
        "/api/v1/runs/{run}/rows/{table}",
        "Rows of one table, as JSON or CSV.",
        _rows,
        {200: ("rows", ROWS)},
        (_RUN, _TABLE, _OFFSET, _ROW_LIMIT, _AS),
        failures=_GONE,
    ),
)
