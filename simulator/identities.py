"""Exact checks: identities of the engine that hold at any seed. Each yields (name, value, truth, limit)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import simpy

from ..replay.policies.registry import parse_policy
from .cost import CostModel
from .deployment import Deployment
from .fleet import Fleet
from .hardware import find_gpu
from .laws import Law, geometric
from .live import Live
from .models import find_geometry
from .replica import Replica
from .run import Scenario
from .session import EFFECTS, SessionSpec, compile_session
from .workload import Workload, assemble

Identity = tuple[str, float, float, float]
AGENTS = 40
TE = "te(proxy=assistant,delay=1,keep=0.2)"


def exact_checks() -> Iterable[Identity]:
    """Every identity."""
    yield from lone_requests()
    yield from jumping()
    yield from keeping_all()
    yield from overload()


def crowded(pool_tokens: int, **fields: Any) -> Deployment:
    """An H100 with Llama-3.1-8B whose pool is cut down to about `pool_tokens`."""
    plain = Deployment(find_geometry("llama-3.1-8b"), find_gpu("h100"), **fields)
    spare = plain.cache_gib() - pool_tokens * plain.row_bytes() / 2.0**30
    return replace(plain, activation_gib=plain.activation.gib + spare)


def crowd(tool: float = 400.0, out: float = 200.0, agents: int = AGENTS, groups: int = 1) -> Workload:
    """Agents with log-normal lengths and waits that ask for more blocks than `crowded` has.

    Their prefixes are shared within each of `groups` groups.
    """
    rng = np.random.default_rng(7)
    specs = []
    for number in range(AGENTS):
        count = int(rng.integers(1, 16))
        tools = np.ceil(tool * np.exp(rng.standard_normal(count))).astype(int).tolist()
        outs = np.ceil(out * np.exp(rng.standard_normal(count))).astype(int).tolist()
        waits = tuple(np.exp(rng.standard_normal(count)).tolist())
        specs.append(SessionSpec(assemble(1024, outs, tools), waits, shared=512, group=number % groups))
    return Workload("crowd", tuple(specs), agents=agents)


def small_fleet(
    policy: str,
    place: Deployment,
    load: Workload,
    turns: int = 500,
    law: Law | None = None,
    without: Iterable[str] = (),
    **options: Any,
) -> tuple[Fleet, float]:
    """(two replicas that have not run yet, seconds to run them for), blocks counted after every step."""
    scenario = Scenario(load, policy, place, turns=turns, law=law.cost() if law else None, without=frozenset(without))
    fleet = Fleet(
        scenario.load, scenario.positions, scenario.plan_of, place, scenario.cost, 2, 0, check=True, **options
    )
    return fleet, scenario.horizon_s()[1]


def record(policy: str, place: Deployment, load: Workload, **options: Any) -> tuple[list[Any], Fleet]:
    """(log of events, fleet) of a short run."""
    log: list[Any] = []
    fleet, until = small_fleet(policy, place, load, log=log, **options)
    fleet.env.run(until=until)
    return log, fleet


def lone_requests() -> Iterable[Identity]:
    """⌈prompt/chunk⌉ prefill steps and one decode step per token after the first; the time is the sum of the steps."""
    deployment = Deployment(find_geometry("llama-3.1-8b"), find_gpu("h100"))
    cost = CostModel.of(deployment)
    for prompt, out in ((100, 1), (8193, 2), (20_000, 300)):
        spec = SessionSpec(assemble(prompt, [out], []), (0.0,))
        plan = compile_session(spec, parse_policy("full"), deployment, cost)
        assert plan is not None
        env, ended = simpy.Environment(), []
        replica = Replica(env, deployment, cost, lambda live, rejected, e=env, to=ended: to.append(e.now), check=True)
        replica.submit(Live(plan, 0))
        env.run(until=1e5)
        name = f"lone request, {prompt:,} in, {out} out"
        yield f"{name}: steps", replica.steps, math.ceil(prompt / deployment.token_budget) + out - 1, 0.0
        sizes = [min(8192, prompt - at) for at in range(0, prompt, 8192)]
        seconds = sum(
            cost.step_s(0, 0, 1, size, size * (8192 * i + size / 2), i + 1 == len(sizes))
            for i, size in enumerate(sizes)
        )
        seconds += sum(cost.fixed_s(1) + cost.decode_attention_s(1, prompt + i) for i in range(out - 1))
        yield f"{name}: seconds", ended[0], seconds, 1e-9 * seconds


# What a crowd does to a pool too small for it: label, policy, tool and output lengths, pool tokens, deployment, router.
JUMPS: tuple[tuple[str, str, tuple[float, float], int, dict[str, Any]], ...] = (
    ("preempting", "full", (100, 600), 25_000, {}),
    ("swapping", "full", (100, 600), 25_000, {"preemption": "swap"}),
    ("evicting tails", "full", (800, 50), 30_000, {}),
    ("reusing coarse blocks", "full", (800, 50), 30_000, {"coarse_tokens": 528}),
    ("expiring", "full", (800, 50), 30_000, {"retention": "ttl:1.5"}),
    ("offloading", "full", (800, 50), 30_000, {"retention": "offload", "host_gib": 4.0}),
    ("compacting", TE, (800, 100), 12_000, {}),
    ("compacting beside", TE, (400, 300), 25_000, {"compaction": "beside"}),
    ("compacting, offloading", TE, (800, 100), 12_000, {"retention": "offload"}),
    ("preempting, prefix-aware", "full", (100, 600), 25_000, {"router": "prefix-aware"}),
    ("expiring, least-loaded", "full", (800, 50), 30_000, {"retention": "ttl:1.5", "router": "least-loaded"}),
    ("expiring, prefix-aware", "full", (800, 50), 30_000, {"retention": "ttl:1.5", "router": "prefix-aware"}),
)


def jumping() -> Iterable[Identity]:
    """Jumped ≡ stepped, in pools that preempt, evict and offload; blocks are conserved after every step."""
    for label, policy, (tool, out), pool, fields in JUMPS:
        machine = {name: value for name, value in fields.items() if name != "router"}
        load, place = crowd(tool, out, groups=2), crowded(pool, **machine)
        options = {"router": fields.get("router", "affinity")}
        (fast, one), (slow, two) = (record(policy, place, load, jump=jump, **options) for jump in (True, False))
        equal = sum(a[:-1] == b[:-1] for a, b in zip(fast, slow, strict=False))
        yield f"jumped ≡ stepped, {label}: equal events", equal, max(len(fast), len(slow)), 0.0
        late = max(abs(a[-1] - b[-1]) / max(1e-9, b[-1]) for a, b in zip(fast, slow, strict=False))
        yield f"jumped ≡ stepped, {label}: relative time", late, 0.0, 1e-9
        lost = sum(
            r.pool.total - r.pool.free - r.pool.active - r.pool.idle_blocks - r.pool.read
            for r in (*one.replicas, *two.replicas)
        )
        yield f"blocks lost, {label} (counted after every step)", lost, 0, 0.0


def keeping_all() -> Iterable[Identity]:
    """keep = 1 at zero cost is no compaction: in a tight pool where nothing else is held, in a roomy one for te.

    And so is any policy none of whose effects count.
    """
    load = crowd(400, 100)
    for policy, pool, without in (
        ("sink_window(keep=1)", 30_000, ()),
        ("te(proxy=assistant,delay=1,keep=1)", 300_000, ()),
        (TE, 30_000, EFFECTS),
        ("truncate(keep=0.3)", 30_000, EFFECTS),
    ):
        (plain, _), (kept, _) = (record(of, crowded(pool), load, without=without) for of in ("full", policy))
        equal = sum(a == b for a, b in zip(plain, kept, strict=False))
        name = f"{policy} without its effects" if without else policy
        yield f"{name} ≡ full: equal events", equal, max(len(plain), len(kept)), 0.0


def overload() -> Iterable[Identity]:
    """50 times the capacity is offered: tokens per second never exceed 16/(a + 16·b)."""
    law = Law(step_s=0.01, sequence_s=0.0002, cap=16)
    capacity = law.cap / (law.step_s + law.cap * law.sequence_s)
    rate = 50 * capacity / 200
    specs = tuple(SessionSpec(assemble(1, [out], []), (0.0,)) for out in geometric(200, 500))
    scenario = Scenario(Workload("overload", specs, rate=rate), "full", law.deployment(), turns=20_000, law=law.cost())
    fleet = Fleet(scenario.load, scenario.positions, scenario.plan_of, scenario.deployment, scenario.cost, 1, 0)
    fleet.env.run(until=60.0)
    tokens = sum(t[4] for t in fleet.turns)
    over = max(0.0, tokens / 60.0 / capacity - 1)
    yield "overload × 50: tokens per second beyond capacity (share)", over, 0.0, 1e-9
