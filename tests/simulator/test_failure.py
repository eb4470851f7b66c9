"""A replica that breaks down: what it had is lost, its turns start over elsewhere, nothing else is lost."""

import numpy as np
import pytest
from worlds import closed, deployment, scenario, sessions

from kvmill.errors import UserError
from kvmill.simulator.failure import Failure
from kvmill.simulator.fleet import Fleet
from kvmill.simulator.routers import counted
from kvmill.simulator.run import run_fleet
from kvmill.simulator.session import SessionSpec
from kvmill.simulator.workload import Workload, assemble


def fleet_of(world, replicas, **options):
    return Fleet(
        world.load, world.positions, world.plan_of, world.deployment, world.cost, replicas, 0, check=True, **options
    )


def test_a_failure_begins_after_its_share_of_the_measured_time_or_at_its_second():
    assert Failure(10.0).moment(100.0, 300.0) == 200.0
    assert Failure(10.0, at_share=0.25).moment(100.0, 300.0) == 150.0
    assert Failure(10.0, at_s=7.0).moment(100.0, 300.0) == 7.0


@pytest.mark.parametrize("fields", [{"outage_s": 0.0}, {"outage_s": 1.0, "at_s": -1.0}, {"outage_s": 1, "at_share": 2}])
def test_failures_that_cannot_be_are_refused(fields):
    with pytest.raises(UserError):
        Failure(**fields)


def test_a_lone_replica_keeps_its_turns_waiting_until_it_is_back():
    """One turn of 100 tokens is under way: it starts over when the replica is back, and counts from its arrival."""
    spec = SessionSpec(assemble(1000, [100], []), (0.0,), start_s=0.0)
    world = scenario(Workload("one", (spec,)), place=deployment())
    alone, broken = fleet_of(world, 1), fleet_of(world, 1)
    alone.env.run(until=60.0)
    broken.after(0.2, broken.fail, 0, 30.0)
    broken.env.run(until=60.0)
    (plain,), (late,) = alone.turns, broken.turns
    assert 0.2 < plain[3] < 30
    assert late[0] == plain[0] == 0.0
    assert late[1] == pytest.approx(30.2 + plain[1], rel=1e-9), "TTFT from the first arrival"
    assert late[3] == pytest.approx(30.2 + plain[3], rel=1e-9)
    assert late[2] == pytest.approx(plain[2], rel=1e-9)


def test_open_turns_start_over_on_other_replicas_and_every_cache_is_gone():
    world = scenario(closed(30), place=deployment(300_000))
    log = []
    fleet = fleet_of(world, 3, log=log)
    fleet.env.run(until=20.0)
    lived = {live.agent for live in fleet.live if live.replica == 0}
    running = {live.agent for live in fleet.replicas[0].running}
    assert lived > running
    assert running
    fleet.fail(0, 1000.0)
    assert fleet.replicas[0].load == 0
    assert not fleet.replicas[0].pool.idle
    assert all(live.replica != 0 for live in fleet.live)
    before = len(fleet.turns)
    fleet.env.run(until=60.0)
    rows = fleet.columns()[before:]
    assert set(rows[:, 8]) == {1.0, 2.0}, "nothing is served by the replica that is down"
    first = {agent: rows[rows[:, 6] == agent][0] for agent in lived if (rows[:, 6] == agent).any()}
    assert len(first) > 5
    assert all(row[5] == 0 or row[7] == 0 for row in first.values()), "a later turn finds no cache"
    fleet.env.run(until=200.0)
    assert sum(r.load for r in fleet.replicas) == sum(counted(live) for live in fleet.live)


def test_a_replica_that_is_back_is_used_again():
    world = scenario(closed(30), place=deployment(300_000))
    fleet = fleet_of(world, 3)
    fleet.after(10.0, fleet.fail, 1, 20.0)
    fleet.env.run(until=200.0)
    rows = fleet.columns()
    served = rows[rows[:, 8] == 1]
    ends = served[:, 0] + served[:, 3]
    assert not ((ends > 10.0) & (ends < 30.0)).any()
    assert (ends > 30.0).sum() > 20


def test_a_failure_costs_latency_and_loses_no_turn():
    load = closed(40, tool=1500, out=100, turns=10)
    calm, broken = (
        scenario(load, place=deployment(200_000), turns=1200, failure=failure) for failure in (None, Failure(60.0))
    )
    plain, late = run_fleet(calm, 3, 0), run_fleet(broken, 3, 0)
    assert late.e2e_s["p95"] > plain.e2e_s["p95"]
    assert late.miss_share > plain.miss_share
    assert late.rejected == 0


def test_what_waits_for_a_replica_is_counted_as_unserved():
    world = scenario(Workload("w", sessions(10, turns=2), rate=1.0), place=deployment())
    fleet = fleet_of(world, 1)
    fleet.after(5.0, fleet.fail, 0, 1e6)
    fleet.env.run(until=50.0)
    assert len(fleet.stranded) > 20
    assert {live for live in fleet.live if live.pending} == set(fleet.stranded)
    assert np.all(fleet.columns()[:, 0] + fleet.columns()[:, 3] <= 5.0)


@pytest.mark.parametrize(("replicas", "kept"), [(1, False), (2, True)])
def test_no_promise_is_kept_by_a_fleet_that_ends_with_nobody_to_serve(replicas, kept):
    """Few agents, many turns before the failure: those that wait for ever are fewer than a p95 leaves out."""
    world = scenario(closed(3, turns=4), place=deployment(), turns=400, failure=Failure(1e300))
    run = run_fleet(world, replicas, 0)
    assert run.ttft_s["p95"] < 1, "the turns that were served were served well"
    assert run.meets(world.slos) is kept
    assert (run.binding_constraint == "failure: no replica works when the run ends, 3 turns wait for one") is not kept


def test_a_fleet_that_was_out_and_is_back_is_judged_by_its_turns():
    world = scenario(closed(3, turns=4), place=deployment(), turns=400, failure=Failure(1.0))
    assert run_fleet(world, 1, 0).meets(world.slos)


def test_a_replica_that_is_down_cannot_fail_again():
    world = scenario(closed(3), place=deployment())
    fleet = fleet_of(world, 2)
    fleet.fail(0, 10.0)
    with pytest.raises(UserError, match="replica 0 cannot fail: 2 replicas, 1 of them work"):
        fleet.fail(0, 10.0)
