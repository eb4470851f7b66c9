"""Random small fleets under every router, with failures, bursts and each retention: nothing is lost, sums add up."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from worlds import SLOS, deployment, sessions

from kvmill.simulator.failure import Failure
from kvmill.simulator.fleet import Fleet
from kvmill.simulator.routers import ROUTERS, counted
from kvmill.simulator.run import Scenario, run_fleet
from kvmill.simulator.workload import Workload

POLICIES = ["full", "te(proxy=assistant,delay=1,keep=0.2)", "attention(keep=0.2)", "truncate(keep=0.3)"]
SLOW = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)


class Counting(Fleet):
    """Counts the turns that were sent."""

    sent = 0

    def submit(self, live):
        self.sent += 1
        super().submit(live)


ARRIVING = st.one_of(
    st.builds(lambda n: {"agents": n}, st.integers(1, 25)),
    st.builds(lambda r, b: {"rate": r, "burstiness": b}, st.floats(0.2, 4.0), st.sampled_from([0.5, 1.0, 3.0])),
)
WORLDS = st.fixed_dictionaries(
    {
        "pool": st.integers(4_000, 60_000),
        "retention": st.sampled_from(["lru", "ttl:1.5", "offload"]),
        "preemption": st.sampled_from(["recompute", "swap"]),
        "cap": st.sampled_from([2, 256]),
        "arriving": ARRIVING,
        "tool": st.sampled_from([50, 900]),
        "out": st.sampled_from([1, 60, 300]),
        "shared": st.sampled_from([0, 512]),
        "outage_s": st.sampled_from([None, 0.5, 5.0]),
        "router": st.sampled_from(sorted(ROUTERS)),
        "policy": st.sampled_from(POLICIES),
        "seed": st.integers(0, 1000),
    }
)
REPLICAS = st.integers(1, 4)


def world_of(drawn: dict[str, Any]) -> Scenario:
    place = deployment(
        drawn["pool"], retention=drawn["retention"], preemption=drawn["preemption"], max_sequences=drawn["cap"]
    )
    shape = {name: drawn[name] for name in ("tool", "out", "shared")}
    load = Workload("random", sessions(10, drawn["seed"], turns=5, wait=1.0, **shape), **drawn["arriving"])
    failure = None if drawn["outage_s"] is None else Failure(drawn["outage_s"])
    return Scenario(load, drawn["policy"], place, SLOS, turns=80, router=drawn["router"], failure=failure)


def fleet_of(world: Scenario, replicas: int, seed: int, **options: Any) -> Counting:
    return Counting(
        world.load, world.positions, world.plan_of, world.deployment, world.cost, replicas, seed, check=True,
        router=world.router, **options,
    )  # fmt: skip


@SLOW
@given(WORLDS, REPLICAS)
def test_no_block_and_no_turn_is_lost(drawn, replicas):
    world, seed = world_of(drawn), drawn["seed"]
    log: list[Any] = []
    fleet = fleet_of(world, replicas, seed, log=log)
    warm, end = world.horizon_s()
    if world.failure is not None:
        fleet.after(world.failure.moment(warm, end), fleet.fail, world.failure.replica, world.failure.outage_s)
    fleet.env.run(until=end)
    pending = [live for live in fleet.live if live.pending]
    assert fleet.sent == len(fleet.turns) + len(fleet.rejected) + len(pending)
    there = [live for r in fleet.replicas for live in (*r.arrived, *r.waiting, *r.fetching, *r.running)]
    assert Counter(map(id, there)) + Counter(map(id, fleet.stranded)) == Counter(map(id, pending))
    assert sum(r.load for r in fleet.replicas) == sum(counted(live) for live in fleet.live if live.replica >= 0)
    for replica in fleet.replicas:
        replica.pool.check(sum(replica.decodes.held(live) for live in replica.running))
        replica.cache.host.check()
    turns = fleet.columns()
    assert (turns[:, 1] > 0).all()
    assert (turns[:, 3] >= turns[:, 1]).all()
    assert all(earlier[-1] <= later[-1] for earlier, later in pairwise(log))
    order: dict[float, float] = {}
    for *_, agent, turn, _ in fleet.turns:
        assert turn in (0, order.get(agent, turn - 1) + 1), "the turns of a session come one after the other"
        order[agent] = turn


@SLOW
@given(WORLDS, REPLICAS)
def test_the_same_seed_gives_the_same_turns(drawn, replicas):
    world, seed = world_of(drawn), drawn["seed"]
    first, again = run_fleet(world, replicas, seed), run_fleet(world, replicas, seed)
    assert first.row() | {"wall_s": 0} == again.row() | {"wall_s": 0}


@SLOW
@given(WORLDS, REPLICAS)
def test_littles_law_holds_on_the_sample_path(drawn, replicas):
    """∫ running dt over all replicas, as their meters keep it, is the sum over admissions of how long each ran."""
    world, seed = world_of(drawn), drawn["seed"]
    log: list[Any] = []
    fleet = fleet_of(world, replicas, seed, log=log)
    fleet.env.run(until=world.horizon_s()[1])
    since: dict[int, float] = {}
    spent = 0.0
    for event, agent, *_, now in log:
        if event == "admit":
            since[agent] = now
        elif event in ("done", "preempt"):
            spent += now - since.pop(agent)
    spent += sum(fleet.env.now - start for start in since.values())
    assert fleet.sums()["batch_s"] == pytest.approx(spent, rel=1e-9, abs=1e-9)


@settings(SLOW, max_examples=15)
@given(WORLDS, REPLICAS)
def test_jumping_changes_nothing(drawn, replicas):
    """The same events in the same order under every router, whatever breaks, at the same times within 1e-9."""
    world = world_of(drawn)
    logs = []
    for jump in (True, False):
        log: list[Any] = []
        run_fleet(world, replicas, drawn["seed"], jump=jump, log=log)
        logs.append(log)
    assert [entry[:-1] for entry in logs[0]] == [entry[:-1] for entry in logs[1]]
    assert [entry[-1] for entry in logs[0]] == pytest.approx([entry[-1] for entry in logs[1]], rel=1e-9)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(
    policy=st.sampled_from(POLICIES[:2]),
    router=st.sampled_from(["affinity", "prefix-aware"]),
    agents=st.integers(10, 60),
    replicas=st.integers(1, 3),
    seed=st.integers(0, 1000),
)
def test_a_replica_more_keeps_the_promises_as_often(policy, router, agents, replicas, seed):
    """Beyond noise. Routers that know nothing of caches are left out: with more replicas they find fewer of them."""
    load = Workload("more", sessions(20, seed, turns=6), agents=agents)
    world = Scenario(load, policy, deployment(50_000), SLOS, turns=400, router=router)
    kept = [
        np.mean([run.goodput_requests_per_s / run.throughput_requests_per_s for run in runs])
        for runs in ([run_fleet(world, n, s) for s in (0, 1)] for n in (replicas, replicas + 1))
    ]
    assert kept[1] >= kept[0] - 0.03
