"""Deleting what was recorded: rows leave the files, not only the views."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ..errors import UserError
from .store import Store

_compute: Any = pc  # its functions are made at import, where no type checker sees them
# Columns of replays that quote what was recorded: errors name it, answers and replies go over it again.
_SAID = {"cells": ("answer", "error"), "turn_metrics": ("said",)}


def delete(store: Store, id: str) -> dict[str, int]:
    """Delete one trajectory, or everything that one ingest run brought. Returns the rows deleted by table.

    What replays hold of a deleted trajectory's words goes too: its tokens (table `kept`), and what models said and
    answered in its place. Their figures stay. What it is found by goes last: whatever fails on the way, for example on
    a replay that is being written, asking again goes on with the rest.
    """
    ingests = store.runs("ingest")
    whole = next((run for run in ingests if run.run_id == id), None)
    if whole is not None:
        ids = store.query("select distinct trajectory_id from trajectories where run_id = ?", [id])["trajectory_id"]
        counts = {table: whole.rows(table) for table in ("trajectories", "turns", "requests")}
        counts["kept"] = _forget(store, ids.to_pylist())
        store.remove(id)
        return counts
    holding = sorted(set(_runs_with(store, "trajectories", [id])) & {run.run_id for run in ingests})
    if not holding:
        raise UserError(f"no trajectory and no ingest run {id!r} in {store}; see `kvmill traces list`")
    counts: dict[str, int] = {"trajectories": 0, "turns": 0, "requests": 0, "kept": _forget(store, [id])}
    for table in ("turns", "trajectories"):
        counts[table] = sum(store.open_run(run).discard(table, "trajectory_id", id) for run in holding)
    return counts


def _forget(store: Store, ids: list[str]) -> int:
    """Take the words of trajectories out of every replay; returns the rows of `kept` that went."""
    for table, columns in _SAID.items():
        said = " or ".join(f"{column} is not null" for column in columns)
        for run in _runs_with(store, f"{table} where ({said})", ids):
            store.open_run(run).rewrite(table, partial(_silent, columns=columns, ids=ids))
    return sum(
        store.open_run(run).rewrite("kept", partial(_without, ids=ids)) for run in _runs_with(store, "kept", ids)
    )


def _runs_with(store: Store, rows: str, ids: list[str]) -> list[str]:
    mine = "trajectory_id in (select unnest(?))"
    where = f"{rows} and {mine}" if " where " in rows else f"{rows} where {mine}"
    return store.query(f"select distinct run_id from {where}", [ids])["run_id"].to_pylist()


def _silent(rows: pa.Table, columns: Sequence[str], ids: list[str]) -> pa.Table:
    """The rows with these columns null in those of the trajectories."""
    meant = _of(rows, ids)
    for name in columns:
        field = rows.schema.field(name)
        quiet = _compute.if_else(meant, pa.scalar(None, field.type), rows[name])
        rows = rows.set_column(rows.schema.get_field_index(name), field, quiet)
    return rows


def _without(rows: pa.Table, ids: list[str]) -> pa.Table:
    """The rows of other trajectories."""
    return rows.filter(_compute.invert(_of(rows, ids)))


def _of(rows: pa.Table, ids: list[str]) -> pa.ChunkedArray:
    return _compute.is_in(rows["trajectory_id"], value_set=pa.array(ids, pa.string()))
