import math
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import SLOS, TE, closed, deployment, scenario

from kvmill.simulator.bench import Bench, Variant
from kvmill.simulator.run import run_fleet
from kvmill.simulator.search import WIDEST, Level, bracket, mean_meets, smallest, verdict
from kvmill.simulator.slo import parse_slo


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
    assert level.mean == pytest.approx(2.0), "the geometric mean, which is what the interval is about"
    assert (level.low, level.high) == pytest.approx((2 * math.exp(-half), 2 * math.exp(half)), rel=1e-6)
    assert Level.of([1.0, math.inf]).low == 1.0
    assert math.isinf(Level.of([1.0, math.inf]).mean)


SKEWED = [0.5] * 9 + [18]  # arithmetic mean 2.25, beyond a limit of 2; interval of the geometric mean within it


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(st.floats(1e-3, 1e3), min_size=2, max_size=12), st.floats(1e-3, 1e3))
def test_the_mean_lies_in_its_interval_and_what_meets_has_a_mean_that_meets(values, limit):
    level = Level.of(values)
    assert level.low <= level.mean <= level.high
    assert level.mean == pytest.approx(math.prod(v ** (1 / len(values)) for v in values))
    slos = parse_slo({"ttft_p95": limit})
    found = fake(*values)
    assert mean_meets(found, slos) or verdict(found, slos) != "meets"
    assert not (mean_meets(found, slos) and verdict(found, slos) == "fails")


def test_one_outlier_does_not_make_the_mean_and_the_interval_disagree():
    level = Level.of(SKEWED)
    assert level.low < level.mean < level.high < 2
    assert verdict(fake(*SKEWED), SLOS) == "meets"
    assert mean_meets(fake(*SKEWED), SLOS)


BASE = run_fleet(scenario(closed(2), turns=50), 1, 0)


def fake(*values):
    return [replace(BASE, values={"ttft_p95": t, "tpot_p95": 0.01}) for t in values]


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


class Scripted(Bench):
    """A bench whose runs are made up: `levels(n)` gives the TTFT of every replication on n replicas."""

    def __init__(self, levels):
        super().__init__([SMALL])
        self.levels = levels

    def run(self, variant, replicas, seeds):
        return [fake(self.levels(replicas)[seed])[0] for seed in seeds]


def test_a_size_that_meets_ends_the_search_with_an_answer():
    side = bracket(Scripted(lambda n: SKEWED if n >= 9 else [30.0] * 10), Variant(0), range(10), 64)
    assert (side.low, side.count, side.high) == (9, 9, 9)


def test_a_pilot_that_hoped_too_much_does_not_lose_the_answer():
    """Two lucky replications from 3 on; all ten meet from 40 on only, far beyond the sizes around the pilot's."""
    luck = lambda n: [1.0] * 10 if n >= 40 else [1.0, 1.0, *[50.0] * 8] if n >= 3 else [50.0] * 10  # noqa: E731
    side = bracket(Scripted(luck), Variant(0), range(10), 512)
    assert (side.low, side.count, side.high) == (40, 40, 40)
    assert len(side.results) < 4 * WIDEST


def test_no_answer_is_given_only_when_the_largest_fleet_was_looked_at():
    luck = lambda n: [1.0, 1.0, *[50.0] * 8] if n >= 3 else [50.0] * 10  # noqa: E731
    side = bracket(Scripted(luck), Variant(0), range(10), 50)
    assert (side.low, side.count, side.high) == (None, None, None)
    assert max(side.results) == 50


def test_an_undecided_size_whose_mean_meets_is_the_answer_but_not_its_upper_end():
    sizes = {5: [3.0, 40.0] * 5, 6: [0.5, 6.0] * 5, 7: [0.5, 1.0] * 5}
    side = bracket(Scripted(lambda n: sizes.get(n, [90.0] * 10 if n < 5 else [0.5] * 10)), Variant(0), range(10), 64)
    assert verdict(side.results[6], SLOS) == "undecided"
    assert (side.low, side.count, side.high) == (6, 6, 7)


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
