"""Which recorded runs a command works on: a bundled set, `last`, `all`, an id, a path, or `source=…,family=…`."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from ..errors import UserError, unknown
from . import record, samples
from .ingest import ingest, require_accepted
from .places import STANDARD_INPUT
from .rows import request_of
from .store import RunInfo, Store
from .trajectory import Request, Trajectory
from .writing import AGAIN

_WILDCARD = re.compile(r"([*?\[])")
_AT_ONCE = 32
_WORDS = f"{', '.join(samples.SETS)}, last, all, an ingest's id, an id, a path, pattern or URI, source=NAME,family=NAME"


def select(store: Store, spec: str = "last", limit: int | None = None) -> list[Trajectory]:
    """The trajectories of `spec`, by id. `limit` takes families in turn, so that each is represented.

    A path or glob is ingested first. UserError if nothing matches; bundled runs need no store.
    """
    if bundled := _bundled(spec):
        return take(bundled, limit)
    found = [record.load(row) for row in _records(store, spec)]
    if not found:
        raise UserError(f"no trajectories for {spec!r} in {store}; give one of: {_WORDS}")
    return take(found, limit)


def stream(store: Store, spec: str = "last") -> tuple[list[str], Iterator[Trajectory]]:
    """The ids of `spec` and its trajectories in that order, a few in memory at a time. UserError as of `select`."""
    if bundled := _bundled(spec):
        return [run.id for run in bundled], iter(bundled)
    where, values = _condition(store, spec, "trajectories", "trajectory_id")
    found = store.query(f"select distinct trajectory_id id from trajectories where {where} order by 1", values)
    ids: list[str] = found["id"].to_pylist()
    if not ids:
        raise UserError(f"no trajectories for {spec!r} in {store}; give one of: {_WORDS}")
    return ids, _loaded(store, ids)


def _bundled(spec: str) -> list[Trajectory]:
    """The bundled runs that `spec` names: a set or one run of any set."""
    if spec in samples.SETS:
        return samples.load(spec)
    run = samples.named(spec)
    return [run] if run else []


def _loaded(store: Store, ids: Sequence[str]) -> Iterator[Trajectory]:
    chosen = "where trajectory_id in (select unnest(?::varchar[])) group by trajectory_id order by trajectory_id"
    for first in range(0, len(ids), _AT_ONCE):
        rows = store.query(
            f"select any_value(record) record from trajectories {chosen}", [ids[first : first + _AT_ONCE]]
        )
        yield from map(record.load, rows["record"].to_pylist())


def select_requests(store: Store, spec: str = "last") -> list[Request]:
    """The request-log rows of `spec` (`last`, `all`, a path or glob, `source=NAME`) by arrival. UserError if none."""
    where, values = _condition(store, spec, "requests", "request_id")
    rows = store.query(f"select * from requests where {where}", values).to_pylist()
    if not rows:
        raise UserError(f"no request log for {spec!r} in {store}; `kvmill traces ingest PATH` reads one")
    unique = {row["request_id"]: row for row in rows}
    return sorted(map(request_of, unique.values()), key=lambda request: request.arrival_s)


def take(trajectories: Iterable[Trajectory], limit: int | None) -> list[Trajectory]:
    """By id; with a limit one of each family in turn."""
    ordered = sorted({t.id: t for t in trajectories}.values(), key=lambda t: t.id)
    if limit is None:
        return ordered
    if limit < 1:
        raise UserError(f"--limit {limit}: give 1 or more")
    families = {family: [t for t in ordered if t.family == family] for family in sorted({t.family for t in ordered})}
    in_turn = itertools.chain.from_iterable(itertools.zip_longest(*families.values()))
    return sorted(itertools.islice((t for t in in_turn if t is not None), limit), key=lambda t: t.id)


def _records(store: Store, spec: str) -> list[str]:
    where, values = _condition(store, spec, "trajectories", "trajectory_id")
    rows = store.query(f"select distinct trajectory_id, record from trajectories where {where} order by 1", values)
    return rows["record"].to_pylist()


def _condition(store: Store, spec: str, table: str, key: str) -> tuple[str, Sequence[object]]:
    """A SQL condition on rows of `table`, and its values. UserError for an empty text, which is this folder's path."""
    if not spec.strip():
        raise UserError(f"an empty text selects nothing; give one of: {_WORDS}")
    if spec == "all":
        return "true", []
    if spec == "last":
        return _of_run(store, _last(store, table), key)
    if run := next((run for run in store.runs("ingest") if run.run_id == spec), None):
        return _of_run(store, run, key)
    if "=" in spec and not Path(spec).exists():
        return _filter(spec)
    if spec == STANDARD_INPUT or any(c in spec for c in "*?[/\\") or Path(spec).exists():
        report = ingest(store, [spec])
        require_accepted(report, strict=False)
        return _of_run(store, store.info(report.run), key)
    return f"{key} = ?", [spec]


def _of_run(store: Store, run: RunInfo, key: str) -> tuple[str, Sequence[object]]:
    # What the run found in the store already belongs to it as well: ingesting a file twice changes no selection.
    again = store.beside(run.run_id, AGAIN)
    if again is None:
        return "run_id = ?", [run.run_id]
    ids = "select id from read_csv(?, header = false, columns = {'id': 'VARCHAR'}, auto_detect = false)"
    return f"(run_id = ? or {key} in ({ids}))", [run.run_id, _WILDCARD.sub(r"[\1]", str(again))]


def _last(store: Store, table: str) -> RunInfo:
    for run in store.runs("ingest", "complete"):
        if run.rows(table) or run.config.get("again", {}).get(table):
            return run
    raise UserError(f"nothing was ingested into {store} yet: `kvmill traces ingest PATH`, or use --traces samples")


def _filter(spec: str) -> tuple[str, Sequence[object]]:
    pairs = [part.partition("=") for part in spec.split(",")]
    for name, equals, _ in pairs:
        if name not in ("source", "family", "model") or not equals:
            raise unknown("key", name, ("source", "family", "model"), f"--traces {spec}")
    return " and ".join(f"{name} = ?" for name, _, _ in pairs), [value for _, _, value in pairs]
