"""Promises that no number of replicas keeps, and what is the least that could be promised instead."""

from dataclasses import replace

import numpy as np
import pytest
from worlds import SLOS, TE, closed, deployment, scenario

from kvmill.simulator.bench import Bench, Variant
from kvmill.simulator.bounds import least_of
from kvmill.simulator.reach import hopeless, least_latencies, least_limit, out_of_reach, too_large
from kvmill.simulator.run import run_fleet
from kvmill.simulator.search import bracket, mean_meets
from kvmill.simulator.session import SessionSpec
from kvmill.simulator.slo import parse_slo
from kvmill.simulator.workload import Workload, assemble

SMALL = scenario(closed(30, tool=1500, out=150), "full", deployment(40_000), turns=400)


def prompts(long: int, of: int = 100, agents: int = 5):
    """Single turns, `long` of them of 40,000 tokens, the others of 500."""
    lengths = [40_000] * long + [500] * (of - long)
    specs = tuple(SessionSpec(assemble(tokens, [20], []), (1.0,)) for tokens in lengths)
    return scenario(Workload("prompts", specs, agents=agents), "full", deployment(), turns=400)


@pytest.mark.parametrize("promise", ["tpot_p95=0.004", "tpot_p50=0.004", "e2e_p95=0.1", "ttft_p99=0.004"])
def test_what_a_turn_alone_cannot_keep_is_decided_without_a_search(promise):
    world = replace(SMALL, slos=parse_slo([promise]))
    assert "even alone on a replica" in hopeless(world)
    with Bench([world]) as bench:
        side = bracket(bench, Variant(0), range(10), 4096)
        assert len(bench.results) == 1
        assert (side.count, side.low, side.high, side.searched) == (None, None, None, 4096)
        assert side.never == hopeless(world)
        alone = bench.run(Variant(0), 64, range(3))
    assert not mean_meets(alone, world.slos), "more machines than agents do not keep it either"


def test_what_a_turn_alone_can_keep_is_not_called_hopeless():
    assert hopeless(SMALL) is None
    assert hopeless(scenario(SMALL.workload, TE, SMALL.deployment)) is None


def test_turns_that_no_pool_holds_are_counted_as_a_fleet_rejects_them():
    world = scenario(closed(20, tool=1500, out=150, wait=0.1), "full", deployment(9_000), turns=3000)
    run = run_fleet(world, 40, 0)
    assert run.rejected / (run.rejected + run.requests) == pytest.approx(too_large(world), rel=0.15)
    assert hopeless(world).endswith("of turns are larger than one replica's pool")
    with Bench([world]) as bench:
        assert bracket(bench, Variant(0), range(10), 4096).count is None
        assert len(bench.results) == 1
    assert too_large(SMALL) < 0.05


def test_what_the_sessions_as_they_are_cannot_keep_is_said_of_a_search_that_found_nothing():
    """7 % of the turns are late anywhere: too few to rule the promise out, enough to know why no fleet was found."""
    world = replace(prompts(long=7), slos=parse_slo(["ttft_p95=0.5"]))
    assert hopeless(world) is None
    why = out_of_reach(world)
    assert why.startswith(
        "no number of replicas helps: 7.0% of turns take longer than the 0.5 s of ttft_p95 even alone"
    )
    with Bench([world]) as bench:
        side = bracket(bench, Variant(0), range(10), 64)
        assert {size for _, size, _ in bench.results} == {64}, "the largest fleet tells that smaller ones need no look"
    assert (side.count, side.never) == (None, why)
    assert out_of_reach(prompts(long=4)) is None, "a p95 allows them"


def test_the_least_limit_is_what_an_idle_fleet_shows():
    world = replace(prompts(long=20), slos=(slo := parse_slo(["ttft_p95=0.5"])[0],))
    least = least_limit(slo, least_latencies(slo, least_of(world)))
    cost = world.cost
    chunks = [8192] * 4 + [40_000 - 4 * 8192]
    starts = np.cumsum([0, *chunks[:-1]])
    alone = sum(
        cost.step_s(0, 0.0, 1, size, size * (at + size / 2), int(at == starts[-1]))
        for at, size in zip(starts, chunks, strict=True)
    )
    assert least == pytest.approx(alone)
    assert f"no limit below {least:.3g} s can be kept" in hopeless(world)
    runs = [run_fleet(world, 40, seed) for seed in range(3)]
    assert all(run.ttft_s["p95"] == pytest.approx(least, rel=1e-6) for run in runs)


def test_the_smallest_tensor_parallel_size_that_would_do_is_named():
    world = prompts(long=20)
    slo = parse_slo(["ttft_p95=1"])[0]

    def at(tp):
        wider = replace(world, deployment=replace(world.deployment, tp=tp))
        return least_limit(slo, least_latencies(slo, least_of(wider)))

    assert at(1) > at(2) > at(4) > at(8)
    for limit, tp in (((at(1) + at(2)) / 2, 2), ((at(2) + at(4)) / 2, 4), (at(8) / 2, 8)):
        why = out_of_reach(replace(world, slos=(replace(slo, limit_s=limit),)))
        assert f" s can be kept, {at(tp):.3g} s with --tp {tp} (estimated)" in why


def test_turns_of_one_token_have_no_tpot():
    spec = SessionSpec(assemble(500, [1], []), (1.0,))
    world = scenario(Workload("one", (spec,), agents=1), "full", deployment(), turns=10)
    assert len(least_latencies(SLOS[1], least_of(world))) == 0
    assert out_of_reach(world) is None
