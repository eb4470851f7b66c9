from dataclasses import replace

import numpy as np
import pytest
from worlds import SLOS, TE, closed, deployment, scenario

from kvmill.simulator.fleet import Fleet
from kvmill.simulator.outcome import _value as promised
from kvmill.simulator.outcome import binding, observe, summarise
from kvmill.simulator.run import run_fleet
from kvmill.simulator.session import SessionSpec
from kvmill.simulator.slo import parse_slo
from kvmill.simulator.workload import Workload, assemble


def fleet_of(load, replicas=1, **fields):
    world = scenario(load, "full", deployment(**fields))
    return Fleet(load, world.positions, world.plan_of, world.deployment, world.cost, replicas, 0), world


def at_once(count, out=50_000):
    return Workload("log", (SessionSpec(assemble(100, [out], []), (0.0,), start_s=1.0),) * count)


def test_turns_that_are_still_decoding_count_with_the_ttft_they_had():
    fleet, world = fleet_of(at_once(5))
    fleet.env.run(until=20.0)
    seen = observe(fleet, 0.0, 20.0)
    assert (len(seen.finished), seen.open, seen.unserved) == (0, 5, 0)
    fed = sum(ttft < min(seen.ttft) * 1.01 for ttft in seen.ttft)
    first = world.cost.step_s(0, 0, fed, fed * 100, fed * 100 * 50, fed)
    then = world.cost.step_s(fed, fed * 100, 5 - fed, (5 - fed) * 100, (5 - fed) * 100 * 50, 5 - fed)
    assert sorted(seen.ttft) == pytest.approx([first] * fed + [first + then] * (5 - fed)), "fed in two steps"
    assert seen.e2e == pytest.approx([19.0] * 5), "their age, a lower bound"
    assert len(seen.tpot) == 0


def test_turns_that_wait_at_the_end_count_with_their_age():
    fleet, _ = fleet_of(at_once(5), max_sequences=2)
    fleet.env.run(until=20.0)
    seen = observe(fleet, 0.0, 20.0)
    assert (seen.open, seen.unserved) == (2, 3)
    assert sorted(seen.ttft)[2:] == pytest.approx([19.0] * 3)


def test_turns_of_the_warm_up_are_left_out():
    fleet, _ = fleet_of(at_once(5))
    fleet.env.run(until=20.0)
    seen = observe(fleet, 2.0, 20.0)
    assert (seen.open, seen.unserved, len(seen.ttft), len(seen.e2e)) == (0, 0, 0, 0)


def test_what_machines_did_in_the_warm_up_is_left_out(monkeypatch):
    """A burst that overwhelms the pool at once, then one request in a long calm: only the calm is measured."""
    monkeypatch.setattr("kvmill.simulator.run.SHORT_LOG", 0)
    burst = tuple(SessionSpec(assemble(2000, [400], []), (0.0,), start_s=0.0) for _ in range(30))
    calm = tuple(SessionSpec(assemble(2000, [400], []), (0.0,), start_s=900.0 + 100 * i) for i in range(2))
    run = run_fleet(scenario(Workload("log", burst + calm), place=deployment(20_000)), 1, 0)
    assert (run.requests, run.batch_max, run.preemptions) == (2, 1, 0)
    assert run.batch_mean == pytest.approx(1.0)
    assert run.busy_share < 0.02
    assert run.kv_used_share < 0.02
    busy = run_fleet(scenario(Workload("log", burst), place=deployment(20_000)), 1, 0)
    assert busy.batch_max > 1, "the burst itself is crowded"


def test_shares_of_busy_time_add_up():
    run = run_fleet(scenario(closed(30), TE, deployment(100_000), turns=3000), 2, 0)
    assert sum(run.shares.values()) == pytest.approx(1.0, abs=0.02)
    assert run.shares["prefill"] > 0
    assert run.shares["weights"] > 0


def test_a_rejected_turn_is_infinitely_late():
    load = Workload("big", (SessionSpec(assemble(9000, [10], []), (1.0,)),), agents=2)
    fleet, _ = fleet_of(load, pool_tokens=8000)
    fleet.env.run(until=10.0)
    seen = observe(fleet, 0.0, 10.0)
    assert seen.rejected > 0
    assert np.isinf(seen.ttft).sum() == seen.rejected


def test_throughput_counts_what_ends_after_the_warm_up_whenever_it_came():
    load = at_once(5, out=1000)
    fleet, world = fleet_of(load)
    fleet.env.run(until=40.0)
    found = summarise(fleet, (), world.cost, warm=2.0, end=40.0, tp=1, seed=0, wall_s=0.0)
    assert found.requests == 0, "all came before"
    assert found.throughput_requests_per_s == pytest.approx(5 / 38)
    assert found.throughput_tokens_per_s == pytest.approx(5000 / 38)


def test_the_share_that_was_never_served_is_of_all_that_came_and_saturates_by_itself():
    """Five at once, two at a time: when the first two end, two decode and one waits. No queue has grown."""
    fleet, world = fleet_of(at_once(5, out=1000), max_sequences=2)
    end = 1.0
    while len(fleet.turns) < 2:
        end += 0.5
        fleet.env.run(until=end)
    seen = observe(fleet, 0.0, end)
    assert (len(seen.finished), seen.open, seen.unserved) == (2, 2, 1)
    found = summarise(fleet, (), world.cost, warm=0.0, end=end, tp=1, seed=0, wall_s=0.0)
    assert found.unserved_share == pytest.approx(1 / 5)
    assert found.queue_growth == 0.0
    assert found.saturated


def test_a_time_without_any_turn_is_said_to_be_without_load():
    fleet, world = fleet_of(at_once(3))
    fleet.env.run(until=0.5)
    found = summarise(fleet, SLOS, world.cost, warm=0.0, end=0.5, tp=1, seed=0, wall_s=0.0)
    assert found.binding_constraint == "no load: no turn comes in the time that is measured"
    assert not found.meets(SLOS), "nothing was promised to anyone, and nothing was kept"


def test_a_promise_is_compared_with_a_latency_that_occurred():
    (slo,) = parse_slo(["ttft_p95=2"])
    assert promised(np.arange(200.0), slo) == 190.0
    assert promised(np.arange(199.0), slo) == 198.0, "too few for a p95: the largest"


@pytest.mark.parametrize(
    ("ttft", "tpot", "busy", "hint"),
    [
        (2.4, 0.02, 0.1, "; long prompts are slow even alone (raise --tp)"),
        (2.4, 0.02, 0.9, ""),
        (0.5, 0.01, 0.1, ""),
        (0.5, 0.06, 0.1, "; prefills stretch the decode steps beside them (try a smaller --token-budget)"),
    ],
    ids=["first tokens of a calm fleet", "of a busy one", "far from any limit", "decodes beside prefills"],
)
def test_where_prefill_binds_the_lever_depends_on_the_promise(ttft, tpot, busy, hint):
    world = scenario(closed(2), turns=20)
    shown = replace(
        run_fleet(world, 1, 0), values={"ttft_p95": ttft, "tpot_p95": tpot}, busy_share=busy, miss_share=0.0,
        preemptions=0, rejected=0, saturated=False, shares={"prefill": 0.6, "kv": 0.1, "host": 0.1, "compaction": 0.0},
    )  # fmt: skip
    level = "TPOT at 120%" if tpot > 0.05 else f"TTFT at {ttft / 2:.0%}"
    assert binding(shown, SLOS, world.cost) == f"prefill compute: p95 {level} of its limit, 60% of busy time{hint}"
