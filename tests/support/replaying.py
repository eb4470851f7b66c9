"""Small replays of a tiny model on bundled samples, and their rows to compare."""

from __future__ import annotations

import json
from dataclasses import replace

from kvmill.replay.fanout import run_replay
from kvmill.traces import samples
from kvmill.traces.store import Store
from kvmill.traces.trajectory import Trajectory

POLICIES = ["te(proxy=assistant,delay=1,keep=0.2)", "random(keep=0.2)"]
TABLES = ("cells", "turn_metrics", "probes", "kept")


def some(count: int, turns: int = 3) -> list[Trajectory]:
    """Bundled samples cut to a few turns, probes about those."""
    cut = []
    for t in samples.load()[:count]:
        probes = tuple(p for p in t.probes if p.fact_turn < turns)
        cut.append(replace(t, turns=t.turns[:turns], probes=probes))
    return cut


def replay(store: Store, model: str, count: int = 2, **more: object) -> str:
    arguments = {"policies": POLICIES, "dtype": "float32", "threads": 1, "progress": False, **more}
    return run_replay(store=store, trajectories=some(count), model=model, **arguments)  # type: ignore[arg-type]


def rows(store: Store, run: str, table: str) -> list[str]:
    """The rows of a run without what may differ: its id, and seconds."""
    mine = store.query(f"select * from {table} where run_id = ?", [run]).to_pylist()
    return sorted(json.dumps({k: v for k, v in r.items() if k != "run_id" and not k.endswith("_s")}) for r in mine)
