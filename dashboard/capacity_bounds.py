"""What can be said of a fleet at once, without a simulation: closed forms, always *estimated*.

They answer while a slider moves; a simulation takes their place where there is one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..replay.profile import PolicyProfile
from ..simulator.answers import profile_of, profiles_of
from ..simulator.bounds import demand, least_of, resident_blocks
from ..simulator.given import Given
from ..simulator.plan import scenarios_of
from ..simulator.reach import hopeless
from ..simulator.report import described, quality
from ..simulator.run import Scenario
from ..simulator.slo import parse_slo
from ..traces.store import Store
from .capacity_setting import Setting, placed, places
from .snapshot import snapshot

LOADS = (0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0)
Stamp = tuple[str, ...]
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Bound:
    """Closed forms of one policy. `demand`: replicas that the load takes at the very least; `resident`: replicas
    whose memory holds every cache at once. `never` says why no fleet keeps the promises, None where nothing says so.
    """

    policy: str
    tp: int
    demand: float
    resident: float
    never: str | None

    def least(self, load: float = 1.0) -> int:
        """GPUs that no answer can undercut, at `load` times the load: both forms are linear in it."""
        return self.tp * max(1, math.ceil(self.demand * load - 1e-9))

    def holding(self, load: float = 1.0) -> int:
        """GPUs on which no cache is ever evicted; above `least` the usual answer, below it without meaning."""
        return max(self.least(load), self.tp * max(1, round(self.resident * load)))


def stamp_of(store: Store, setting: Setting) -> Stamp:
    """Changes when traces, replays or named files do: what lengths, profiles and machines are made from."""
    runs = [run.run_id for run in store.runs() if run.kind in ("ingest", "replay")]
    files = [path for name in places(setting) if (path := Path(placed(name, store))).is_file()]
    return (*runs, *(f"{path} {path.stat().st_mtime_ns}" for path in files))


def frame(setting: Setting, store: Store) -> dict[str, Any]:
    """The frame of an answer, before there is one: machine, memory, contexts, price, assumptions. UserError as a plan.

    The keys are those of `kvmill plan --json` without the rows.
    """
    return dict(_frame(snapshot(store), setting, stamp_of(store, setting)))


def bound(setting: Setting, policy: str, store: Store, run: str | None = None) -> Bound:
    """The closed forms of one policy, with the extra turns that replay `run` measured. UserError as a plan."""
    return _bound(snapshot(store), setting, policy, run, stamp_of(store, setting))


def by_load(bounds: Sequence[Bound], loads: Sequence[float] = LOADS) -> list[dict[str, Any]]:
    """GPUs at other loads, a row per policy and load."""
    return [
        {"policy": found.policy, "load": load, "least": found.least(load), "holding": found.holding(load)}
        for found in bounds
        if found.never is None
        for load in loads
    ]


def judged(rows: Mapping[str, Row], setting: Setting, store: Store, run: str | None) -> dict[str, Row]:
    """Stored answers by policy with the quality that replay `run` measured, in place of that they were planned with.

    An answer is left out where `run` measured other extra turns, or another share kept, than it was simulated with.
    None: all of them as they are.
    """
    if run is None:
        return dict(rows)
    changes = stamp_of(store, setting)
    geometry = _given(snapshot(store), setting, changes).geometry
    found = {text: quality(profile(snapshot(store), text, run, changes), geometry) for text in rows}
    return {
        text: {**row, **found[text]}
        for text, row in rows.items()
        if all((row.get(key) or None) == (found[text][key] or None) for key in ("extra_turns", "keep_measured"))
    }


@lru_cache(maxsize=8)
def _given(store: Store, setting: Setting, stamp: Stamp) -> Given:
    return setting.given(store)


@lru_cache(maxsize=32)
def _frame(store: Store, setting: Setting, stamp: Stamp) -> dict[str, Any]:
    found = _given(store, setting, stamp)
    full = PolicyProfile("full")
    scenario = _scenario(found, setting, full)
    slo = {promise.key: promise.limit_s for promise in scenario.slos}
    return {"workload": found.load.name, "slo": slo, **described([scenario], {"full": full}, 10, 0)}


@lru_cache(maxsize=256)
def _bound(store: Store, setting: Setting, policy: str, run: str | None, stamp: Stamp) -> Bound:
    scenario = _scenario(_given(store, setting, stamp), setting, profile(store, policy, run, stamp))
    turns = least_of(scenario)
    pool = max(1, scenario.deployment.blocks())
    return Bound(
        policy,
        scenario.deployment.tp,
        demand(scenario, turns),
        resident_blocks(scenario) / pool,
        hopeless(scenario, turns),
    )


@lru_cache(maxsize=256)
def profile(store: Store, policy: str, run: str | None, stamp: Stamp) -> PolicyProfile:
    """What replay measured of a policy."""
    return profile_of(_profiles(store, run, stamp), policy)


@lru_cache(maxsize=8)
def _profiles(store: Store, run: str | None, stamp: Stamp) -> dict[str, PolicyProfile]:
    return dict(profiles_of(store, run))


def _scenario(found: Given, setting: Setting, measured: PolicyProfile) -> Scenario:
    slos = parse_slo(list(setting.slo))
    (scenario,) = scenarios_of(found.load, found.deployment(), slos, {measured.policy: measured}, fleet=found.fleet)
    return scenario
