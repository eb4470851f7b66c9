"""Which runs may go: those that are old enough, and that nothing which stays was made from."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from ..errors import UserError, unknown
from .manifest import KINDS, RunInfo
from .store import Store

NIGHT, ACCEPTANCE, GREEN = "nightly", "acceptance", "green"  # kinds of runs, and the verdict that makes a baseline
KILLED = "its process was killed: resume it, or `kvmill store remove` it"
_AGE = re.compile(r"(\d+(?:\.\d+)?)([hdw])")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNITS = {"h": timedelta(hours=1), "d": timedelta(days=1), "w": timedelta(weeks=1)}


@dataclass(frozen=True, slots=True)
class Pruning:
    """What may go, oldest first, and why each run that is as old stays."""

    going: tuple[RunInfo, ...]
    staying: dict[str, str]


def age(text: str) -> timedelta:
    """`90d`, `12h` or `4w` as a time. UserError for anything else."""
    found = _AGE.fullmatch(text)
    if found is None:
        raise UserError(f"age {text!r}: give hours, days or weeks, as in 12h, 90d, 4w")
    try:
        return float(found[1]) * _UNITS[found[2]]
    except OverflowError:
        raise UserError(f"age {text!r} is longer than time is counted") from None


def prunable(
    store: Store, older_than: timedelta, *, kind: str | None = None, keep_last: int = 0, now: datetime | None = None
) -> Pruning:
    """The runs that ended more than `older_than` ago, but for those that are running, the newest `keep_last` of each
    kind, accepted baselines, and whatever a run that stays was made from. `kind`: runs of no other kind go.

    UserError for a kind that there is not.
    """
    if kind not in (None, *KINDS):
        raise unknown("kind", str(kind), KINDS, "--kind")
    runs = store.runs()
    now = now or datetime.now(UTC)
    before = now - min(older_than, now - _EPOCH)
    old = {run.run_id: run for run in runs if kind in (None, run.kind) and _ended(run) < before}
    running = [run.run_id for run in old.values() if run.state == "running"]
    staying = {run: "it is running" if store.busy(run) else KILLED for run in running}
    staying |= {run.run_id: f"one of the newest {keep_last}" for run in _newest(runs, keep_last) if run.run_id in old}
    staying |= {run: why for run, why in _accepted(runs).items() if run in old}
    known = {run.run_id: run for run in runs}
    fresh = [run for run in runs if run.run_id not in old or run.run_id in staying]
    while fresh:  # what stays keeps what it was made from, and so on
        sources = {source: f"{run.run_id} was made from it" for run in fresh for source in _names(_made_of(run), known)}
        sources |= dict.fromkeys(_ingests_of(store, fresh), "a run that stays replayed its trajectories")
        new = {run: why for run, why in sources.items() if run in old and run not in staying}
        staying |= new
        fresh = [known[run] for run in new]
    going = sorted((run for id, run in old.items() if id not in staying), key=lambda run: (run.created_at, run.run_id))
    return Pruning(tuple(going), dict(sorted(staying.items())))


def _ended(run: RunInfo) -> datetime:
    return datetime.fromisoformat(run.finished_at or run.created_at)


def _newest(runs: Sequence[RunInfo], count: int) -> Iterator[RunInfo]:
    for kind in {run.kind for run in runs}:
        yield from [run for run in runs if run.kind == kind][:count]


def _accepted(runs: Sequence[RunInfo]) -> dict[str, str]:
    """Who accepted what is never forgotten; of each name's nights the accepted one stays."""
    found: dict[str, str] = {}
    last: dict[str, tuple[str, str]] = {}
    for run in runs:
        name, baseline = run.config.get("name"), None
        if run.kind == ACCEPTANCE:
            found[run.run_id] = "it says who accepted what"
            baseline = run.config.get("accepted")
        elif run.kind == NIGHT and run.state == "complete" and run.config.get("verdict") == GREEN:
            baseline = run.run_id
        if name is not None and baseline is not None:
            last[name] = max(last.get(name, ("", "")), (run.created_at, baseline))
    return found | {run: f"the accepted baseline of {name}" for name, (_, run) in last.items()}


def _made_of(run: RunInfo) -> dict[str, Any]:
    """The configuration but for what a night was held against: each names the one before, and all would stay."""
    return {key: value for key, value in run.config.items() if run.kind != NIGHT or not key.startswith("baseline")}


def _names(config: Any, known: dict[str, RunInfo]) -> Iterator[str]:
    """Runs whose ids are anywhere in a configuration."""
    if isinstance(config, str) and config in known:
        yield config
    elif isinstance(config, dict):
        for value in config.values():
            yield from _names(value, known)
    elif isinstance(config, list):
        for value in config:
            yield from _names(value, known)


def _ingests_of(store: Store, runs: Sequence[RunInfo]) -> list[str]:
    ids = sorted({id for run in runs for id in run.config.get("trajectory_ids") or ()})
    if not ids:
        return []
    question = "SELECT DISTINCT run_id FROM trajectories WHERE trajectory_id IN (SELECT unnest($1))"
    return store.query(question, [ids])["run_id"].to_pylist()
