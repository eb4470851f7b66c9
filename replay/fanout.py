"""A replay run: every cell of trajectories × policies, each trajectory's rows committed together, resumable."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ..console import Progress
from ..errors import UserError
from ..traces.store import Run, Store
from ..traces.tokens import tokenize, tokenize_probe
from ..traces.trajectory import Trajectory
from .engine import replay
from .equal import hold_equal
from .forward import Forward
from .latency import measure_latency
from .lockstep import reason
from .model import LoadedModel, load_model
from .policies.base import Policy
from .policies.registry import parse_policies, parse_policy
from .rows import Identity, Rows, failed_rows, latency_rows, quality_rows
from .segments import sizes_of

MODE = "teacher"
MEASURES = ("quality", "latency", "both")


def run_replay(
    *,
    store: Store,
    trajectories: Sequence[Trajectory],
    model: str,
    policies: Sequence[str],
    measure: str = "quality",
    seed: int = 0,
    dtype: str = "auto",
    device: str = "auto",
    threads: int | None = None,
    resume: str | None = None,
    latency_trajectories: Sequence[str] | None = None,
    latency_repeats: int = 3,
    latency_last_turns: int | None = None,
    equal_size: str | None = None,
    equal_by: str | None = None,
    config: Mapping[str, Any] | None = None,
    progress: bool = True,
) -> str:
    """Replay and store; returns the run's id. Segments that are in already (`resume`) are skipped.

    `latency_trajectories` limits latency cells to those ids (default: all). Ctrl-C leaves the run incomplete
    with everything finished so far; `resume` goes on. `equal_size` is a policy whose rows all others are held to
    (`equal.hold_equal`). UserError if a resumed run had other settings.
    """
    if measure not in MEASURES:
        raise UserError(f"--measure {measure}: one of {', '.join(MEASURES)}")
    if not trajectories:
        raise UserError("no trajectories to replay: check --traces and --limit")
    chosen = parse_policies(list(policies))
    loaded = load_model(model, device=device, dtype=dtype, threads=threads)
    if equal_size is not None:
        sizes = [sizes_of(tokenize(trajectory, loaded.tokenizer)) for trajectory in trajectories]
        chosen = hold_equal(chosen, parse_policy(equal_size), sizes, equal_by or "peak")
    settings = {
        **(config or {}),
        "model": model,
        "policies": [str(policy) for policy in chosen],
        "equal_size": equal_size,
        "equal_by": equal_by,
        "measure": measure,
        "mode": MODE,
        "dtype": loaded.dtype_name,
        "device": str(loaded.device),
        "threads": loaded.threads,
        "layers": loaded.layer_counts(),
        "seed": seed,
        "fingerprint": loaded.fingerprint,
        "trajectory_ids": [trajectory.id for trajectory in trajectories],
        "latency_trajectories": None if latency_trajectories is None else list(latency_trajectories),
        "latency_repeats": latency_repeats,
        "latency_last_turns": latency_last_turns,
    }
    run = _open(store, settings, seed, str(loaded.device), resume)
    timed = latency_trajectories if latency_trajectories is not None else [t.id for t in trajectories]
    cells = Cells(loaded, chosen, seed, latency_repeats, latency_last_turns)
    jobs = list(_jobs(cells, trajectories, measure, set(timed)))
    done = run.keys()
    bar = Progress("replay", len(jobs), "cell groups") if progress else None
    try:
        for key, detail, job in jobs:
            if key not in done:
                run.add(job(), key=key)
            if bar:
                bar.step(detail=detail)
    except BaseException:
        run.finish("incomplete")
        raise
    run.finish()
    return run.id


Job = tuple[str, str, Callable[[], Rows]]


def _jobs(cells: Cells, trajectories: Sequence[Trajectory], measure: str, timed: set[str]) -> Iterator[Job]:
    """(segment key, what to show, work) in a fixed order: quality first, since latency runs alone."""
    if measure != "latency":
        for trajectory in trajectories:
            yield f"{trajectory.id}/quality", f"{trajectory.id} quality", _bind(cells.quality, trajectory)
    if measure != "quality":
        for trajectory in trajectories:
            for policy in cells.policies if trajectory.id in timed else ():
                key = f"{trajectory.id}/latency/{policy}"
                yield key, f"{trajectory.id} latency {policy}", _bind(cells.latency, trajectory, policy)


def _bind(function: Callable[..., Rows], *args: Any) -> Callable[[], Rows]:
    return lambda: function(*args)


class Cells:
    """Computes cells; a failure becomes failed rows, never a lost cell."""

    def __init__(
        self, model: LoadedModel, policies: Sequence[Policy], seed: int, repeats: int, last_turns: int | None
    ) -> None:
        self.model, self.policies, self.seed = model, list(policies), seed
        self.repeats, self.last_turns = repeats, last_turns
        self.forward = Forward(model)

    def quality(self, trajectory: Trajectory) -> Rows:
        """Rows of all policies on one trajectory, in lockstep."""
        identity = Identity.of(trajectory, self.model, self.seed, MODE)
        try:
            tokens = self._tokens(trajectory)
            probes = [tokenize_probe(probe, self.model.tokenizer) for probe in trajectory.probes]
            runs = replay(self.forward, tokens, self.policies, probes, self.seed)
            return quality_rows(identity, trajectory, tokens, runs, self.model)
        except Exception as error:
            return failed_rows(identity, self.policies, "quality", reason(error))

    def latency(self, trajectory: Trajectory, policy: Policy) -> Rows:
        """Rows of one policy on one trajectory, alone."""
        identity = Identity.of(trajectory, self.model, self.seed, MODE)
        start = time.perf_counter()
        try:
            calls = measure_latency(
                self.forward,
                self._tokens(trajectory),
                policy,
                seed=self.seed,
                repeats=self.repeats,
                last_turns=self.last_turns,
            )
            return latency_rows(identity, policy, calls, self.repeats, time.perf_counter() - start)
        except Exception as error:
            return failed_rows(identity, [policy], "latency", reason(error))

    def _tokens(self, trajectory: Trajectory) -> Any:
        tokens = tokenize(trajectory, self.model.tokenizer)
        count = sum(len(segment.ids) for segment in tokens.segments)
        if count > self.model.max_positions:
            raise UserError(
                f"trajectory {trajectory.id} has {count} tokens, model {self.model.name} takes "
                f"{self.model.max_positions}: use a model with a longer window"
            )
        return tokens


def _open(store: Store, settings: Mapping[str, Any], seed: int, device: str, resume: str | None) -> Run:
    if resume is None:
        return store.begin("replay", settings, seed=seed, device=device)
    before = store.info(resume).config
    changed = sorted(key for key, value in settings.items() if key in before and before[key] != value)
    if changed:
        said = "; ".join(f"{key} was {before[key]!r}, now {settings[key]!r}" for key in changed)
        raise UserError(f"run {resume} cannot be resumed with other settings: {said[:600]}")
    return store.resume(resume)
