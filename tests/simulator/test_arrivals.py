"""Gaps against the closed forms of the Gamma law; recorded starts against their own gaps; draws against chance."""

import random
from collections import Counter
from itertools import islice, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmill.errors import UserError
from kvmill.simulator.arrivals import Renewal, neighbour, pick, recorded


@pytest.mark.parametrize("burstiness", [0.3, 1.0, 2.0, 3.0])
def test_gaps_have_the_mean_and_the_coefficient_of_variation_that_were_asked_for(burstiness):
    times = list(islice(Renewal(5.0, burstiness).times(random.Random(0), 0.0), 200_001))
    gaps = np.diff(times)
    assert gaps.mean() == pytest.approx(0.2, rel=4 * burstiness / np.sqrt(len(gaps)))
    assert gaps.std() / gaps.mean() == pytest.approx(burstiness, rel=0.03)


def test_burstiness_1_is_poisson():
    """Counts in windows have the variance of their mean; in bursty arrivals about burstiness² times as much."""
    for burstiness in (1.0, 3.0):
        times = list(islice(Renewal(1.0, burstiness).times(random.Random(1), 0.0), 100_000))
        counts = np.bincount((np.array(times) // 200.0).astype(int))[:-1]
        assert counts.var() / counts.mean() == pytest.approx(burstiness**2, rel=0.2)


@pytest.mark.parametrize("burstiness", [0.5, 1.0, 2.5])
def test_now_is_a_random_moment_of_a_process_that_has_always_been_going(burstiness):
    """Mean time to the next arrival, and since the last one: E[gap²]/2E[gap] = (1 + cv²)/2λ; rate·T arrivals in T."""
    rng = np.random.default_rng(3)
    law = Renewal(2.0, burstiness)
    drawn = [law.before(rng, 50.0) for _ in range(6000)]
    inspection = (1 + burstiness**2) / (2 * law.rate)
    assert np.mean([first for _, first in drawn]) == pytest.approx(inspection, rel=0.1)
    assert np.mean([len(ages) for ages, _ in drawn]) == pytest.approx(100, rel=0.02)
    assert all((np.diff(ages) >= 0).all() and (ages < 50).all() for ages, _ in drawn[:100])


def test_a_start_that_looks_back_too_far_is_refused():
    with pytest.raises(UserError, match="sessions begin while the longest of them"):
        Renewal(1e6, 2.0).before(np.random.default_rng(0), 1e6)


STARTS = np.cumsum(np.random.default_rng(0).gamma(0.25, 4.0, 2000))  # bursty: a coefficient of variation of 2


def test_recorded_starts_are_kept_as_they_are():
    assert recorded(STARTS[::-1], 1.0, np.random.default_rng(0)).tolist() == STARTS.tolist()


@pytest.mark.parametrize("scale", [0.4, 2.0, 3.7])
def test_a_scaled_log_has_so_many_more_sessions_in_the_same_span_with_gaps_that_vary_as_before(scale):
    times = recorded(STARTS, scale, np.random.default_rng(1))
    assert STARTS[0] <= times[0]
    assert times[-1] <= STARTS[-1]
    assert len(times) == pytest.approx(scale * len(STARTS), rel=0.1 if scale < 1 else 0.03)
    before, after = np.diff(STARTS), np.diff(times)
    assert (after >= 0).all()
    varies = [gaps.std() / gaps.mean() for gaps in (before, after)]
    assert varies[1] == pytest.approx(varies[0], rel=0.1)


def test_a_log_gone_through_twice_as_fast_has_every_gap_twice_at_half_its_length():
    starts = np.array([0.0, 1.0, 5.0, 12.0])
    times = recorded(starts, 2.0, np.random.default_rng(5))
    gaps = Counter(round(later - earlier, 9) for earlier, later in pairwise(times.tolist()))
    assert set(gaps) <= {0.5, 2.0, 3.5}, "the gap that closes the circle is the mean one, 4 s"
    assert len(times) in (6, 7, 8)


def test_more_starts_than_can_be_simulated_are_refused_before_they_are_made():
    with pytest.raises(UserError, match=r"--scale-load 1e\+09: 2,000,000,000 sessions in one simulation"):
        recorded(np.array([0.0, 1.0]), 1e9, np.random.default_rng(0))


def test_a_log_without_a_span_can_still_be_scaled():
    assert recorded(np.zeros(4), 2.5, np.random.default_rng(0)).tolist() == [0.0] * 10


@given(st.integers(0, 2**70), st.integers(0, 10**7), st.integers(0, 1000), st.integers(1, 10**6))
def test_a_draw_is_below_the_count_and_always_the_same(seed, agent, draw, count):
    assert 0 <= pick(seed, agent, draw, count) < count
    assert pick(seed, agent, draw, count) == pick(seed, agent, draw, count)


def test_draws_are_even_over_agents_over_draws_and_over_seeds():
    for drawn in (
        [pick(0, agent, 0, 10) for agent in range(20_000)],
        [pick(0, 5, draw, 10) for draw in range(20_000)],
        [pick(seed, 5, 0, 10) for seed in range(20_000)],
    ):
        counts = np.bincount(drawn, minlength=10)
        assert ((counts - 2000) ** 2 / 2000).sum() < 27.9, "chi-square with 9 degrees of freedom, 99.9 %"
        assert np.corrcoef(drawn[:-1], drawn[1:])[0, 1] == pytest.approx(0, abs=0.03)


def test_a_logs_sessions_are_drawn_in_stretches_of_neighbours():
    drawn = [neighbour(3, agent, 900) for agent in range(3000)]
    follows = [(later - earlier) % 900 == 1 for earlier, later in pairwise(drawn)]
    assert sum(follows) == pytest.approx(3000 - 3000 / 30, abs=3), "stretches of 30"
    assert np.bincount(drawn, minlength=900).mean() == pytest.approx(3000 / 900)
    assert len(set(drawn)) > 700
    assert [neighbour(0, agent, 1) for agent in range(3)] == [0, 0, 0]
