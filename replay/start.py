"""From names and flags to a replay run: what the command line and the Python function share. No torch until it runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..console import note
from ..errors import UserError
from ..traces.places import shown
from ..traces.recall import with_probes
from ..traces.store import Store
from ..traces.trajectory import Trajectory
from .executors.choice import Executing
from .looks import KEY
from .policies.registry import DEMO_POLICIES, QUICK_POLICIES
from .sweep import parse_sweep, with_sweeps
from .until_decided import Until
from .wanted import Wanted

_PASSED_ON = (  # settings that the engine's call takes as they are
    "model", "measure", "seed", "dtype", "device", "threads", "resume", "equal_size", "equal_by", "mode",
    "max_action_tokens", "actions", "long", "include_compacted", "explain", "seed_turns", "max_turns", "executor",
    "workers", "gpus_per_worker", "ray_address",
)  # fmt: skip


def replay_named(store: Store, *, progress: bool = True, **given: Any) -> str:
    """Replay what is named by the settings of `Wanted` and return the run's id. What is not given is the resumed run's,
    else the default.

    UserError on names nobody knows, on nothing to replay, and where the model stack is not installed.
    """
    wanted = Wanted(**given)
    before: dict[str, Any] = dict(store.info(wanted.resume).config) if wanted.resume else {}
    now = wanted.filled(before)
    Executing(str(now.executor), now.workers, now.gpus_per_worker, now.ray_address)  # refuses before anything is read
    until = _until(wanted, now, before)
    wanted.require_together(now)
    sweeps = [parse_sweep(spec) for spec in now.sweep or ()]
    # Sweeps without other policies run alone, beside full. In a closed loop every reply is generated: few by default.
    usual = QUICK_POLICIES if now.mode == "closed" else DEMO_POLICIES
    chosen = with_sweeps(now.policies or before.get("policies") or ([] if sweeps else usual), sweeps)
    trajectories, counted = _trajectories(store, wanted, now, before, until)
    run_replay = _engine()
    try:
        return run_replay(
            store=store,
            trajectories=trajectories,
            policies=chosen,
            **{name: getattr(now, name) for name in _PASSED_ON},
            latency_trajectories=before.get("latency_trajectories")
            if now.resume
            else _timed(trajectories, now.measure),
            latency_repeats=before.get("latency_repeats", 3),
            latency_last_turns=before.get("latency_last_turns"),
            temperature=now.temperature or 0.0,
            until=until,
            config={
                **({KEY: until.config(trajectories, counted)} if until else {}),
                **({"actions_given": now.actions} if now.actions else {}),
                **({"sweeps": [swept.spec for swept in sweeps]} if sweeps else {}),
                "traces": shown(str(now.traces)),
                "limit": now.limit,
                "asked": before.get("asked", chosen),
                "probes": now.probes,
            },
            progress=progress,
        )
    except KeyboardInterrupt:
        if begun := store.runs("replay", "incomplete"):
            note(f"go on with: kvmill replay --resume {begun[0].run_id}")
        raise


def _until(wanted: Wanted, now: Wanted, before: Mapping[str, Any]) -> Until | None:
    """When to stop, None for an ordinary run. UserError for a run that cannot be decided by looks."""
    limits = {"max_loss": wanted.max_loss, "confidence": wanted.confidence, "batch": wanted.batch}
    until = Until.of(wanted.until_decided, before.get(KEY), wanted.max_trajectories, **limits)
    if until and now.resume and KEY not in before:
        raise UserError(f"--until-decided: run {now.resume} was not begun with it; start a new run")
    if until and (now.mode == "closed" or now.measure != "quality"):
        raise UserError("--until-decided is about the quality of recorded turns: no --mode closed, no --measure")
    return until


def _trajectories(
    store: Store, wanted: Wanted, now: Wanted, before: Mapping[str, Any], until: Until | None
) -> tuple[list[Trajectory], dict[str, int]]:
    """What is replayed, with its probes, in order; and of a run until decided, how many there are in all."""
    same = now.resume and wanted.traces is None and wanted.limit is None
    counted = {name: before[KEY][name] for name in ("families", "available") if name in before.get(KEY, {})}
    seed = now.seed or 0
    if until and not same and wanted.limit is None:
        found, counted = until.drawn_first(store, str(now.traces), seed)
    else:
        found = _same_again(store, before) if same else _select(store, str(now.traces), wanted.limit)
    found = [with_probes(trajectory, str(now.probes)) for trajectory in found]
    return until.drawn(found, seed) if until else found, counted


def _engine() -> Callable[..., str]:
    """`run_replay`, imported here because it brings torch. UserError where the model stack is not installed."""
    try:
        from .fanout import run_replay
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("kvmill"):
            raise
        raise UserError(f"replay needs {error.name}: pip install 'kvmill[replay]'") from None
    return run_replay


def _select(store: Store, spec: str, limit: int | None) -> list[Trajectory]:
    from ..traces.select import select

    return select(store, spec, limit)


def _same_again(store: Store, before: Mapping[str, Any]) -> list[Trajectory]:
    """The trajectories of the run that is resumed, in its order, whatever `last` means by now."""
    from .recorded import by_id

    ids = before.get("trajectory_ids", [])
    found = by_id(store, ids)
    if gone := [name for name in ids if name not in found]:
        raise UserError(f"cannot resume: trajectories {', '.join(gone[:5])} are no longer in {store}")
    return [found[name] for name in ids]


def _timed(trajectories: Sequence[Trajectory], measure: str | None) -> list[str] | None:
    """Which trajectories get latency cells: with `both` the first of each family, else all."""
    if measure != "both":
        return None
    first: dict[str, str] = {}
    for trajectory in trajectories:
        first.setdefault(trajectory.family, trajectory.id)
    return list(first.values())
