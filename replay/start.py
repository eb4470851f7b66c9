"""From names and flags to a replay run: what the command line and the Python function share. No torch until it runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..console import note
from ..errors import UserError, unknown
from ..traces.places import shown
from ..traces.recall import with_probes
from ..traces.store import Store
from ..traces.trajectory import Trajectory
from .executors.choice import Executing
from .looks import KEY
from .policies.registry import DEMO_POLICIES, QUICK_POLICIES, parse_policy
from .sweep import parse_sweep, with_sweeps
from .until_decided import Until
from .weights import DEFAULT_MODEL

MODES = ("teacher", "stepwise", "closed")
MEASURES = ("quality", "latency", "both")
_GENERATING, _ACTING = ("temperature", "max_action_tokens", "actions"), ("seed_turns", "max_turns")  # flags of a mode


def replay_named(
    store: Store,
    *,
    traces: str | None = None,
    model: str | None = None,
    policies: Sequence[str] | None = None,
    mode: str | None = None,
    measure: str | None = None,
    limit: int | None = None,
    seed: int | None = None,
    dtype: str | None = None,
    device: str | None = None,
    threads: int | None = None,
    resume: str | None = None,
    equal_size: str | None = None,
    equal_by: str | None = None,
    probes: str | None = None,
    temperature: float | None = None,
    max_action_tokens: int | None = None,
    actions: str | None = None,
    long: str | None = None,
    include_compacted: bool | None = None,
    sweep: Sequence[str] | None = None,
    explain: bool | None = None,
    seed_turns: int | None = None,
    max_turns: int | None = None,
    executor: str | None = None,
    workers: int | None = None,
    gpus_per_worker: int | None = None,
    ray_address: str | None = None,
    until_decided: bool | None = None,
    max_loss: float | None = None,
    confidence: float | None = None,
    batch: int | None = None,
    max_trajectories: int | None = None,
    progress: bool = True,
) -> str:
    """Replay what is named and return the run's id. What is not given is the resumed run's, else the default.

    UserError on names nobody knows, on nothing to replay, and where the model stack is not installed.
    """
    if mode not in (None, *MODES):
        raise unknown("mode", str(mode), MODES, "--mode")
    if measure not in (None, *MEASURES):
        raise unknown("measure", str(measure), MEASURES, "--measure")
    if equal_by is not None and equal_size is None:
        raise UserError("--equal-by says how --equal-size compares: give both")
    before: dict[str, Any] = dict(store.info(resume).config) if resume else {}

    def setting(name: str, given: Any, default: Any) -> Any:
        return given if given is not None else before.get(name, default)

    running = setting("executor", executor, "local")
    Executing(running, workers, gpus_per_worker, ray_address)  # refuses before trajectories are read
    going, wanted = setting("mode", mode, "teacher"), setting("measure", measure, "quality")
    by = {"max_loss": max_loss, "confidence": confidence, "batch": batch}
    until = Until.of(until_decided, before.get(KEY), max_trajectories, **by)
    if until and resume and KEY not in before:
        raise UserError(f"--until-decided: run {resume} was not begun with it; start a new run")
    if until and (going == "closed" or wanted != "quality"):
        raise UserError("--until-decided is about the quality of recorded turns: no --mode closed, no --measure")
    chosen_for = {"temperature": temperature, "max_action_tokens": max_action_tokens, "actions": actions}
    require_of_mode(going, wanted, {**chosen_for, "seed_turns": seed_turns, "max_turns": max_turns, "long": long})
    grammar = setting("actions_given", actions, None)
    reference = setting("equal_size", equal_size and str(parse_policy(equal_size)), None)
    sweeps = [parse_sweep(spec) for spec in setting("sweeps", sweep, [])]
    if sweeps and reference:
        raise UserError("--equal-size solves the keep ratios anew: the settings of a --sweep would not be those named")
    # Sweeps without other policies run alone, beside full. In a closed loop every reply is generated: few by default.
    usual = QUICK_POLICIES if going == "closed" else DEMO_POLICIES
    chosen = with_sweeps(policies or before.get("policies") or ([] if sweeps else usual), sweeps)
    spec = setting("traces", traces, "last")
    same = resume and traces is None and limit is None
    counted = {name: before[KEY][name] for name in ("families", "available") if name in before.get(KEY, {})}
    if until and not same and limit is None:
        trajectories, counted = until.drawn_first(store, spec, setting("seed", seed, 0))
    else:
        trajectories = _same_again(store, before) if same else _select(store, spec, limit)
    asked = setting("probes", probes, "recorded" if resume else "auto")
    trajectories = [with_probes(trajectory, asked) for trajectory in trajectories]
    if until:
        trajectories = until.drawn(trajectories, setting("seed", seed, 0))
    if explain and wanted == "latency":
        raise UserError("--explain is about the tokens of quality cells: use --measure quality or both")
    if explain and going == "closed":
        raise UserError("--explain is about recorded tokens: use --mode teacher or stepwise")
    if going == "closed" and reference:
        raise UserError("--equal-size solves keep ratios on recorded tokens; closed-loop runs go other ways")
    run_replay = _engine()
    try:
        return run_replay(
            store=store,
            trajectories=trajectories,
            model=setting("model", model, DEFAULT_MODEL),
            policies=chosen,
            measure=wanted,
            seed=setting("seed", seed, 0),
            dtype=setting("dtype", dtype, "auto"),
            device=setting("device", device, "auto"),
            threads=setting("threads", threads, None),
            resume=resume,
            latency_trajectories=before.get("latency_trajectories") if resume else _timed(trajectories, wanted),
            latency_repeats=before.get("latency_repeats", 3),
            latency_last_turns=before.get("latency_last_turns"),
            # A resumed run's policies are solved already; solving them again gives the same ones.
            equal_size=reference,
            equal_by=setting("equal_by", equal_by, "peak" if reference else None),
            mode=going,
            temperature=setting("temperature", temperature, None) or 0.0,
            max_action_tokens=setting("max_action_tokens", max_action_tokens, None),
            actions=grammar,
            long=setting("long", long, "skip"),
            include_compacted=setting("include_compacted", include_compacted, False),
            explain=setting("explain", explain, False),
            seed_turns=setting("seed_turns", seed_turns, None),
            max_turns=setting("max_turns", max_turns, None),
            executor=running,
            workers=workers,
            gpus_per_worker=gpus_per_worker,
            ray_address=ray_address,
            until=until,
            config={
                **({KEY: until.config(trajectories, counted)} if until else {}),
                **({"actions_given": grammar} if grammar else {}),
                **({"sweeps": [swept.spec for swept in sweeps]} if sweeps else {}),
                "traces": shown(spec),
                "limit": setting("limit", limit, None),
                "asked": before.get("asked", chosen),
                "probes": asked,
            },
            progress=progress,
        )
    except KeyboardInterrupt:
        if begun := store.runs("replay", "incomplete"):
            note(f"go on with: kvmill replay --resume {begun[0].run_id}")
        raise


def require_of_mode(mode: str, measure: str, given: Mapping[str, Any]) -> None:
    """UserError on what is given (not None) for another mode, and on a mode that does not measure this."""
    flags = {name: f"--{name.replace('_', '-')}" for name, value in given.items() if value is not None}
    if mode == "teacher" and (extra := [flag for name, flag in flags.items() if name in _GENERATING]):
        raise UserError(f"{', '.join(extra)}: only for --mode stepwise or closed, where actions are generated")
    if mode != "closed" and (extra := [flag for name, flag in flags.items() if name in _ACTING]):
        raise UserError(f"{', '.join(extra)}: only for --mode closed, where the model acts by itself")
    if mode == "closed" and "long" in flags:
        raise UserError("--long is about recorded turns: a closed-loop run ends where the model's window does")
    if mode == "closed" and measure != "quality":
        raise UserError("--mode closed measures what the model does: latency comes from --mode teacher")


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


def _same_again(store: Store, before: dict[str, Any]) -> list[Trajectory]:
    """The trajectories of the run that is resumed, in its order, whatever `last` means by now."""
    from .recorded import by_id

    ids = before.get("trajectory_ids", [])
    found = by_id(store, ids)
    if gone := [name for name in ids if name not in found]:
        raise UserError(f"cannot resume: trajectories {', '.join(gone[:5])} are no longer in {store}")
    return [found[name] for name in ids]


def _timed(trajectories: Sequence[Trajectory], measure: str) -> list[str] | None:
    """Which trajectories get latency cells: with `both` the first of each family, else all."""
    if measure != "both":
        return None
    first: dict[str, str] = {}
    for trajectory in trajectories:
        first.setdefault(trajectory.family, trajectory.id)
    return list(first.values())
