"""Deleting what was recorded: rows leave the files, not only the views."""

from __future__ import annotations

from ..errors import UserError
from .store import Store


def delete(store: Store, id: str) -> dict[str, int]:
    """Delete one trajectory, or everything that one ingest run brought. Returns the rows deleted by table.

    The words that replays kept of a deleted trajectory (table `kept`) go too; their figures stay.
    """
    ingests = store.runs("ingest")
    whole = next((run for run in ingests if run.run_id == id), None)
    if whole is not None:
        ids = store.query("select distinct trajectory_id from trajectories where run_id = ?", [id])["trajectory_id"]
        counts = {table: whole.rows(table) for table in ("trajectories", "turns", "requests")}
        store.remove(id)
        counts["kept"] = sum(_forget(store, one) for one in ids.to_pylist())
        return counts
    counts: dict[str, int] = {"trajectories": 0, "turns": 0, "requests": 0}
    for info in ingests:
        if info.rows("trajectories"):
            run = store.open_run(info.run_id)
            for table in ("trajectories", "turns"):
                counts[table] += run.discard(table, "trajectory_id", id)
    if not counts["trajectories"]:
        raise UserError(f"no trajectory and no ingest run {id!r} in {store.path}; see `kvmill traces list`")
    counts["kept"] = _forget(store, id)
    return counts


def _forget(store: Store, trajectory_id: str) -> int:
    held = store.query("select distinct run_id from kept where trajectory_id = ?", [trajectory_id])["run_id"]
    return sum(store.open_run(run).discard("kept", "trajectory_id", trajectory_id) for run in held.to_pylist())
