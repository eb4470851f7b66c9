import pickle

import pytest
from worlds import TE, closed, deployment, scenario

from kvmill.simulator import run
from kvmill.simulator.run import Scenario, run_fleet
from kvmill.simulator.session import SessionSpec
from kvmill.simulator.slo import parse_slo
from kvmill.simulator.workload import Workload, assemble


def test_session_plans_travel_with_a_scenario_and_are_not_made_again(monkeypatch):
    made = scenario(closed(5), TE, deployment(), turns=50).compiled()
    copy = pickle.loads(pickle.dumps(made))
    monkeypatch.setattr(run, "compile_session", lambda *_: pytest.fail("a plan is made again"))
    assert copy == made
    assert copy.plan_of(3) == made.plan_of(3)
    assert run_fleet(copy, 1, 0).row() | {"wall_s": 0} == run_fleet(made, 1, 0).row() | {"wall_s": 0}


def test_a_scenario_without_plans_is_pickled_too():
    fresh = scenario(closed(5), TE)
    assert "plans" not in pickle.loads(pickle.dumps(fresh)).__dict__


def burst(limit, count=250):
    """As many requests as make a log long, all of them at once."""
    specs = tuple(SessionSpec(assemble(6000, [50], []), (0.0,), start_s=0.0) for _ in range(count))
    return Scenario(Workload("log", specs), "full", deployment(), parse_slo([f"ttft_p95={limit}"]))


@pytest.mark.parametrize("limit", [0.5, 2.0, 5.0])
def test_a_log_is_not_over_before_its_last_turn_could_break_a_promise(limit):
    """Prefills of 6,000 tokens one after the other: whether 95 % of them are through by then is a division."""
    world = burst(limit)
    alone = world.cost.step_s(0, 0.0, 1, 6000, 6000 * 3000.0, 1)
    for replicas in (2, 6, 10, 25, 60):
        through_s = 0.95 * 250 / replicas * alone
        if not 0.7 < through_s / limit < 1.3:
            run = run_fleet(world, replicas, 0)
            assert run.meets(world.slos) == (through_s < limit), (replicas, through_s, run.values)


def test_a_burst_at_the_beginning_is_no_warm_up():
    assert burst(2.0).horizon_s()[0] == 0.0
    assert run_fleet(burst(60.0), 4, 0).requests == 250
    assert burst(1e12).horizon_s()[1] < 4000, "an absurd promise is not waited for"


@pytest.mark.parametrize("agents", [40, 4000])
def test_ten_times_the_agents_are_watched_as_long_as_it_takes(agents):
    """5,000 turns of many agents are over in less than one of their cycles, or than a first token may take."""
    world = Scenario(closed(agents), "full", deployment(), parse_slo(["ttft_p95=30"]))
    warm, end = world.horizon_s()
    cycle = world.positions.mean_cycle_s
    assert end - warm == pytest.approx(max(5000 * cycle / agents, 5 * cycle, 120.0))
    assert warm == pytest.approx((end - warm) / 2)
    asked = Scenario(closed(agents), "full", deployment(), parse_slo(["ttft_p95=30"]), turns=100)
    warm, end = asked.horizon_s()
    assert end - warm == pytest.approx(100 * cycle / agents), "as many as were asked for"


def test_no_load_is_so_large_that_nobody_waits_long_enough():
    """Turns that were never served have an age, which is no latency: however short the run, nothing is kept."""
    world = scenario(closed(3000), place=deployment(60_000), turns=60)
    run = run_fleet(world, 1, 0)
    assert (run.requests, run.unserved_share) == (0, 1.0)
    assert not run.meets(world.slos)
    assert not run.meets(world.slos[:1]), "the age of those that wait is below its limit"
