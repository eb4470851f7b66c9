"""A replay run: every cell of trajectories × policies, each trajectory's rows committed together, resumable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ..console import Progress, begun
from ..errors import UserError
from ..traces.store import Run, Store
from ..traces.trajectory import Trajectory
from .asked import CONTENTS, Asked
from .cells import Cells, jobs_of
from .executors.choice import Executing
from .executors.local import Executor, Local

if TYPE_CHECKING:
    from .until_decided import Until

__all__ = ["Cells", "run_replay"]


def run_replay(
    *,
    store: Store,
    trajectories: Sequence[Trajectory],
    model: str,
    policies: Sequence[str],
    resume: str | None = None,
    config: Mapping[str, Any] | None = None,
    progress: bool = True,
    executor: str = "local",
    workers: int | None = None,
    gpus_per_worker: int | None = None,
    ray_address: str | None = None,
    until: Until | None = None,
    **more: Any,
) -> str:
    """Replay and store; returns the run's id. Segments that are in already (`resume`) are skipped.

    `more` are the other fields of `asked.Asked`, which decide the rows. `latency_trajectories` limits latency cells to
    those ids (default: all). Ctrl-C leaves the run incomplete with everything finished so far; `resume` goes on.
    `equal_size` is a policy whose rows all others are held to (`equal.hold_equal`). In mode `stepwise` actions are
    generated and read by the grammar `actions` (default: chosen per source). `long` is the rule for what exceeds the
    model's window. `explain` also stores how much attention each token receives in the reference run; no other figure
    changes. In mode `closed` the model acts by itself after `seed_turns` recorded turns (default 2), for at most
    `max_turns` in all (`closed/`). `executor` ray spreads the cells over the `workers` of a cluster
    (`executors.choice`); the rows are the same. `until` ends the run when its recommendation is decided: trajectories
    are given in the order in which they are drawn. UserError if a resumed run had other settings.
    """
    where = Executing(executor, workers, gpus_per_worker, ray_address)
    asked = Asked(trajectories=trajectories, model=model, policies=policies, **more)
    where.on_gpus(asked.device)  # refuses before a cluster is started
    if progress:
        begun(f"replay of {len(trajectories)} trajectories with {model}: loading the model")
    with where.session():
        team = _team(asked, where, store)
        try:
            run = _open(store, {**(config or {}), **team.settled.settings}, team.described, asked.seed, resume)
            _compute(run, team, asked, progress, until)
        finally:
            team.close()
    return run.id


def _team(asked: Asked, where: Executing, store: Store) -> Executor:
    if where.executor == "local":
        return Local(asked)
    from .executors.remote import Remote

    return Remote(asked, where, store)


def _compute(run: Run, team: Executor, asked: Asked, progress: bool, until: Until | None) -> None:
    """All jobs that are not in the run yet; it ends complete, or incomplete if anything is raised."""
    jobs, done = jobs_of(asked, team.settled.policies), run.keys()
    waiting = [job for job in jobs if job.key not in done]
    batches = until.batches(run, jobs) if until else [waiting]
    unit = "trajectories" if asked.measure == "quality" else "measurements"
    bar = Progress("replay", 0 if until else len(jobs), unit) if progress else None
    if bar and len(waiting) < len(jobs):
        bar.step(len(jobs) - len(waiting))
    try:
        for batch in batches:
            for job in team.work(run, batch, partial(bar.step, 0) if bar else lambda _: None):
                if bar:
                    bar.step(detail=job.detail)
    except BaseException:
        team.close()
        run.finish("incomplete")
        raise
    team.close()
    run.finish()


def _open(
    store: Store, settings: Mapping[str, Any], described: Mapping[str, Any], seed: int, resume: str | None
) -> Run:
    if resume is None:
        return store.begin("replay", {**settings, **described}, seed=seed, device=settings["device"])
    before = store.info(resume).config
    changed = sorted(key for key, value in settings.items() if before.get(key, value) != value and key != CONTENTS)
    if changed:
        said = "; ".join(f"{key} was {before[key]!r}, now {settings[key]!r}" for key in changed)
        raise UserError(f"run {resume} cannot be resumed with other settings: {said[:600]}")
    was, now = before.get(CONTENTS, {}), settings[CONTENTS]
    if other := [name for name in now if was.get(name, now[name]) != now[name]]:
        few = ", ".join(other[:5]) + (f" and {len(other) - 5} more" if len(other) > 5 else "")
        raise UserError(
            f"run {resume} cannot be resumed: {few} changed since it began (other messages, labels or probes under the "
            "same id); start a new run"
        )
    had, have = (one.get("worker", {}).get("processor") for one in (before, described))
    if None not in (had, have) and had != have:
        raise UserError(
            f"run {resume} was begun on {had}, and would go on on {have}: the cells of one run come from one type of "
            "machine; resume it on such a machine, or start a new run"
        )
    run = store.resume(resume)
    if any(before.get(key) != value for key, value in described.items()):
        run.annotate(**described)
    return run
