"""One night: replay, baseline, gate, plan, reports. Anything that is missing is never green."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ..errors import UserError
from ..replay.gate import gate, in_order
from ..replay.gate_nouns import INSUFFICIENT, OK, ROWS_REMOVED, Finding
from ..replay.gate_rows import changed, doubled, failed, moved, side, speeds, without
from ..replay.gate_speed import speed_findings
from ..replay.machine import machine_type
from ..traces.manifest import RunInfo
from ..traces.recall import with_probes
from ..traces.store import Store
from ..traces.trajectory import Trajectory
from .baseline import (
    GREEN,
    NIGHT,
    Baseline,
    find,
    history,
    last_success,
    require_alike,
    require_comparable,
)
from .choice import Choice, choose
from .config import EXECUTING, REPLAY, NightConfig
from .fleet import planned, require_possible
from .reports import clear, write
from .rerun import measure_elsewhere, require_other_code

EXIT_CODES = {GREEN: 0, "undecided": 4, "regression": 5, "incomplete": 6}
_TONIGHT = ("dtype", "device", "threads", "measure", "latency_repeats")  # of a baseline that runs again


def run_night(
    store: Store, config: NightConfig, *, baseline: str | None = None, rerun: bool = False, progress: bool = True
) -> dict[str, Any]:
    """The object that `kvmill nightly --json` prints; rows go to the store, reports to the folder of `config`.

    UserError for a baseline that cannot be one, or that is from another type of machine or dtype without `rerun`.
    """
    started = time.time()
    clear(config)  # a report of an earlier night must not pass for tonight's
    chosen, machine = choose(store, config), machine_type()
    base = find(store, config.name, baseline)
    if rerun:
        require_other_code(config)
    elif base:
        require_comparable(base, machine, config.replay.get("dtype"))
    if config.plan:
        require_possible(store, config.plan)
    settings = {"name": config.name, "machine": machine, "pinned": sorted(chosen.pinned), "rerun": rerun}
    night = store.begin(NIGHT, settings)
    try:
        replay = _replay(store, config.replay, chosen.trajectories, progress)
        before = _again(store, config, base, replay, chosen, progress) if rerun else base and base.replay.run_id
        found, latency, notes = _gated(store, config, base, before, replay, chosen, machine, rerun)
        plan = planned(store, config.plan, replay, base and base.plan) if config.plan else None
        rows = in_order([*found, *(finding for finding in latency if finding.category != OK)])
        verdict = verdict_of(rows, failed(store, replay), store.info(replay).state == "complete", before is not None)
        night.add({"gates": [asdict(row) for row in rows]}, key="gates")
        facts = {"replay": replay, "baseline": base and base.name, "baseline_replay": before, "verdict": verdict}
        night.annotate(**facts, plan=plan and {row["policy"]: row["gpus"] for row in plan["rows"]})
        night.finish()
    except BaseException:
        night.finish("incomplete")
        raise
    out = {
        **facts,
        "exit_code": EXIT_CODES[verdict],
        "name": config.name,
        "run": night.id,
        "rerun": rerun,
        "machine": machine,
        "trajectories": len(chosen.trajectories),
        "newest": chosen.newest,
        "counts": Counter(row.category for row in rows),
        "rows": [asdict(row) for row in rows],
        "latency": [asdict(row) for row in latency],
        "plan": plan,
        "notes": notes,
        "started_s": started,
        "duration_s": time.time() - started,
        "last_success": last_success(store, config.name),
    }
    return out | {"files": write(config, out)}


def verdict_of(found: Sequence[Finding], failures: int, complete: bool, compared: bool) -> str:
    """The worst that holds: regression, then incomplete, then undecided; green is what is left."""
    if any(finding.blocks for finding in found):
        return "regression"
    if failures or not complete:
        return "incomplete"
    if not compared or not found or any(finding.category == INSUFFICIENT for finding in found):
        return "undecided"
    return GREEN


def _replay(store: Store, settings: Mapping[str, Any], trajectories: Sequence[Trajectory], progress: bool) -> str:
    """A replay run of these trajectories; returns its id."""
    from ..demo import choose as first_of_each
    from ..replay.policies.registry import DEMO_POLICIES
    from ..replay.weights import DEFAULT_MODEL

    try:
        from ..replay.fanout import run_replay
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("kvmill"):
            raise
        raise UserError(f"a night needs {error.name}: pip install 'kvmill[replay]'") from None
    given = {"model": DEFAULT_MODEL, "policies": DEMO_POLICIES, **settings}
    probes = given.pop("probes", "auto")
    timed = [trajectory.id for trajectory in first_of_each(trajectories, 1)]
    return run_replay(
        store=store,
        trajectories=[with_probes(trajectory, probes) for trajectory in trajectories],
        latency_trajectories=timed if given.get("measure") == "both" else None,
        config={"traces": "nightly", "probes": probes},
        progress=progress,
        **given,
    )


def _again(
    store: Store, config: NightConfig, base: Baseline | None, replay: str, chosen: Choice, progress: bool
) -> str | None:
    """The baseline's run, measured now; None where there is neither an accepted night nor other code."""
    tonight = store.info(replay).config
    was = base.replay.config if base else tonight
    settings = {key: was[key] for key in REPLAY if was.get(key) is not None}
    settings |= {key: config.replay[key] for key in EXECUTING if key in config.replay}
    settings |= {key: tonight[key] for key in _TONIGHT} | {"actions": config.replay.get("actions")}
    if config.other_code:
        return measure_elsewhere(store, config, settings, chosen.trajectories)
    return _replay(store, settings, chosen.trajectories, progress) if base else None


def _gated(
    store: Store,
    config: NightConfig,
    base: Baseline | None,
    before: str | None,
    replay: str,
    chosen: Choice,
    machine: str,
    rerun: bool,
) -> tuple[list[Finding], list[Finding], list[str]]:
    """Verdicts on quality and memory, on latency, and what the reader must know beside them."""
    notes: list[str] = []
    tonight = store.info(replay)
    new = side(store, replay, None if rerun else chosen.pinned)
    missing = _missing(tonight.config["policies"], chosen, {(p, t) for (p, _), rows in new.cells.items() for t in rows})
    past = history(store, config.name, machine)
    if before is None:
        why = "no accepted baseline yet: look at this night, then kvmill nightly --accept it"
        nothing = [Finding(*pair, INSUFFICIENT, why, n=len(rows)) for pair, rows in new.cells.items()]
        return [*nothing, *missing], speed_findings(speeds(store, replay), {}, past), notes
    earlier = store.info(before)
    require_alike(earlier, tonight)
    if base and base.machine is None and not rerun:
        notes.append(f"{before} does not say which machine it is from; taken for one like this")
    same_model = earlier.config.get("fingerprint") == tonight.config.get("fingerprint")
    if not same_model:
        notes.append("the model is another than in the baseline: kept tokens are not compared")
    other = moved(store, before, replay) if same_model and tonight.config.get("mode") != "closed" else {}
    old = side(store, before, None if rerun or base is None else base.promised)
    others = set() if rerun else _other_contents(earlier, tonight)
    missing += [*changed(new, others), *doubled(store, before), *doubled(store, replay)]
    if others - new.promised:
        notes.append(f"{len(others - new.promised)} trajectories have changed since the baseline and were not compared")
    old, new = without(old, others), without(new, others)
    unpaired = len({trajectory.id for trajectory in chosen.trajectories} - set(earlier.config["trajectory_ids"]))
    if unpaired:
        notes.append(f"{unpaired} trajectories are not in the baseline and were not compared; --rerun-baseline does")
    latency = speed_findings(speeds(store, replay), speeds(store, before), past)
    return [*gate(old, new, config.rules, other), *missing], latency, notes


def _other_contents(before: RunInfo, now: RunInfo) -> set[str]:
    """Trajectories that are not what they were in the baseline: same id, other messages, labels or probes."""
    from ..replay.asked import CONTENTS

    was, here = (info.config.get(CONTENTS, {}) for info in (before, now))
    return {name for name in was.keys() & here.keys() if was[name] != here[name]}


def _missing(policies: Sequence[str], chosen: Choice, stored: set[tuple[str, str]]) -> list[Finding]:
    """Rows that the night was to make and that are not there."""
    lost: Counter[tuple[str, str]] = Counter(
        (policy, trajectory.family)
        for trajectory in chosen.trajectories
        for policy in policies
        if (policy, trajectory.id) not in stored
    )
    return [Finding(*pair, ROWS_REMOVED, f"{n} rows of this night are missing", True, n=n) for pair, n in lost.items()]
