from dataclasses import replace

import numpy as np
import pytest
from worlds import SLOS, TE, closed, deployment, scenario, sessions

from kvmill.simulator.bench import Bench, Variant
from kvmill.simulator.bounds import demand, least_of, lower_bound, resident_blocks, resident_guess
from kvmill.simulator.run import run_fleet
from kvmill.simulator.search import bracket, mean_meets
from kvmill.simulator.session import SessionSpec
from kvmill.simulator.slo import parse_slo
from kvmill.simulator.workload import Workload, assemble

SMALL = scenario(closed(30, tool=1500, out=150), "full", deployment(40_000), turns=400)
BUSY = sessions(40, turns=6, tool=1500, out=150, wait=0.5)


@pytest.mark.parametrize("policy", ["full", TE])
@pytest.mark.parametrize("arrivals", [{"agents": 300}, {"rate": 8.0}])
def test_a_fleet_below_the_lower_bound_has_too_few_seconds(policy, arrivals):
    world = scenario(Workload("busy", BUSY, **arrivals), policy, deployment(), turns=4000)
    bound = lower_bound(world)
    assert bound >= 2
    with Bench([world]) as bench:
        below = bench.run(Variant(0), bound - 1, range(3))
    assert not mean_meets(below, SLOS)
    assert all(run.busy_share > 0.9 for run in below)


def test_the_lower_bound_is_not_far_below_what_seconds_alone_demand():
    """Roomy pools, so that no turn loses its cache: an open queue needs little more than its load."""
    world = scenario(Workload("busy", BUSY, rate=8.0), "full", deployment(), turns=1500)
    bound = lower_bound(world)
    runs = [run_fleet(world, 3 * bound, seed) for seed in range(2)]
    spent = sum(run.busy_share * 3 * bound for run in runs) / 2
    assert bound - 1 < spent, "no more than what is really spent"
    faster = replace(world, slowdown=0.5)
    assert lower_bound(faster) == pytest.approx(bound / 2, abs=1)


def test_a_median_says_too_little_of_the_mean_for_a_bound():
    world = replace(SMALL, workload=closed(2000), slos=parse_slo(["ttft_p50=2", "tpot_p50=0.05"]))
    assert lower_bound(world) == 1 < lower_bound(replace(world, slos=SLOS))


def test_the_least_of_a_turn_is_less_than_what_any_simulated_turn_took():
    """Every turn of every session, in a fleet where most are alone: none is faster than its least."""
    world = scenario(closed(4, tool=1500, out=150), "full", turns=300)
    least = least_of(world)
    seen = []
    run_fleet(world, 4, 0, watch=lambda fleet, warm, end: seen.append(fleet))
    turns = seen[0].columns()
    known = np.unique([turn.outputs for turn in least])
    assert set(turns[:, 4].astype(int)) <= set(known.tolist())
    fastest = {n: min(t.tpot_s for t in least if t.outputs == n) for n in known.tolist() if n > 1}
    quickest = {n: min(t.prefill_s for t in least if t.outputs == n) for n in known.tolist()}
    for _, ttft, tpot, _, output, *_ in turns:
        assert ttft >= quickest[int(output)] * (1 - 1e-9)
        assert output == 1 or tpot >= fastest[int(output)] * (1 - 1e-9)


def test_a_pool_too_small_for_the_decodes_that_are_due_bounds_the_fleet():
    """Little's law on blocks: the bound is not undercut by a fleet that meets, and seconds alone say less."""
    load = Workload("busy", sessions(40, turns=2, tool=200, out=900, wait=5.0), rate=4.0)
    tight = scenario(load, "full", deployment(16_000), turns=1500)
    roomy = scenario(load, "full", deployment(), turns=1500)
    bound = lower_bound(tight)
    assert bound > lower_bound(roomy)
    with Bench([tight]) as bench:
        assert not mean_meets(bench.run(Variant(0), bound - 1, range(3)), SLOS)


def test_few_sequences_at_once_bound_the_fleet():
    load = Workload("busy", sessions(40, turns=2, tool=200, out=900, wait=5.0), rate=4.0)
    narrow = scenario(load, "full", deployment(max_sequences=8), turns=1500)
    assert lower_bound(narrow) > lower_bound(scenario(load, "full", deployment(), turns=1500))


def test_the_guess_holds_every_agent():
    assert resident_guess(SMALL) == pytest.approx(resident_blocks(SMALL) / SMALL.deployment.blocks(), abs=0.5)
    assert resident_blocks(replace(SMALL, workload=closed(60, tool=1500, out=150))) == pytest.approx(
        2 * resident_blocks(SMALL)
    )


def test_a_demand_beyond_the_largest_fleet_is_decided_without_a_search():
    world = scenario(Workload("busy", sessions(40, turns=6, tool=1500, out=150, wait=0.5), rate=50.0), turns=200)
    with Bench([world]) as bench:
        side = bracket(bench, Variant(0), range(10), 2)
        assert len(bench.results) == 1
    assert side.never.startswith("the turns demand ")
    assert side.bound > side.searched == 2


def test_the_blocks_that_decoding_turns_hold_are_littles_law_to_the_digit():
    load = Workload("one", (SessionSpec(assemble(1000, [801], []), (0.0,)),), rate=2.0)
    world = scenario(load, "full", deployment(4000), turns=100)
    pool, cost = world.deployment.blocks(), world.cost
    lone_s = 800 * (cost.fixed_s(1) + cost.decode_attention_s(1, 1000))
    assert demand(world) == pytest.approx(2.0 * lone_s * 63 / pool)
