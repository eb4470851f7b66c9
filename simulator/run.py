"""`Scenario`: a workload, a policy and a machine; `run_fleet` simulates it on a fleet."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..errors import UserError
from ..replay.policies.base import Policy
from ..replay.policies.registry import parse_policy
from .cost import CostModel
from .deployment import Deployment
from .failure import Failure
from .fleet import Fleet
from .measured import Pace
from .outcome import SimResult, summarise
from .positions import Positions
from .session import SessionPlan, compile_session
from .slo import Slo
from .workload import Workload

TURNS = 5000  # measured turns of one replication, about, and more where they take less time than the next two
CYCLES = 5  # of an agent, from turn to turn: what is resident settles in a few
WAITS = 4  # times the longest promise of a first token: turns that wait at the end are then few
MOST_WAIT_S = 600.0  # of such a promise that is waited for
SHORT_LOG = 200  # sessions below which a recorded log is measured from its first request
MOST_REPLICAS = 16_384  # in one simulation
LONGEST_WAIT_S = 3600.0  # after a log's last session began, that a promise is given time to be broken
WARM_UP = 0.5  # of the measured time, before it: residency needs a while to settle


@dataclass(frozen=True)
class Scenario:
    """A workload under one policy on one kind of replica. Session plans are made when first needed, and pickled along.

    `keep_measured` is the mean share of tokens that replay saw kept, for policies whose footprint is only a bound.
    `pace` is how its compactions compare with the cost model's, where they were measured on this machine.
    `without` names effects of compaction (`EFFECTS`) that are switched off, to say what each is worth.
    """

    workload: Workload
    policy: str
    deployment: Deployment
    slos: tuple[Slo, ...] = ()
    extra_turns: float = 0.0
    keep_measured: float | None = None
    pace: Pace | None = None
    slowdown: float = 1.0
    turns: int | None = None
    law: CostModel | None = None  # instead of the deployment's roofline: for closed forms
    twin: Scenario | None = None  # the same but for the slowdown: its plans are reused
    without: frozenset[str] = frozenset()
    router: str = "affinity"
    failure: Failure | None = None

    @cached_property
    def cost(self) -> CostModel:
        """The cost model, made slower or faster."""
        return (self.law or CostModel.of(self.deployment)).scaled(self.slowdown)

    @cached_property
    def load(self) -> Workload:
        """The workload with the policy's extra turns."""
        extra = 0.0 if "turns" in self.without else self.extra_turns
        return self.workload.grown(extra, self.deployment.geometry.max_positions)

    @cached_property
    def positions(self) -> Positions:
        """Where agents may be found. UserError when no session fits the window."""
        positions = Positions(self.load.sessions, self.deployment.geometry.max_positions)
        if not positions.usable:
            raise UserError(
                f"workload {self.load.name}: no session fits the {self.deployment.geometry.max_positions:,} positions "
                f"of {self.deployment.geometry.name}; use another model or --scale-tokens"
            )
        return positions

    @cached_property
    def _rule(self) -> Policy:
        """The policy whose arithmetic the sessions follow."""
        return parse_policy(self.policy).as_measured(self.keep_measured)

    def plan_of(self, index: int) -> SessionPlan:
        """The session's plan, made once."""
        plans: dict[int, SessionPlan] = self.__dict__.setdefault("plans", {})
        if index not in plans and self.twin is not None:
            plans[index] = self.twin.plan_of(index).slowed(self.slowdown / self.twin.slowdown)
        elif index not in plans:
            pace = self.pace.ratio if self.pace else 1.0
            spec = self.load.sessions[index]
            plan = compile_session(spec, self._rule, self.deployment, self.cost, self.without, pace)
            assert plan is not None, "positions.usable lists only sessions that fit"
            plans[index] = plan
        return plans[index]

    def compiled(self) -> Scenario:
        """Itself, with the plan of every session made."""
        for index in self.positions.usable:
            self.plan_of(index)
        return self

    def __getstate__(self) -> dict[str, Any]:
        """Fields and session plans, which take far longer to make than to read. Other caches are made again."""
        return {name: self.__dict__[name] for name in (*self.__dataclass_fields__, "plans") if name in self.__dict__}

    def horizon_s(self) -> tuple[float, float]:
        """(warm-up, end) in simulated seconds, so that about `turns` turns are measured; None: enough to judge by.

        A recorded log is watched until its last session is over, at the nominal speed, and could have broken a promise.
        """
        load, positions = self.load, self.positions
        if load.kind == "recorded":
            last = max(spec.start_s or 0.0 for spec in load.sessions)
            longest = max((slo.limit_s for slo in self.slos if slo.metric != "tpot"), default=0.0)
            # A short log has no turns to spare for a warm-up, and ends before it would matter.
            warm = 0.1 * last if len(load.sessions) >= SHORT_LOG else 0.0
            return warm, last + max(positions.mean_session_s, 1.01 * min(longest, LONGEST_WAIT_S))
        if load.agents:
            per_second = load.agents / positions.mean_cycle_s
        else:
            per_second = (load.rate or 0.0) * len(positions.cycle_s) / len(positions.usable)
        measured = (self.turns or TURNS) / per_second
        if self.turns is None:
            first = max((slo.limit_s for slo in self.slos if slo.metric == "ttft"), default=0.0)
            measured = max(measured, CYCLES * positions.mean_cycle_s, WAITS * min(first, MOST_WAIT_S))
        return WARM_UP * measured, (1 + WARM_UP) * measured


def run_fleet(
    scenario: Scenario,
    replicas: int,
    seed: int,
    *,
    watch: Callable[[Fleet, float, float], Any] | None = None,
    **options: Any,
) -> SimResult:
    """Simulate `replicas` replicas from one seed. `options` go to the replicas (`jump`, `check`, `log`).

    `watch(fleet, warm, end)` is called before anything runs: to look at it over time (`Series`), or when it is over.
    """
    if replicas > MOST_REPLICAS:
        raise UserError(f"{replicas:,} replicas: up to {MOST_REPLICAS:,} are simulated")
    began = time.perf_counter()
    warm, end = scenario.horizon_s()
    deployment, cost = scenario.deployment, scenario.cost
    options["router"] = scenario.router
    fleet = Fleet(scenario.load, scenario.positions, scenario.plan_of, deployment, cost, replicas, seed, **options)
    if scenario.failure is not None:
        moment = scenario.failure.moment(warm, end)
        fleet.after(moment, fleet.fail, scenario.failure.replica, scenario.failure.outage_s)
    if watch is not None:
        watch(fleet, warm, end)
    if warm > 0:
        fleet.env.run(until=warm)
    fleet.begin_measuring()
    fleet.env.run(until=end)
    wall_s = time.perf_counter() - began
    return summarise(fleet, scenario.slos, cost, warm=warm, end=end, tp=deployment.tp, seed=seed, wall_s=wall_s)
