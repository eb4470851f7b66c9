"""`Cells`: computes the cells of a run, one trajectory's policies together. Torch; one per process and model."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ..traces.tokens import tokenize, tokenize_probe
from ..traces.trajectory import Trajectory
from .asked import Asked, Settled
from .behaviour import action_columns
from .closed.agent import Speech
from .closed.run import Loop
from .engine import replay
from .fitting import Fitted, Window
from .forward import Forward
from .last_answer import answer_columns
from .latency import measure_latency
from .lockstep import reason
from .memory import give_back
from .model import LoadedModel
from .policies.base import Policy
from .rows import Identity, Rows, Who, failed_rows, latency_rows, quality_rows, skipped_rows
from .stepwise import Asking

Compute = Callable[[Identity, Fitted, Sequence[Policy]], Rows]


@dataclass(frozen=True, slots=True)
class Job:
    """The unit of work, of resume and of failure: a trajectory under all policies, or (latency) under one, alone."""

    trajectory: Trajectory
    measure: str
    policies: tuple[Policy, ...]

    @property
    def key(self) -> str:
        """Of its segment in the run."""
        return f"{self.trajectory.id}/{self.measure}{self._policy('/')}"

    @property
    def detail(self) -> str:
        """What progress shows."""
        return f"{self.trajectory.id} {self.measure}{self._policy(' ')}"

    def _policy(self, before: str) -> str:
        return f"{before}{self.policies[0]}" if self.measure == "latency" else ""


def jobs_of(asked: Asked, policies: Sequence[Policy]) -> list[Job]:
    """All jobs of a run in a fixed order: quality first, since latency runs alone."""
    quality = asked.trajectories if asked.measure != "latency" else ()
    timed = asked.timed if asked.measure != "quality" else ()
    jobs = [Job(trajectory, "quality", tuple(policies)) for trajectory in quality]
    return jobs + [Job(trajectory, "latency", (policy,)) for trajectory in timed for policy in policies]


@dataclass
class Cells:
    """Computes cells; a failure becomes failed rows, what does not fit becomes skipped rows: never a lost cell."""

    asked: Asked
    settled: Settled
    model: LoadedModel
    loop: Loop | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        asked, settled = self.asked, self.settled
        self.forward = Forward(self.model)
        self.asking: Asking | None = None
        if settled.most is not None:
            self.asking = Asking.of(self.model, settled.most, asked.temperature)
            if settled.closed is not None:
                speech = Speech(settled.most, asked.temperature, asked.seed)
                self.loop = Loop(self.forward, asked.trajectories, settled.grammars, settled.closed, speech)
        spoken = self.asking.most if self.asking else 0
        self.window = Window(self.model.name, self.model.max_positions, asked.long, spoken)
        self.who = Who.of(self.model, asked.seed, asked.mode, self._ways())

    def rows(self, job: Job) -> Rows:
        """The rows of one job."""
        if job.measure == "latency":
            return self.latency(job.trajectory, job.policies[0])
        return self.quality(job.trajectory)

    def quality(self, trajectory: Trajectory) -> Rows:
        """Rows of all policies on one trajectory, in lockstep; closed-loop runs go their own ways."""
        if self.loop is not None:
            return self._acted(trajectory, self.loop)
        return self._rows(trajectory, self.settled.policies, "quality", self._quality)

    def latency(self, trajectory: Trajectory, policy: Policy) -> Rows:
        """Rows of one policy on one trajectory, alone."""
        return self._rows(trajectory, [policy], "latency", self._latency)

    def _rows(self, trajectory: Trajectory, policies: Sequence[Policy], measure: str, compute: Compute) -> Rows:
        identity = self.who.identity(trajectory)
        if (why := self.asked.left_out(trajectory)) is not None:
            return skipped_rows(identity, policies, measure, why)
        try:
            probes = tuple(tokenize_probe(probe, self.model.tokenizer) for probe in trajectory.probes)
            whole = Fitted(trajectory, tokenize(trajectory, self.model.tokenizer), probes)
            # All policies are cut alike, in latency cells too: they are compared on the same turns.
            fitted = self.window.fit(whole, self.settled.policies)
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
        trajectory, tokens, asked = fitted.trajectory, fitted.tokens, self.asked
        runs = replay(self.forward, tokens, policies, fitted.probes, asked.seed, self.asking, asked.explain)
        done, answers = [], []
        if self.asking:
            grammar = self.settled.grammars[trajectory.source]
            done = action_columns(trajectory, tokens, runs, self.asking, grammar)
            if not fitted.cut_turns:
                answers = answer_columns(trajectory, tokens, runs, self.asking, grammar)
        return quality_rows(
            identity, trajectory, tokens, runs, self.model, cut_turns=fitted.cut_turns, actions=done, answers=answers
        )

    def _acted(self, trajectory: Trajectory, loop: Loop) -> Rows:
        identity, policies = self.who.identity(trajectory), self.settled.policies
        if (why := self.asked.left_out(trajectory)) is not None:
            return skipped_rows(identity, policies, "quality", why)
        try:
            return loop.rows(identity, trajectory, policies)
        except Exception as error:
            failed = failed_rows(identity, policies, "quality", reason(error))
        give_back(self.model.device)
        return failed

    def _latency(self, identity: Identity, fitted: Fitted, policies: Sequence[Policy]) -> Rows:
        (policy,) = policies
        asked, start = self.asked, time.perf_counter()
        calls = measure_latency(
            self.forward,
            fitted.tokens,
            policy,
            seed=asked.seed,
            repeats=asked.latency_repeats,
            last_turns=asked.latency_last_turns,
        )
        seconds = time.perf_counter() - start
        return latency_rows(identity, policy, calls, asked.latency_repeats, seconds, fitted.cut_turns)

    def _ways(self) -> Mapping[str, str]:
        """By source, how actions come about: other settings make other cells."""
        if self.asking is None:
            return {}
        loop = f"/{self.loop.spelled}" if self.loop else ""
        end = f"{self.asking.most}/{self.asking.temperature}{loop}"
        return {source: f"{grammar}/{end}" for source, grammar in self.settled.grammars.items()}


def _extend(rows: Rows, more: Rows) -> None:
    for table, found in more.items():
        rows.setdefault(table, []).extend(found)
