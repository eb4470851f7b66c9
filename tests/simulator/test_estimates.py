import numpy as np
import pytest

from kvmill.simulator.estimates import BATCHES, batch_means, estimate


def test_batches_are_runs_of_equal_length():
    means = batch_means(np.arange(BATCHES * 4 + 3))
    assert means.tolist() == [4 * i + 1.5 for i in range(BATCHES)]


def test_too_few_values_for_batches_are_refused():
    with pytest.raises(ValueError, match="not enough"):
        batch_means([1.0] * (BATCHES - 1))


def series(rng, length=3000):
    """A correlated series of mean 2 and a control of mean 0 that explains most of it."""
    noise, control = rng.normal(size=length), rng.normal(size=length)
    kernel = 0.5 ** np.arange(12)
    values = 2 + np.convolve(noise * 0.2 + control, kernel)[:length]
    return values, control


def test_the_interval_misses_the_mean_as_often_as_it_says():
    rng = np.random.default_rng(3)
    misses = 0
    for _ in range(400):
        values, control = series(rng)
        mean, half = estimate("x", values, 2.0, (control, 0.0)).interval(0.1)
        misses += abs(mean - 2) > half
    assert 22 <= misses <= 60, "10 % of 400, within three standard deviations"


def test_a_control_narrows_the_interval_and_moves_no_mean():
    rng = np.random.default_rng(4)
    values, control = series(rng, 30_000)
    plain = estimate("x", values, 2.0).interval(0.01)
    helped = estimate("x", values, 2.0, (control, 0.0)).interval(0.01)
    assert helped[1] < plain[1] / 2
    assert abs(helped[0] - 2) < helped[1]
    shifted = estimate("x", values, 2.0, (control + 5.0, 5.0)).interval(0.01)
    assert shifted == pytest.approx(helped)


def test_a_control_with_a_wrong_mean_moves_the_estimate_by_what_it_explains():
    values, control = series(np.random.default_rng(5), 30_000)
    right, wrong = (estimate("x", values, 2.0, (control, mean)).interval(0.01)[0] for mean in (0.0, 0.1))
    assert wrong - right == pytest.approx(0.2, rel=0.1), "its slope is the sum of the kernel, 2"


def test_a_smaller_error_takes_a_wider_interval():
    found = estimate("x", series(np.random.default_rng(6))[0], 2.0)
    assert found.interval(0.001)[1] > found.interval(0.01)[1] > found.interval(0.1)[1]
