"""The recorded runs that a replay was made from, found again by their ids."""

from __future__ import annotations

from collections.abc import Sequence

from ..traces import record
from ..traces.samples import named
from ..traces.store import Store
from ..traces.trajectory import Trajectory


def by_id(store: Store, ids: Sequence[str]) -> dict[str, Trajectory]:
    """Those of `ids` that are at hand, bundled samples or ingested ones, by id. Reads only: an id is never a path."""
    found = {run.id: run for run in map(named, ids) if run}
    missing = [name for name in ids if name not in found]
    if missing:
        question = "SELECT DISTINCT trajectory_id, record FROM trajectories WHERE list_contains($1, trajectory_id)"
        for row in store.query(question, [missing]).to_pylist():
            found[row["trajectory_id"]] = record.load(row["record"])
    return found
