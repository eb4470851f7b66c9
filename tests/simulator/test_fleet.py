from dataclasses import replace

import numpy as np
import pytest
from worlds import TE, closed, deployment, scenario, sessions

from kvmill.errors import UserError
from kvmill.simulator.fleet import Fleet
from kvmill.simulator.routers import counted
from kvmill.simulator.run import run_fleet
from kvmill.simulator.session import SessionSpec
from kvmill.simulator.workload import Workload, assemble


def test_the_same_seed_gives_the_same_run_and_another_seed_another():
    load = closed(20)
    first, again, other = (run_fleet(scenario(load), 2, seed) for seed in (0, 0, 1))
    assert first.row() | {"wall_s": 0} == again.row() | {"wall_s": 0}
    assert first.ttft_s != other.ttft_s


def test_policies_and_fleet_sizes_meet_the_same_agents():
    load = closed(20)
    logs = []
    for policy, replicas in (("full", 2), ("full", 3), (TE, 2)):
        log = []
        run_fleet(scenario(load, policy, deployment(300_000), turns=300), replicas, 0, log=log)
        first_turns = {}
        for event, agent, turn, made, *_ in log:
            if event == "done":
                first_turns.setdefault(agent, (turn, made))
        logs.append(first_turns)
    both = logs[0].keys() & logs[1].keys() & logs[2].keys()
    assert len(both) == 20
    assert all(logs[0][agent] == logs[1][agent] == logs[2][agent] for agent in both)


def test_a_session_stays_with_its_replica_and_load_is_spread():
    log = []
    run = run_fleet(scenario(closed(30), "full", deployment(300_000)), 3, 0, log=log)
    assert run.miss_share == 0, "every turn finds its cache: it came back to the same replica"
    assert run.batch_max < 30


def test_sessions_whose_cache_is_gone_move_to_a_replica_with_fewer_rows():
    load = closed(40, tool=1500, out=100, turns=10)
    place = deployment(60_000)
    tight = scenario(load, "full", place, turns=800)
    loads = []
    for replicas in (3, 6):
        fleet = Fleet(load, tight.positions, tight.plan_of, place, tight.cost, replicas, 0, check=True)
        fleet.env.run(until=tight.horizon_s()[1])
        assert sum(r.load for r in fleet.replicas) == sum(counted(live) for live in fleet.live)
        assert sum(r.pool.evictions for r in fleet.replicas) > 0
        loads.append(np.std([r.load for r in fleet.replicas]) / np.mean([r.load for r in fleet.replicas]))
    assert max(loads) < 0.35


def test_the_start_is_the_stationary_state():
    """Figures of a run's first part and of a run five times as long agree: nothing drifts once measuring begins."""
    load = closed(40, tool=1500, out=100, turns=10)
    short, long = (scenario(load, "full", deployment(120_000), turns=turns) for turns in (1500, 9000))
    early = np.mean([run_fleet(short, 5, seed).values["ttft_p95"] for seed in range(4)])
    late = np.mean([run_fleet(long, 5, seed).values["ttft_p95"] for seed in range(2)])
    assert early == pytest.approx(late, rel=0.25)


@pytest.mark.parametrize("retention", ["lru", "ttl:3", "offload"])
def test_the_start_holds_what_retention_would_have_kept(retention):
    """More sessions than the pool holds: the least recently active have no cache, or one in host memory."""
    world = scenario(closed(60), place=deployment(60_000, retention=retention))
    fleet = Fleet(world.load, world.positions, world.plan_of, world.deployment, world.cost, 1, 0, check=True)
    cache, pool = fleet.replicas[0].cache, fleet.replicas[0].pool
    pool.check(0)
    cache.host.check()
    idle = list(pool.idle)
    away = [live for live in fleet.live if live not in pool.idle]
    assert idle
    assert away
    assert [live.since for live in idle] == sorted(live.since for live in idle), "the least recent first"
    assert all(live.since >= -cache.ttl_s for live in idle)
    if retention == "lru":
        assert pool.free < 60_000 // 16 / 4
    hosted = {live for live in away if live.host}
    assert (hosted == set(away)) == (retention == "offload")
    fleet.env.run(until=30.0)
    cache.host.check()


def test_an_open_workload_serves_what_arrives():
    load = Workload("open", sessions(40, turns=4), rate=0.5)
    run = run_fleet(scenario(load, "full", deployment(), turns=2000), 2, 0)
    turns = np.mean([len(s.waits) for s in load.sessions])
    assert run.throughput_requests_per_s == pytest.approx(0.5 * turns, rel=0.15)


def test_a_recorded_workload_begins_its_sessions_when_the_log_says():
    specs = tuple(SessionSpec(assemble(100, [5], []), (0.0,), start_s=10.0 * i) for i in range(50))
    log = []
    run_fleet(scenario(Workload("log", specs)), 1, 0, log=log)
    admitted = [entry[-1] for entry in log if entry[0] == "admit"]
    assert admitted == pytest.approx([10.0 * i for i in range(50)])


def test_a_session_that_no_pool_can_hold_is_counted_not_lost():
    run = run_fleet(scenario(closed(10, tool=3000), "full", deployment(8_000)), 1, 0)
    assert run.rejected > 0
    assert "larger than one replica's pool" in run.binding_constraint
    assert not run.meets(scenario(closed(1)).slos)


def test_saturation_is_seen_and_said():
    load = Workload("open", sessions(40, turns=4, tool=2000), rate=2.0)
    run = run_fleet(scenario(load, "full", deployment(), turns=3000), 1, 0)
    assert run.unserved_share > 0.2
    assert "and growing" in run.binding_constraint
    calm = run_fleet(scenario(load, "full", deployment(), turns=3000), 40, 0)
    assert calm.unserved_share < 0.01
    assert "growing" not in calm.binding_constraint


def test_nothing_is_waited_for_after_a_session():
    """An agent whose last turn ends begins its next session at once, and so does one that is found in a last turn."""
    load = Workload("alone", (SessionSpec(assemble(64, [10, 10], [5]), (1.0, 1e6)),), agents=1)
    log = []
    run_fleet(scenario(load, place=deployment(), turns=40), 1, 3, log=log)
    ends = {turn: [entry[-1] for entry in log if entry[0] == "done" and entry[2] == turn] for turn in (0, 1)}
    begins = [entry[-1] for entry in log if entry[0] == "admit" and entry[2] == 0]
    assert len(ends[1]) > 10
    assert set(ends[1]) - {max(ends[1])} <= set(begins), "the next session begins when the last ends"
    assert min(begins) < 1.0


@pytest.mark.parametrize("burstiness", [1.0, 3.0])
def test_open_workloads_start_with_as_many_sessions_as_are_there_later(burstiness):
    """Little's law: rate × mean session, from the first moment on, in bursts too."""
    load = Workload("open", sessions(40, turns=6, wait=20.0), rate=2.0, burstiness=burstiness)
    world = scenario(load, place=deployment())
    expected = 2.0 * world.positions.mean_session_s
    counts = []
    for seed in range(30):
        fleet = Fleet(load, world.positions, world.plan_of, world.deployment, world.cost, 3, seed)
        counts.append(len(fleet.live))
    last_turns = 1 - np.mean(
        [
            place.turn + 1 < world.positions.turns[place.session]
            for place in world.positions.draw(np.random.default_rng(0), 4000)
        ]
    )  # those are over, or will be when the turn under way ends
    assert np.mean(counts) == pytest.approx(expected * (1 - last_turns), rel=0.03 * burstiness)
    fleet.env.run(until=200.0)
    assert len(fleet.live) == pytest.approx(expected, rel=0.25 * burstiness)


def test_bursts_make_turns_wait_longer():
    load = Workload("open", sessions(40, turns=4), rate=1.5)
    late = []
    for burstiness in (1.0, 4.0):
        world = scenario(replace(load, burstiness=burstiness), turns=3000)
        late.append(np.mean([run_fleet(world, 3, seed).ttft_s["p95"] for seed in range(2)]))
    assert late[1] > 1.2 * late[0]


def test_a_scaled_log_begins_more_sessions_in_the_same_span():
    specs = tuple(SessionSpec(assemble(100, [5], []), (0.0,), start_s=float(i * i % 97)) for i in range(60))
    log = []
    run_fleet(scenario(Workload("log", specs).at_load(3.0), place=deployment()), 1, 0, log=log)
    admitted = [entry[-1] for entry in log if entry[0] == "admit"]
    assert len(admitted) == pytest.approx(180, abs=4)
    assert max(admitted) <= max(spec.start_s for spec in specs) + 1


def test_sessions_wait_in_line_not_in_memory():
    """A log is gone through session by session: what is planned ahead does not grow with it."""
    specs = tuple(SessionSpec(assemble(100, [5], []), (0.0,), start_s=10.0 * i) for i in range(5000))
    world = scenario(Workload("log", specs), place=deployment())
    fleet = Fleet(world.load, world.positions, world.plan_of, world.deployment, world.cost, 1, 0)
    assert len(fleet.env._queue) < 10
    fleet.env.run(until=5000.0)
    assert len(fleet.live) < 5
    assert len(fleet.turns) == pytest.approx(500, abs=1)


def test_more_than_can_be_simulated_is_refused_before_it_fills_the_memory():
    with pytest.raises(UserError, match="20,000 replicas: up to 16,384"):
        run_fleet(scenario(closed(5)), 20_000, 0)
    with pytest.raises(UserError, match="10,000,000,000 sessions at once"):
        run_fleet(scenario(closed(10**10)), 1, 0)
