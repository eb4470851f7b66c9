"""What a night is held against: the newest accepted night of its name, or a run named by hand.

A green night is accepted as it ends; any other, and a replay run, by `--accept`, which is a run of kind `acceptance`
in the store: who accepted what is never overwritten.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import UserError
from ..replay.gate_nouns import DRIFT, REGRESSION
from ..replay.gate_speed import FIGURES, Past
from ..traces.manifest import RunInfo
from ..traces.retention import ACCEPTANCE, GREEN, NIGHT
from ..traces.store import Store

PREVIOUS = "previous"
_HISTORY_NIGHTS = 60
_SPEEDS = (
    "SELECT run_id, policy, family, avg(ttft_s) AS ttft_s, avg(tpot_s) AS tpot_s FROM cells "
    "WHERE list_contains($1, run_id) AND measure = 'latency' AND status = 'ok' GROUP BY ALL"
)
_SLOW = (
    "SELECT run_id, policy, family, metric FROM gates WHERE list_contains($1, run_id) AND list_contains($2, metric) "
    "AND list_contains($3, category)"
)


@dataclass(frozen=True, slots=True)
class Baseline:
    """`replay` holds the rows; `night` is its night, whose `promised` trajectories must be there again; None of both
    for a replay run named by hand, of which every trajectory counts.
    """

    replay: RunInfo
    night: str | None = None
    promised: frozenset[str] | None = None
    machine: str | None = None
    plan: Mapping[str, int | None] | None = None

    @property
    def name(self) -> str:
        """The run as the user knows it."""
        return self.night or self.replay.run_id


def find(store: Store, name: str, asked: str | None) -> Baseline | None:
    """The baseline asked for, else the previous accepted one; None where no night was accepted. UserError for a run
    that is none.
    """
    if asked not in (None, PREVIOUS):
        return _of(store, asked)
    found = [(night.created_at, night.run_id) for night in nights(store, name) if night.config.get("verdict") == GREEN]
    found += [(info.created_at, info.config["accepted"]) for info in _acceptances(store, name)]
    if not found:
        return None
    newest = max(found)[1]
    if newest not in {run.run_id for run in store.runs()}:
        raise UserError(f"the accepted baseline {newest} of {name!r} was removed from {store}: --accept another run")
    return _of(store, newest)


def accept(store: Store, name: str, run_id: str, machine: str) -> dict[str, Any]:
    """Make a night or a replay run the baseline of the nights to come. UserError for a run that cannot be one."""
    found = _of(store, run_id)
    measured = found.machine or machine
    run = store.begin(ACCEPTANCE, {"name": name, "accepted": found.name, "machine": measured})
    run.finish()
    return {"accepted": found.name, "replay": found.replay.run_id, "name": name, "run": run.id}


def require_comparable(found: Baseline, machine: str, dtype: str | None) -> None:
    """UserError where the baseline was measured on another type of machine, or in another `dtype` than is asked for."""
    advice = "measure both in the same hour with --rerun-baseline, or accept a night of this machine"
    if found.machine is not None and found.machine != machine:
        raise UserError(f"baseline {found.name} is from another machine ({found.machine}; this is {machine}): {advice}")
    was = found.replay.config.get("dtype")
    if dtype not in (None, "auto", was):
        raise UserError(f"baseline {found.name} is in {was}, tonight in {dtype}: {advice}")


def require_alike(before: RunInfo, now: RunInfo) -> None:
    """UserError where two replays differ in dtype, device, mode or type of Ray workers: such rows are not compared."""
    pairs = {what: (before.config.get(what), now.config.get(what)) for what in ("dtype", "device", "mode")}
    workers = [info.config.get("worker", {}).get("processor") for info in (before, now)]
    if None not in workers:
        pairs["workers on"] = (workers[0], workers[1])
    for what, (was, here) in pairs.items():
        if was != here:
            advice = "use --rerun-baseline, or accept a night that is like tonight's"
            raise UserError(f"baseline {before.run_id} has {what} {was}, tonight {here}: {advice}")


def nights(store: Store, name: str) -> list[RunInfo]:
    """The nights of a name that ended, newest first."""
    return [night for night in store.runs(NIGHT, "complete") if night.config.get("name") == name]


def last_success(store: Store, name: str) -> str | None:
    """When the newest green night ended (ISO 8601, UTC); None where none did."""
    return next((night.finished_at for night in nights(store, name) if night.config.get("verdict") == GREEN), None)


def history(store: Store, name: str, machine: str) -> dict[tuple[str, str, str], list[Past]]:
    """Latency of earlier nights on this machine by policy, family and figure, newest first.

    It begins with the newest night that was accepted by hand: its speed is what the user calls good.
    """
    ended = [night for night in nights(store, name) if night.config.get("machine") == machine][:_HISTORY_NIGHTS]
    taken = next(iter(_acceptances(store, name)), None)
    begin = taken.config["accepted"] if taken else None
    stop = next((i for i, night in enumerate(ended) if night.run_id == begin), len(ended) - 1)
    ended = ended[: stop + 1]
    replays = [night.config["replay"] for night in ended]
    speeds = {(r["run_id"], r["policy"], r["family"]): r for r in store.query(_SPEEDS, [replays]).to_pylist()}
    names = [[night.run_id for night in ended], list(FIGURES), [DRIFT, REGRESSION]]
    slow = {tuple(row.values()) for row in store.query(_SLOW, names).to_pylist()} if ended else set()
    out: dict[tuple[str, str, str], list[Past]] = {}
    for night in ended:
        for (replay, policy, family), row in speeds.items():
            for figure in FIGURES if replay == night.config["replay"] else ():
                if row[figure] is not None:
                    was_slow = night.run_id != begin and (night.run_id, policy, family, figure) in slow
                    out.setdefault((policy, family, figure), []).append(Past(row[figure], was_slow))
    return out


def _acceptances(store: Store, name: str) -> list[RunInfo]:
    return [info for info in store.runs(ACCEPTANCE, "complete") if info.config.get("name") == name]


def _of(store: Store, run_id: str) -> Baseline:
    info = store.info(run_id)
    replay = info.config.get("replay") if info.kind == NIGHT else None
    if replay and replay not in {run.run_id for run in store.runs("replay")}:
        raise UserError(f"baseline {run_id}: its replay run {replay} was removed from {store}; accept another night")
    if info.kind == "replay":
        found = Baseline(info, machine=_accepted_machine(store, run_id))
    elif replay:
        promised = frozenset(info.config.get("pinned", ()))
        found = Baseline(store.info(replay), run_id, promised, info.config.get("machine"), info.config.get("plan"))
    else:
        raise UserError(f"run {run_id} is of kind {info.kind} ({info.state}); a baseline is a night or a replay run")
    if found.replay.state != "complete":
        raise UserError(f"run {found.replay.run_id} is {found.replay.state}: a partial run is no baseline")
    return found


def _accepted_machine(store: Store, run_id: str) -> str | None:
    taken = [info for info in store.runs(ACCEPTANCE, "complete") if info.config.get("accepted") == run_id]
    return taken[0].config.get("machine") if taken else None
