"""A replay run: every cell of trajectories × policies, each trajectory's rows committed together, resumable."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..console import Progress
from ..errors import UserError, unknown
from ..traces.store import Run, Store
from ..traces.tokens import tokenize, tokenize_probe
from ..traces.trajectory import Trajectory
from .actions.choose import grammar_for, require_known
from .behaviour import action_columns
from .closed.agent import Speech
from .closed.run import Closed, Loop, longest_reply
from .engine import replay
from .equal import hold_equal
from .fitting import LONG, Fitted, Window
from .forward import Forward
from .last_answer import answer_columns
from .latency import measure_latency
from .lockstep import reason
from .memory import give_back
from .model import LoadedModel, load_model
from .policies.base import Policy
from .policies.registry import parse_policies, parse_policy
from .rows import Identity, Rows, failed_rows, latency_rows, quality_rows, skipped_rows
from .segments import sizes_of
from .stepwise import MAX_ACTION_TOKENS, Asking

MEASURES = ("quality", "latency", "both")
COMPACTED = "already compacted when it was recorded; --include-compacted replays it"


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
    mode: str = "teacher",
    temperature: float = 0.0,
    max_action_tokens: int | None = None,
    actions: str | None = None,
    long: str = "skip",
    include_compacted: bool = False,
    explain: bool = False,
    seed_turns: int | None = None,
    max_turns: int | None = None,
    config: Mapping[str, Any] | None = None,
    progress: bool = True,
) -> str:
    """Replay and store; returns the run's id. Segments that are in already (`resume`) are skipped.

    `latency_trajectories` limits latency cells to those ids (default: all). Ctrl-C leaves the run incomplete
    with everything finished so far; `resume` goes on. `equal_size` is a policy whose rows all others are held to
    (`equal.hold_equal`). In mode `stepwise` actions are generated and read by the grammar `actions` (default: chosen
    per source). `long` is the rule for what exceeds the model's window. `explain` also stores how much attention each
    token receives in the reference run; no other figure changes. In mode `closed` the model acts by itself after
    `seed_turns` recorded turns (default 2), for at most `max_turns` in all (`closed/`). UserError if a resumed run had
    other settings.
    """
    if measure not in MEASURES:
        raise UserError(f"--measure {measure}: one of {', '.join(MEASURES)}")
    if long not in LONG:
        raise unknown("rule", long, LONG, "--long")
    if not trajectories:
        raise UserError("no trajectories to replay: check --traces and --limit")
    chosen = parse_policies(list(policies))
    grammar = require_known(actions) if actions else None
    loaded = load_model(model, device=device, dtype=dtype, threads=threads)
    stepwise, closed = mode == "stepwise", Closed.of(seed_turns, max_turns) if mode == "closed" else None
    acting = stepwise or closed is not None
    most = MAX_ACTION_TOKENS if max_action_tokens is None else max_action_tokens
    if closed is not None and max_action_tokens is None:
        most = longest_reply(trajectories, loaded.tokenizer)
    asking = Asking.of(loaded, most, temperature) if acting else None
    sources = sorted({trajectory.source for trajectory in trajectories}) if acting else []
    calling = {t.source for t in trajectories if any(turn.assistant.tool_calls for turn in t.turns)}
    grammars = {
        source: grammar or grammar_for(source, loaded.tokenizer, model, calls=source in calling) for source in sources
    }
    if equal_size is not None:
        counted = [t for t in trajectories if include_compacted or not t.already_compacted] or trajectories
        whole = [tokenize(trajectory, loaded.tokenizer) for trajectory in counted]
        fitting = [tokens for tokens in whole if tokens.tokens <= loaded.max_positions] or whole
        sizes = [sizes_of(tokens) for tokens in fitting]
        chosen = hold_equal(chosen, parse_policy(equal_size), sizes, equal_by or "peak")
    settings = {
        **(config or {}),
        "model": model,
        "policies": [str(policy) for policy in chosen],
        "equal_size": equal_size,
        "equal_by": equal_by,
        "measure": measure,
        "mode": mode,
        "actions": grammars or None,
        "temperature": temperature if acting else None,
        "max_action_tokens": most if acting else None,
        "seed_turns": closed.seeds if closed else None,
        "max_turns": closed.max_turns if closed else None,
        "long": long,
        "include_compacted": include_compacted,
        "explain": explain,
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
    cells = Cells(
        loaded,
        chosen,
        seed,
        latency_repeats,
        latency_last_turns,
        mode,
        asking,
        grammars,
        long,
        include_compacted,
        explain,
    )
    if closed is not None:
        cells.loop = Loop(cells.forward, trajectories, grammars, closed, Speech(most, temperature, seed))
    jobs = list(_jobs(cells, trajectories, measure, set(timed)))
    done = run.keys()
    bar = Progress("replay", len(jobs), "cell groups") if progress else None
    if bar and cells.loop:
        cells.loop.tell = partial(bar.step, 0)
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
Compute = Callable[[Identity, Fitted, Sequence[Policy]], Rows]


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


@dataclass
class Cells:
    """Computes cells; a failure becomes failed rows, what does not fit becomes skipped rows: never a lost cell."""

    model: LoadedModel
    policies: Sequence[Policy]
    seed: int
    repeats: int
    last_turns: int | None
    mode: str
    asking: Asking | None
    grammars: Mapping[str, str]
    long: str
    include_compacted: bool
    explain: bool
    loop: Loop | None = None

    def __post_init__(self) -> None:
        self.forward = Forward(self.model)
        spoken = self.asking.most if self.asking else 0
        self.window = Window(self.model.name, self.model.max_positions, self.long, spoken)

    def quality(self, trajectory: Trajectory) -> Rows:
        """Rows of all policies on one trajectory, in lockstep; closed-loop runs go their own ways."""
        if self.loop is not None:
            return self._acted(trajectory, self.loop)
        return self._rows(trajectory, self.policies, "quality", self._quality)

    def latency(self, trajectory: Trajectory, policy: Policy) -> Rows:
        """Rows of one policy on one trajectory, alone."""
        return self._rows(trajectory, [policy], "latency", self._latency)

    def _rows(self, trajectory: Trajectory, policies: Sequence[Policy], measure: str, compute: Compute) -> Rows:
        identity = Identity.of(trajectory, self.model, self.seed, self.mode, self._asked(trajectory))
        if trajectory.already_compacted and not self.include_compacted:
            return skipped_rows(identity, policies, measure, COMPACTED)
        try:
            probes = tuple(tokenize_probe(probe, self.model.tokenizer) for probe in trajectory.probes)
            whole = Fitted(trajectory, tokenize(trajectory, self.model.tokenizer), probes)
            # All policies are cut alike, in latency cells too: they are compared on the same turns.
            fitted = self.window.fit(whole, self.policies)
            rows: Rows = {}
            for policy in (p for p in policies if str(p) in fitted.skipped):
                _extend(rows, skipped_rows(identity, [policy], measure, fitted.skipped[str(policy)]))
            if running := [policy for policy in policies if str(policy) not in fitted.skipped]:
                _extend(rows, compute(identity, fitted, running))
            return rows
        except Exception as error:
            failed = failed_rows(identity, policies, measure, reason(error))
        give_back(self.model.device)
        return failed

    def _quality(self, identity: Identity, fitted: Fitted, policies: Sequence[Policy]) -> Rows:
        trajectory, tokens = fitted.trajectory, fitted.tokens
        runs = replay(self.forward, tokens, policies, fitted.probes, self.seed, self.asking, self.explain)
        done, answers = [], []
        if self.asking:
            grammar = self.grammars[trajectory.source]
            done = action_columns(trajectory, tokens, runs, self.asking, grammar)
            if not fitted.cut_turns:
                answers = answer_columns(trajectory, tokens, runs, self.asking, grammar)
        return quality_rows(
            identity, trajectory, tokens, runs, self.model, cut_turns=fitted.cut_turns, actions=done, answers=answers
        )

    def _acted(self, trajectory: Trajectory, loop: Loop) -> Rows:
        identity = Identity.of(
            trajectory, self.model, self.seed, self.mode, f"{self._asked(trajectory)}/{loop.spelled}"
        )
        if trajectory.already_compacted and not self.include_compacted:
            return skipped_rows(identity, self.policies, "quality", COMPACTED)
        try:
            return loop.rows(identity, trajectory, self.policies)
        except Exception as error:
            failed = failed_rows(identity, self.policies, "quality", reason(error))
        give_back(self.model.device)
        return failed

    def _latency(self, identity: Identity, fitted: Fitted, policies: Sequence[Policy]) -> Rows:
        (policy,) = policies
        start = time.perf_counter()
        calls = measure_latency(
            self.forward, fitted.tokens, policy, seed=self.seed, repeats=self.repeats, last_turns=self.last_turns
        )
        return latency_rows(identity, policy, calls, self.repeats, time.perf_counter() - start, fitted.cut_turns)

    def _asked(self, trajectory: Trajectory) -> str:
        """How actions come about: other settings make other cells."""
        if self.asking is None:
            return ""
        return f"{self.grammars[trajectory.source]}/{self.asking.most}/{self.asking.temperature}"


def _extend(rows: Rows, more: Rows) -> None:
    for table, found in more.items():
        rows.setdefault(table, []).extend(found)


def _open(store: Store, settings: Mapping[str, Any], seed: int, device: str, resume: str | None) -> Run:
    if resume is None:
        return store.begin("replay", settings, seed=seed, device=device)
    before = store.info(resume).config
    changed = sorted(key for key, value in settings.items() if key in before and before[key] != value)
    if changed:
        said = "; ".join(f"{key} was {before[key]!r}, now {settings[key]!r}" for key in changed)
        raise UserError(f"run {resume} cannot be resumed with other settings: {said[:600]}")
    return store.resume(resume)
