"""Each router's rule on replicas made by hand, then in fleets."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from worlds import TE, closed, deployment, scenario

from kvmill.errors import UserError
from kvmill.simulator.fleet import Fleet
from kvmill.simulator.routers import ROUTERS, counted, fewest_rows, find_router
from kvmill.simulator.run import run_fleet
from kvmill.simulator.session import SessionSpec
from kvmill.simulator.workload import Workload, assemble


def stand_in(load=0, requests=0, here=(), groups=()):
    """A replica of which only what a router looks at is there."""
    cache = SimpleNamespace(
        here=lambda live: live in here,
        found=lambda live: (live.plan.base[live.turn], True),
        loaded=lambda live: live.plan.group in groups,
    )
    return SimpleNamespace(
        load=load, cache=cache, running=[None] * requests, waiting=[], arrived=[], fetching=[],
    )  # fmt: skip


def session(home=-1, turn=1, shared=512):
    """A session at its second turn: 1,000 tokens before, 100 of them its own answer, 300 new ones."""
    plan = SimpleNamespace(
        begin=0, group=1, shared=shared, after=[900, 1300], raw=[900, 1300], feed=[900, 301], base=[0, 999],
        rows=lambda turn: 999,
    )  # fmt: skip
    return SimpleNamespace(plan=plan, turn=turn, replica=home)


def test_names_are_known_and_others_are_refused_with_the_list():
    assert sorted(ROUTERS) == ["affinity", "least-loaded", "prefix-aware", "round-robin"]
    with pytest.raises(UserError, match=r"unknown router 'random'.*Known: affinity, least-loaded, prefix-aware"):
        find_router("random")


def test_the_rows_of_the_session_itself_do_not_count_against_its_home():
    live = session(home=0)
    assert counted(live) == 999
    assert fewest_rows(live, {0: stand_in(5000), 1: stand_in(4100)}) == 0
    assert fewest_rows(live, {0: stand_in(5000), 1: stand_in(4000)}) == 1
    assert fewest_rows(session(), {0: stand_in(7), 1: stand_in(3), 2: stand_in(3)}) == 1


def test_affinity_goes_home_and_leaves_only_a_home_that_is_gone_or_empty():
    router = find_router("affinity")
    replicas = {0: stand_in(9000), 1: stand_in(10), 2: stand_in(20)}
    assert router.choose(session(home=0), replicas) == 0
    assert router.choose(session(), replicas) == 1
    assert router.choose(session(home=0), {2: replicas[2]}) == 2
    assert router.again(session(home=0), replicas) == 1


def test_round_robin_takes_turns_among_those_that_work():
    router = find_router("round-robin")
    replicas = {index: stand_in() for index in (0, 1, 3)}
    assert [router.choose(session(home=3), replicas) for _ in range(5)] == [0, 1, 3, 0, 1]
    assert router.again(session(home=3), replicas) == 3


def test_prefix_aware_prefers_the_sessions_cache_to_the_groups_prefix_to_nothing():
    router, live = find_router("prefix-aware"), session(home=0)
    held = stand_in(9000, here=[live])
    shared, empty = stand_in(5000, groups=[1]), stand_in(0)
    assert router.choose(live, {0: held, 1: shared, 2: empty}) == 0
    held.cache.here = lambda _: False
    assert router.choose(live, {0: held, 1: shared, 2: empty}) == 1, "512 of 1,300 tokens are more than 0.3"
    live.plan.shared = 384
    assert router.choose(live, {0: held, 1: shared, 2: empty}) == 2, "384 are not"


def test_prefix_aware_looks_at_queues_alone_when_they_are_out_of_balance():
    router, live = find_router("prefix-aware"), session(home=0)
    for longest, chosen in ((75, 1), (74, 0)):
        held = stand_in(9000, requests=longest, here=[live])
        assert router.choose(live, {0: held, 1: stand_in(9999, requests=10)}) == chosen, "64 more is in balance"
    for longest, chosen in ((301, 1), (300, 0)):
        held = stand_in(9000, requests=longest, here=[live])
        assert router.choose(live, {0: held, 1: stand_in(9999, requests=200)}) == chosen, "1.5 times is in balance"


@pytest.mark.parametrize("router", sorted(ROUTERS))
def test_every_router_serves_the_same_agents_and_keeps_the_books(router):
    world = scenario(closed(30, tool=800), place=deployment(80_000), turns=800)
    fleets = {}
    for name in ("affinity", router):
        fleet = Fleet(
            world.load, world.positions, world.plan_of, world.deployment, world.cost, 3, 0, check=True, router=name
        )
        fleet.env.run(until=world.horizon_s()[1])
        assert sum(r.load for r in fleet.replicas) == sum(counted(live) for live in fleet.live)
        assert {live.agent for live in fleet.live} <= set(range(30))
        assert len({live.agent for live in fleet.live}) == len(fleet.live), "no session is there twice"
        first: dict[float, tuple[float, float]] = {}
        for *_, out, _, agent, turn, _ in fleet.turns:
            first.setdefault(agent, (turn, out))
        fleets[name] = first, set(fleet.columns()[:, 8])
    assert fleets["affinity"][0] == fleets[router][0]
    assert fleets[router][1] == {0.0, 1.0, 2.0}


def hits(router, replicas=4):
    world = scenario(closed(24), place=deployment(400_000), turns=1500)
    fleet = Fleet(world.load, world.positions, world.plan_of, world.deployment, world.cost, replicas, 0, router=router)
    fleet.env.run(until=world.horizon_s()[1])
    turns = fleet.columns()
    fed = sum(r.meter.fed_tokens for r in fleet.replicas) / len(turns)
    return float(turns[turns[:, 7] > 0, 5].mean()), fed, np.bincount(turns[:, 8].astype(int), minlength=replicas)


def test_round_robin_spreads_turns_evenly_and_finds_caches_by_chance():
    kept, few, _ = hits("affinity")
    found, many, spread = hits("round-robin")
    assert kept == 1.0
    assert found == pytest.approx(1 / 4, abs=0.04)
    assert spread.max() - spread.min() <= 40
    assert many > 1.3 * few


@pytest.mark.parametrize("policy", ["full", TE])
def test_a_text_that_comes_back_finds_what_it_left_there_a_compacted_one_does_not(policy):
    """A lone session takes two replicas in turn: each still has it as it was two turns ago."""
    spec = SessionSpec(assemble(1000, [10] * 6, [200] * 5), (1.0,) * 6, start_s=0.0)
    world = scenario(Workload("one", (spec,)), policy, deployment(100_000))
    fleet = Fleet(
        world.load, world.positions, world.plan_of, world.deployment, world.cost, 2, 0, check=True, router="round-robin"
    )
    fleet.env.run(until=60.0)
    plan = world.plan_of(0)
    assert fleet.columns()[:, 8].tolist() == [0, 1, 0, 1, 0, 1]
    assert fleet.columns()[:, 5].tolist() == [1, 0, 0, 0, 0, 0], "all but the first turn miss"
    left = [0, 0, *(16 * -(-plan.rows(j) // 16) for j in range(4))] if policy == "full" else [0] * 6
    assert sum(r.meter.fed_tokens for r in fleet.replicas) == sum(plan.raw) - sum(left)
    assert not fleet.left, "what a session has left is forgotten with it"
    assert sum(len(r.pool.idle) for r in fleet.replicas) == 1, "and ages where it is"


def test_prefix_aware_is_affinity_while_caches_stay():
    """But for turns whose tool said more than twice as much as there was before: too little of the prompt is there."""
    assert 0.99 < hits("prefix-aware")[0] < 1.0


def test_one_replica_is_the_same_under_every_router():
    world = scenario(closed(6), place=deployment(100_000), turns=200)
    rows = [run_fleet(replace(world, router=name), 1, 0).row() | {"wall_s": 0} for name in sorted(ROUTERS)]
    assert all(row == rows[0] for row in rows)
