"""One simulation of one fleet: `Scenario` (what is run) → `SimResult` (what happened)."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from ..errors import UserError
from ..replay.policies.registry import parse_policy
from .cost import CostModel, Deployment
from .fleet import Fleet, Positions
from .session import SessionPlan, compile_session
from .slo import Slo, percentile
from .workload import Workload

TURNS = 5000  # measured turns of one replication, about
WARM_UP = 0.5  # of the measured time, before it: residency needs a while to settle
SATURATED = 0.05  # share of turns never served, beyond which latencies are said to be growing
MOSTLY = 0.7  # of a limit that a lone decode step takes, beyond which no fleet size helps much
LIGHT_LOAD = 0.3  # share of time busy, below which waiting is no cause
MISS_SHARE = 0.01  # turns that find their cache gone, beyond which residency is said to bind


@dataclass(frozen=True)
class Scenario:
    """A workload under one policy on one kind of replica. Picklable; session plans are made when first needed."""

    workload: Workload
    policy: str
    deployment: Deployment
    slos: tuple[Slo, ...] = ()
    extra_turns: float = 0.0
    slowdown: float = 1.0
    turns: int = TURNS
    law: CostModel | None = None  # instead of the deployment's roofline: for closed forms
    twin: Scenario | None = None  # the same but for the slowdown: its plans are reused

    @cached_property
    def cost(self) -> CostModel:
        """The cost model, made slower or faster."""
        return (self.law or CostModel.of(self.deployment)).scaled(self.slowdown)

    @cached_property
    def load(self) -> Workload:
        """The workload with the policy's extra turns."""
        return self.workload.grown(self.extra_turns, self.deployment.geometry.max_positions)

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

    def plan_of(self, index: int) -> SessionPlan:
        """The session's plan, made once."""
        plans: dict[int, SessionPlan] = self.__dict__.setdefault("plans", {})
        if index not in plans and self.twin is not None:
            plans[index] = self.twin.plan_of(index).slowed(self.slowdown / self.twin.slowdown)
        elif index not in plans:
            plan = compile_session(self.load.sessions[index], parse_policy(self.policy), self.deployment, self.cost)
            assert plan is not None, "positions.usable lists only sessions that fit"
            plans[index] = plan
        return plans[index]

    def __getstate__(self) -> dict[str, Any]:
        """Fields only: caches are made again where they are needed."""
        return {name: self.__dict__[name] for name in self.__dataclass_fields__}

    def horizon_s(self) -> tuple[float, float]:
        """(warm-up, end) in simulated seconds, so that about `turns` turns are measured."""
        load, positions = self.load, self.positions
        if load.kind == "recorded":
            last = max(spec.start_s or 0.0 for spec in load.sessions) + positions.mean_session_s
            return 0.1 * last, last
        if load.agents:
            per_second = load.agents / positions.mean_cycle_s
        else:
            per_second = (load.rate or 0.0) * len(positions.cycle_s) / len(positions.usable)
        measured = self.turns / per_second
        return WARM_UP * measured, (1 + WARM_UP) * measured


@dataclass(frozen=True, slots=True)
class SimResult:
    """What one run showed. Latencies in seconds by percentile, None from too few turns; shares in [0, 1].

    `values` holds the percentile of each SLO (infinite when more turns than it allows were rejected).
    `unserved_share` is the share of turns still waiting for their first token at the end: beyond a few percent, the
    fleet is saturated and its latencies depend on how long one looks.
    """

    replicas: int
    gpus: int
    tp: int
    seed: int
    requests: int
    rejected: int
    simulated_s: float
    wall_s: float
    batch_mean: float
    batch_max: int
    throughput_requests_per_s: float
    throughput_tokens_per_s: float
    goodput_requests_per_s: float
    ttft_s: dict[str, float | None]
    tpot_s: dict[str, float | None]
    e2e_s: dict[str, float | None]
    kv_used_share: float
    kv_active_share: float
    preemptions: int
    evictions: int
    miss_share: float
    busy_share: float
    unserved_share: float
    shares: dict[str, float]
    values: dict[str, float]
    binding_constraint: str

    def meets(self, slos: tuple[Slo, ...]) -> bool:
        """Whether this run alone keeps every promise."""
        return all(self.values[slo.key] <= slo.limit_s for slo in slos)

    def row(self) -> dict[str, Any]:
        """As a dictionary."""
        return asdict(self)


def run_fleet(scenario: Scenario, replicas: int, seed: int, **options: Any) -> SimResult:
    """Simulate `replicas` replicas from one seed. `options` go to the replicas (`jump`, `check`, `log`)."""
    began = time.perf_counter()
    warm, end = scenario.horizon_s()
    fleet = Fleet(
        scenario.load,
        scenario.positions,
        scenario.plan_of,
        scenario.deployment,
        scenario.cost,
        replicas,
        seed,
        **options,
    )
    fleet.env.run(until=end)
    for replica in fleet.replicas:
        replica.account()
    return summarise(scenario, fleet, warm, end, seed, time.perf_counter() - began)


def summarise(scenario: Scenario, fleet: Fleet, warm: float, end: float, seed: int, wall_s: float) -> SimResult:
    """Turns that arrived after the warm-up; those without a first token count with their age, as a lower bound."""
    turns = np.array([t for t in fleet.turns if t[0] >= warm], dtype=float).reshape(-1, 6)
    rejected = sum(arrival >= warm for arrival in fleet.rejected)
    ttft, tpot, e2e = turns[:, 1], turns[:, 2][~np.isnan(turns[:, 2])], turns[:, 3]
    ages = [end - s.arrival for s in fleet.live if s.first < 0 and warm <= s.arrival and s.arrival > 0]
    typical = float(np.median(ttft)) if len(ttft) else 0.0
    starved = [age for age in ages if age > typical]
    lost = np.full(rejected, np.inf)
    samples = {
        "ttft": np.concatenate([ttft, starved, lost]),
        "tpot": np.concatenate([tpot, lost]),
        "e2e": np.concatenate([e2e, starved, lost]),
    }
    span = end - warm
    good = np.ones(len(turns), dtype=bool)
    for slo in scenario.slos:
        column = turns[:, {"ttft": 1, "tpot": 2, "e2e": 3}[slo.metric]]
        good &= ~(column > slo.limit_s)  # one-token turns have no TPOT and break no promise about it
    finished = np.array([t[0] + t[3] >= warm for t in fleet.turns], dtype=bool)
    outputs = np.array([t[4] for t in fleet.turns], dtype=float)
    deployment = scenario.deployment
    pools = fleet.replicas
    total = sum(r.pool.total for r in pools) * end
    misses = float(np.mean(turns[:, 5] == 0)) if len(turns) else 0.0
    shares = _shares(fleet, end)
    result = SimResult(
        replicas=len(pools),
        gpus=len(pools) * deployment.tp,
        tp=deployment.tp,
        seed=seed,
        requests=len(turns),
        rejected=rejected,
        simulated_s=end,
        wall_s=wall_s,
        batch_mean=sum(r.meter.batch_s for r in pools) / max(1e-12, sum(r.meter.busy_s for r in pools)),
        batch_max=max(r.batch_max for r in pools),
        throughput_requests_per_s=float(finished.sum() / span),
        throughput_tokens_per_s=float(outputs[finished].sum() / span) if len(outputs) else 0.0,
        goodput_requests_per_s=float(good.sum() / span),
        ttft_s=_levels(samples["ttft"]),
        tpot_s=_levels(samples["tpot"]),
        e2e_s=_levels(samples["e2e"]),
        kv_used_share=sum(r.meter.used_s for r in pools) / max(1e-12, total),
        kv_active_share=sum(r.meter.held_s for r in pools) / max(1e-12, total),
        preemptions=sum(r.preemptions for r in pools),
        evictions=sum(r.pool.evictions for r in pools),
        miss_share=misses,
        busy_share=sum(r.meter.busy_s for r in pools) / (end * len(pools)),
        unserved_share=len(ages) / max(1, len(turns) + len(ages)),
        shares=shares,
        values={slo.key: _value(samples[slo.metric], slo) for slo in scenario.slos},
        binding_constraint="",
    )
    return replace(result, binding_constraint=binding(result, scenario))


def _levels(values: np.ndarray) -> dict[str, float | None]:
    return {f"p{q}": percentile(values, q) for q in (50, 95, 99)}


def _value(values: np.ndarray, slo: Slo) -> float:
    """The SLO's percentile; the maximum (an upper bound of it) from too few turns, infinite from none."""
    if not len(values):
        return float("inf")
    if len(values) * (100 - slo.percentile) < 1000:
        return float(values.max())
    return float(np.percentile(values, slo.percentile, method="higher"))  # no average with an infinite neighbour


def _shares(fleet: Fleet, end: float) -> dict[str, float]:
    """Seconds by what they were spent on, as shares of the time replicas were busy."""
    names = ("prefill_s", "weights_s", "kv_s", "host_s", "compaction_s")
    busy = sum(r.meter.busy_s for r in fleet.replicas) or 1.0
    return {name[:-2]: sum(getattr(r.meter, name) for r in fleet.replicas) / busy for name in names}


SPENT_ON = {"prefill": "prefill compute", "kv": "decode bandwidth", "host": "host time", "compaction": "compaction"}


def binding(result: SimResult, scenario: Scenario) -> str:
    """What limits this fleet, in words: cause, then the promise nearest to its limit and the evidence.

    Weight streaming costs the same per step in every fleet, so it binds only when a lone step takes most of the limit;
    otherwise the cause is the cache when turns lose theirs, else what most of the load-dependent seconds went to.
    """
    if result.rejected:
        return "KV blocks: a session is larger than one replica's pool (raise --tp, or use a larger GPU)"
    lone_s = scenario.cost.fixed_s(1) + scenario.cost.decode_attention_s(1, 0)
    nearest = ""
    if scenario.slos:
        share, slo = max(((result.values[s.key] / s.limit_s, s) for s in scenario.slos), key=lambda item: item[0])
        level = f"at {share:.0%} of its limit" if np.isfinite(share) else "beyond measure: too few turns end"
        growing = " and growing" if result.unserved_share > SATURATED else ""
        nearest = f"p{slo.percentile} {slo.metric.upper()} {level}{growing}, "
        if slo.metric == "tpot" and lone_s > MOSTLY * slo.limit_s:
            return f"weight streaming: {nearest}one decode step takes {lone_s * 1e3:.0f} ms even alone (raise --tp)"
    if result.miss_share > MISS_SHARE or result.preemptions:
        return f"KV blocks: {nearest}{result.miss_share:.1%} of turns find their cache gone"
    spent = {name: result.shares[name] for name in SPENT_ON}
    biggest = max(spent, key=lambda name: spent[name])
    alone = "; long prompts are slow even alone (raise --tp)" if result.busy_share < LIGHT_LOAD and nearest else ""
    return f"{SPENT_ON[biggest]}: {nearest}{spent[biggest]:.0%} of busy time{alone if biggest == 'prefill' else ''}"
