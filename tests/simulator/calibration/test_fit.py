import numpy as np
import pytest

from kvmill.simulator.calibration.fit import fit, held_out


def line(n=400, seed=0, noise=0.05):
    x = np.random.default_rng(seed).uniform(1, 100, n)
    truth = 3.0 + 0.5 * x
    return x, truth * np.exp(noise * np.random.default_rng(seed + 1).standard_normal(n))


def halves(n):
    return held_out([str(i) for i in range(n)])


BOUNDS = {"a": (1.0, 0.0, 100.0), "b": (1.0, 0.0, 100.0)}


def test_known_constants_come_back():
    x, measured = line()
    found = fit(lambda v: v["a"] + v["b"] * x, measured, BOUNDS, halves(len(x)))
    assert found.values["a"] == pytest.approx(3.0, rel=0.1)
    assert found.values["b"] == pytest.approx(0.5, rel=0.03)
    assert found.held_out_error == pytest.approx(0.04, abs=0.015), "the noise itself: mean of |5 % normal|"
    assert abs(found.bias) < 0.02


def test_a_few_wild_rows_do_not_move_the_fit():
    x, measured = line()
    wild = measured.copy()
    wild[::20] /= 50.0
    clean, dirty = (fit(lambda v: v["a"] + v["b"] * x, m, BOUNDS, halves(len(x))) for m in (measured, wild))
    assert dirty.values["b"] == pytest.approx(clean.values["b"], rel=0.1)


def test_the_held_out_half_is_not_fitted_on():
    x, measured = line()
    apart = halves(len(x))
    spoiled = np.where(apart, measured * 7.0, measured)
    plain, other = (fit(lambda v: v["a"] + v["b"] * x, m, BOUNDS, apart) for m in (measured, spoiled))
    assert other.values == plain.values
    assert other.held_out_error > 0.8 > plain.held_out_error
    assert other.fitted_error == plain.fitted_error


def test_bounds_are_kept():
    x, measured = line()
    found = fit(lambda v: v["a"] + v["b"] * x, measured, {**BOUNDS, "b": (0.1, 0.0, 0.2)}, halves(len(x)))
    assert found.values["b"] == pytest.approx(0.2)


def test_the_split_is_fixed_by_the_configuration_alone():
    keys = [f"tp{i % 4} c{i}" for i in range(1000)]
    mask = held_out(keys)
    assert 0.45 < mask.mean() < 0.55
    assert (held_out(keys[::-1])[::-1] == mask).all(), "the order does not matter"
    assert held_out([keys[3]] * 5).tolist() == [bool(mask[3])] * 5, "repeats stay on one side"
    assert held_out(["tp1 c8 1024/128"]).tolist() == [True]
