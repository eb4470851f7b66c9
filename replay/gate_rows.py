"""The rows of a replay run as the gate reads them, from the store. No torch."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ..traces.store import Store
from .gate_nouns import METRICS, ROWS_ADDED, ROWS_REMOVED, Cell, Finding, Pair, Side

_CELLS = (
    "SELECT policy, family, trajectory_id, "
    "CASE WHEN bool_or(status = 'failed') THEN 'failed' WHEN bool_or(status = 'skipped') THEN 'skipped' ELSE 'ok' END "
    "AS status, any_value(error) AS error, avg(kv_tokens_peak) AS peak, "
    + ", ".join(f"avg({name}::DOUBLE) AS {name}" for name in METRICS)
    + " FROM cells WHERE run_id = $1 GROUP BY ALL ORDER BY ALL"
)
_FAILED = "SELECT count(*) AS n FROM cells WHERE run_id = $1 AND status = 'failed'"
_DOUBLED = (
    "SELECT policy, family, count(*) AS n FROM (SELECT policy, family, cell_id FROM cells WHERE run_id = $1 "
    "GROUP BY ALL HAVING count(*) > 1) GROUP BY ALL ORDER BY ALL"
)
# Share of kept rows that are other tokens: half the sum of differences over the mean of both sums.
_MOVED = (
    "SELECT policy, trajectory_id, sum(abs(coalesce(a.share, 0) - coalesce(b.share, 0))) / "
    "nullif(sum(coalesce(a.share, 0)) + sum(coalesce(b.share, 0)), 0) AS moved "
    "FROM (SELECT * FROM kept WHERE run_id = $1) a FULL JOIN (SELECT * FROM kept WHERE run_id = $2) b "
    "USING (policy, trajectory_id, position) GROUP BY ALL"
)
_SPEEDS = (
    "SELECT policy, family, avg(ttft_s) AS ttft_s, avg(tpot_s) AS tpot_s, count(DISTINCT trajectory_id) AS n "
    "FROM cells WHERE run_id = $1 AND measure = 'latency' AND status = 'ok' GROUP BY ALL ORDER BY ALL"
)


def side(store: Store, run_id: str, promised: Collection[str] | None = None) -> Side:
    """A run as one side of the gate; all its trajectories are promised unless `promised` says which."""
    cells: dict[Pair, dict[str, Cell]] = {}
    for row in store.query(_CELLS, [run_id]).to_pylist():
        values = {name: row[name] for name in METRICS if row[name] is not None}
        cell = Cell(row["status"], values, row["peak"], row["error"])
        cells.setdefault((row["policy"], row["family"]), {})[row["trajectory_id"]] = cell
    ids = {trajectory for rows in cells.values() for trajectory in rows}
    return Side(cells, frozenset(ids if promised is None else promised))


def doubled(store: Store, run_id: str) -> list[Finding]:
    """Cells that are stored more than once: a mean over them is of nobody knows what."""
    rows = store.query(_DOUBLED, [run_id]).to_pylist()
    why = "cells are stored twice in"
    return [
        Finding(row["policy"], row["family"], ROWS_ADDED, f"{row['n']} {why} {run_id}", True, n=row["n"])
        for row in rows
    ]


def without(found: Side, ids: Collection[str]) -> Side:
    """The side without these trajectories."""
    cells = {pair: {t: cell for t, cell in rows.items() if t not in ids} for pair, rows in found.cells.items()}
    return Side(cells, found.promised.difference(ids))


def changed(now: Side, ids: Collection[str]) -> list[Finding]:
    """What becomes of trajectories that are not those of the baseline under the same id: promised ones block."""
    out = []
    for pair, rows in now.cells.items():
        if others := sorted(now.promised & rows.keys() & set(ids)):
            few = ", ".join(others[:3]) + (f" and {len(others) - 3} more" if len(others) > 3 else "")
            why = f"{len(others)} trajectories have other messages, labels or probes than in the baseline: {few}"
            out.append(Finding(*pair, ROWS_REMOVED, why, True, n=len(others)))
    return out


def moved(store: Store, old: str, new: str) -> dict[tuple[str, str], float]:
    """By policy and trajectory, the share of rows kept at the end that are other tokens in `new` than in `old`."""
    rows = store.query(_MOVED, [old, new]).to_pylist()
    return {(row["policy"], row["trajectory_id"]): row["moved"] for row in rows if row["moved"] is not None}


def failed(store: Store, run_id: str) -> int:
    """How many cells of a run failed."""
    return int(store.query(_FAILED, [run_id])["n"][0].as_py())


def speeds(store: Store, run_id: str) -> dict[Pair, dict[str, Any]]:
    """`ttft_s`, `tpot_s` and the number of timed trajectories by policy and family; empty if none was timed."""
    return {(row["policy"], row["family"]): row for row in store.query(_SPEEDS, [run_id]).to_pylist()}
