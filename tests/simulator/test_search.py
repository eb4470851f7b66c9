import math
from itertools import pairwise

import pytest
from worlds import SLOS, TE, closed, deployment, scenario

from kvmill.simulator.bench import Bench, Variant
from kvmill.simulator.run import run_fleet
from kvmill.simulator.search import Level, bracket, lower_bound, mean_meets, smallest, verdict


@pytest.mark.parametrize("truth", [1, 2, 7, 50, 99, 100])
@pytest.mark.parametrize("start", [1, 5, 50, 100, 500])
def test_the_smallest_size_is_found_from_any_start(truth, start):
    asked = []

    def meets(n):
        asked.append(n)
        return n >= truth

    assert smallest(meets, 1, 100, start) == truth
    assert all(1 <= n <= 100 for n in asked)


def test_no_size_is_an_answer_and_the_lower_bound_is_not_undercut():
    assert smallest(lambda n: False, 3, 40, 10) is None
    assert smallest(lambda n: True, 3, 40, 10) == 3


def test_the_interval_is_students_t_on_logarithms():
    level = Level.of([1.0, 2.0, 4.0])
    half = 4.302653 * math.log(2) / math.sqrt(3)
    assert level.mean == pytest.approx(7 / 3)
    assert (level.low, level.high) == pytest.approx((2 * math.exp(-half), 2 * math.exp(half)), rel=1e-6)
    assert Level.of([1.0, math.inf]).low == 1.0
    assert math.isinf(Level.of([1.0, math.inf]).mean)


def fake(*values):
    base = run_fleet(scenario(closed(2), turns=50), 1, 0)
    from dataclasses import replace

    return [replace(base, values={"ttft_p95": t, "tpot_p95": 0.01}) for t in values]


def test_verdicts_compare_the_interval_with_the_limit():
    assert verdict(fake(1.0, 1.1, 0.9), SLOS) == "meets"
    assert verdict(fake(9.0, 9.1, 8.9), SLOS) == "fails"
    assert verdict(fake(1.0, 2.0, 2.6), SLOS) == "undecided"
    assert mean_meets(fake(1.0, 2.0, 2.6), SLOS)


SMALL = scenario(closed(30, tool=1500, out=150), "full", deployment(40_000), turns=400)


def test_the_bracket_holds_the_answer_and_its_neighbours():
    with Bench([SMALL]) as bench:
        side = bracket(bench, Variant(0), range(5), 64)
    assert side.count is not None
    assert side.bound <= side.low <= side.count <= (side.high or 64)
    assert mean_meets(side.results[side.count], SLOS)
    if side.low > side.bound:
        assert verdict(side.results[side.low - 1], SLOS) == "fails"
    assert all(len(results) == 5 for results in side.results.values())
    assert sorted(side.results) == list(range(min(side.results), max(side.results) + 1))


def test_more_replicas_never_hurt_beyond_noise():
    with Bench([SMALL]) as bench:
        p95 = [sum(r.values["ttft_p95"] for r in bench.run(Variant(0), n, range(3))) / 3 for n in (2, 4, 8, 16)]
    assert all(later <= earlier * 1.1 for earlier, later in pairwise(p95))


def test_keeping_less_never_needs_more():
    with Bench(
        [scenario(SMALL.workload, f"te(proxy=boundary,keep={k})", SMALL.deployment, turns=400) for k in (1, 0.5, 0.1)]
    ) as bench:
        counts = [bracket(bench, Variant(i), range(3), 64).count for i in range(3)]
    assert counts == sorted(counts, reverse=True)


def test_the_lower_bound_is_what_the_seconds_demand():
    bound = lower_bound(SMALL)
    with Bench([SMALL, scenario(SMALL.workload, TE, SMALL.deployment, turns=400)]) as bench:
        assert bracket(bench, Variant(0), range(3), 64).count >= bound
    faster = scenario(SMALL.workload, "full", SMALL.deployment, turns=400, slowdown=0.01)
    assert lower_bound(faster) <= bound


def test_results_do_not_depend_on_the_number_of_processes():
    with Bench([SMALL], workers=1) as one, Bench([SMALL], workers=2) as two:
        job = (Variant(0, 1.05, 0.3), 6, [0, 1, 2])
        alone, spread = one.run(*job), two.run(*job)
    assert [r.row() | {"wall_s": 0} for r in alone] == [r.row() | {"wall_s": 0} for r in spread]


def test_a_slower_machine_is_the_same_scenario_compiled_anew():
    slow = scenario(SMALL.workload, TE, SMALL.deployment, turns=300, slowdown=1.08)
    with Bench([scenario(SMALL.workload, TE, SMALL.deployment, turns=300)]) as bench:
        (reused,) = bench.run(Variant(0, slowdown=1.08), 4, [0])
    assert reused.row() | {"wall_s": 0} == run_fleet(slow, 4, 0).row() | {"wall_s": 0}
