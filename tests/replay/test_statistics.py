"""Statistics against closed forms, brute force and simulation."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from kvmill.replay.statistics import (
    Estimate,
    changes,
    difference,
    estimate,
    estimates,
    holm,
    mcnemar,
    sign_flip,
    sign_flips,
)


def test_the_value_is_a_ratio_of_sums_not_a_mean_of_ratios() -> None:
    found = estimate([8, 0], [8, 2])
    assert found.value == 0.8
    assert found.n == 2
    assert found.few


def test_the_bootstrap_distribution_is_the_exact_one_for_three_trajectories() -> None:
    """All 27 equally likely resamples of three trajectories, enumerated."""
    sums, counts = np.array([1.0, 5.0, 2.0]), np.array([4.0, 6.0, 2.0])
    ratios = [sums[list(draw)].sum() / counts[list(draw)].sum() for draw in itertools.product(range(3), repeat=3)]
    for confidence in (0.5, 0.9):
        found = estimate(sums, counts, confidence=confidence, resamples=200_000)
        tail = (1 - confidence) / 2
        exact = np.quantile(ratios, [tail, 1 - tail], method="inverted_cdf")
        assert (found.low, found.high) == pytest.approx(tuple(exact), abs=1e-9)


def test_the_interval_of_a_mean_is_the_normal_one_for_many_trajectories() -> None:
    sample = np.random.default_rng(3).normal(2.0, 1.0, 400)
    found = estimate(sample)
    half = 1.96 * sample.std() / math.sqrt(400)
    assert found.value == pytest.approx(sample.mean())
    assert found.low == pytest.approx(sample.mean() - half, abs=0.05 * half)
    assert found.high == pytest.approx(sample.mean() + half, abs=0.05 * half)


def test_intervals_cover_the_truth_as_often_as_they_say_when_probes_are_dependent() -> None:
    """40 trajectories × 8 probes with a random rate per trajectory; treating probes as independent would fail."""
    generator = np.random.default_rng(11)
    covered = naive = 0
    for trial in range(300):
        rates = generator.beta(1.5, 0.5, 40)  # mean 0.75
        right = generator.binomial(8, rates)
        found = estimate(right, [8] * 40, resamples=1000, seed=trial)
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= 0.75 <= found.high
        share = right.sum() / 320
        naive += abs(share - 0.75) <= 1.96 * math.sqrt(share * (1 - share) / 320)
    assert 0.91 <= covered / 300 <= 0.98
    assert naive / 300 < 0.85


def test_a_paired_difference_is_tighter_than_an_unpaired_one() -> None:
    generator = np.random.default_rng(5)
    ability = generator.normal(0, 1, 60)
    full, other = ability + generator.normal(0, 0.1, 60), ability - 0.2 + generator.normal(0, 0.1, 60)
    paired = difference(other, full)
    assert paired.value == pytest.approx((other - full).mean())
    mean = estimate(other - full)
    assert (paired.low, paired.high) == pytest.approx((mean.low, mean.high))  # with equal counts: the same thing
    assert paired.low is not None
    assert paired.high is not None
    assert paired.high < -0.1
    assert paired.high - paired.low < 0.2 * 2 * 1.96 * math.sqrt(2 / 60)


def test_one_trajectory_has_no_interval_and_none_has_no_value() -> None:
    assert estimate([3], [4]) == estimate([3, 0], [4, 0])  # a trajectory without probes is no trajectory
    assert (estimate([3], [4]).value, estimate([3], [4]).low, estimate([3], [4]).n) == (0.75, None, 1)
    assert (estimate([], []).value, estimate([], []).n) == (None, 0)
    assert difference([1], [0]).low is None
    with pytest.raises(ValueError, match="finite"):
        estimate([float("nan")])


def _figures(found: list[Estimate]) -> np.ndarray:
    """A row each, what there is not as NaN."""
    return np.array([[one.value, one.low, one.high, one.n] for one in found], dtype=np.float64)


def test_many_that_are_asked_at_once_get_what_each_alone_gets_in_the_order_asked() -> None:
    generator = np.random.default_rng(2)
    samples = [(generator.random(n), generator.integers(0, 4, n)) for n in (30, 0, 300, 30, 1, 300)]
    alone = [estimate(sums, counts) for sums, counts in samples]
    np.testing.assert_allclose(_figures(estimates(samples)), _figures(alone), rtol=1e-12)
    pairs = [(sums, sums[::-1] + 0.1, counts, None) for sums, counts in samples]
    np.testing.assert_allclose(_figures(changes(pairs)), _figures([difference(*pair) for pair in pairs]), rtol=1e-12)
    own = [sums - 0.45 for sums, _ in samples]
    assert sign_flips(own) == [sign_flip(values) for values in own]
    assert len(set(sign_flips(own))) == 5, "only none and one are the same: p = 1"


def test_the_same_seed_gives_the_same_interval() -> None:
    sample = np.random.default_rng(0).random(25)
    assert estimate(sample, seed=4) == estimate(sample, seed=4)
    assert estimate(sample, seed=4) != estimate(sample, seed=5)


def test_sign_flip_equals_brute_force_and_the_binomial() -> None:
    values = np.random.default_rng(8).normal(0.3, 1, 9)
    signs = np.array(list(itertools.product([-1, 1], repeat=9)))
    brute = (np.abs((signs * values).mean(1)) >= abs(values.mean()) - 1e-12).mean()
    assert sign_flip(values) == pytest.approx(brute)
    # Equal magnitudes: the sum is a binomial count, so the test is the exact sign test.
    assert sign_flip([0.1] * 8 + [-0.1] * 2) == pytest.approx(stats.binomtest(2, 10).pvalue)
    assert sign_flip([0.0] * 5) == 1.0
    assert sign_flip([1.0] * 20) == pytest.approx(2 / 2**20)


def test_sign_flip_by_random_flips_agrees_with_the_exact_one_and_is_never_zero() -> None:
    values = np.array([0.1] * 15 + [-0.1] * 8)
    exact = stats.binomtest(8, 23).pvalue
    assert sign_flip(values, flips=40_000) == pytest.approx(exact, abs=4 * math.sqrt(exact / 40_000))
    assert sign_flip([1.0] * 60) == pytest.approx(1 / 10_001)


def test_mcnemar_is_the_exact_binomial_test() -> None:
    for first, second in [(0, 0), (1, 0), (9, 2), (5, 5), (30, 11)]:
        expected = stats.binomtest(first, first + second).pvalue if first + second else 1.0
        assert mcnemar(first, second) == pytest.approx(expected)


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.9, 0.6]) == [1.0, 1.0]
    assert holm([]) == []
