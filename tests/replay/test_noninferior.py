"""The tests keep their promise: at the edge of H0 they reject no more often than they say."""

from __future__ import annotations

import math

import numpy as np
import pytest

from kvmill.replay.noninferior import FOUND_FROM, betting, by_draw, detectable, differences, needed, paired, unseen
from kvmill.replay.statistics import sign_flip

LOSS, ALPHA = 0.1, 0.05
SAMPLES = 400


def edge(generator: np.random.Generator, count: int, asked: int, loss: float = LOSS) -> np.ndarray:
    """Scores of trajectories of unequal difficulty whose true loss is exactly `loss`."""
    p = generator.beta(3, 1.3, size=count)
    full = generator.binomial(asked, p) / asked
    return differences(generator.binomial(asked, (1 - loss) * p) / asked, full, LOSS)


def outright(generator: np.random.Generator, count: int) -> np.ndarray:
    """One trajectory in ten fails outright, the others lose nothing: what a spread does not show."""
    full = generator.binomial(8, generator.beta(3, 1.3, size=count)) / 8
    return differences(full * (generator.random(count) > LOSS), full, LOSS)


def most(level: float) -> float:
    """Rejections beyond which a rate of `level` over SAMPLES is refuted (four standard errors)."""
    return level + 4 * math.sqrt(level * (1 - level) / SAMPLES)


@pytest.mark.parametrize("count", [12, 40])
def test_the_paired_test_rejects_at_its_level_at_the_edge(count: int) -> None:
    generator = np.random.default_rng(0)
    rate = np.mean([paired(edge(generator, count, 8)) <= ALPHA for _ in range(SAMPLES)])
    assert 0.01 < rate <= most(ALPHA)


@pytest.mark.parametrize("draw", [lambda g, n: edge(g, n, 8), outright], ids=["spread", "outright"])
@pytest.mark.parametrize("count", [12, 60, 300])
def test_betting_rejects_at_most_at_its_level_whatever_the_distribution(draw, count: int) -> None:
    generator = np.random.default_rng(1)
    rate = np.mean([betting(draw(generator, count), LOSS, 1 - ALPHA) <= ALPHA for _ in range(SAMPLES)])
    assert rate <= most(ALPHA)


def test_rare_outright_failures_fool_the_paired_test_and_that_is_why_the_other_exists() -> None:
    generator = np.random.default_rng(2)
    assert np.mean([paired(outright(generator, 12)) <= ALPHA for _ in range(SAMPLES)]) > 0.15
    assert unseen(12, 0.95) == pytest.approx(1 - 0.05 ** (1 / 12))
    assert (1 - unseen(12, 0.95)) ** 12 == pytest.approx(0.05)


def test_both_find_a_policy_that_loses_nothing() -> None:
    generator = np.random.default_rng(3)
    harmless = [edge(generator, 300, 16, loss=0.0) for _ in range(60)]
    assert np.mean([betting(d, LOSS, 1 - ALPHA) <= ALPHA for d in harmless]) > 0.8
    assert np.mean([paired(d[:60]) <= ALPHA for d in harmless]) > 0.8


def test_needed_is_how_many_find_it_in_four_samples_of_five() -> None:
    generator = np.random.default_rng(4)
    pool = edge(generator, 200_000, 8, loss=0.03)
    count = needed(pool, 1 - ALPHA)
    assert count is not None
    rate = np.mean([paired(generator.choice(pool, count)) <= ALPHA for _ in range(SAMPLES)])
    assert 0.72 <= rate <= 0.88
    assert needed(-pool, 1 - ALPHA) is None


def test_detectable_is_the_difference_found_in_four_samples_of_five() -> None:
    generator = np.random.default_rng(5)
    spread = generator.normal(size=50)
    step = detectable(spread)
    assert step == pytest.approx((1.959964 + 0.841621) * spread.std(ddof=1) / math.sqrt(50), rel=1e-5)

    few = [0.3, 0.1, -0.2, 0.5, 0.4, 0.2]
    assert sign_flip(np.abs(few[:FOUND_FROM])) <= 0.05 < sign_flip(np.abs(few[: FOUND_FROM - 1]))
    assert detectable(few) is not None
    assert [detectable(values) for values in (few[:-1], [0.3], [], [0.3] * 50)] == [None] * 4


def test_few_or_constant_values() -> None:
    assert paired([0.4]) == 1.0
    assert paired([0.0] * 9) == 1.0
    assert paired([-0.1] * 9) == 1.0
    assert paired([0.05] * 10) == pytest.approx(2**-10)
    assert betting([], LOSS, 0.95) == 1.0


def test_the_order_of_trajectories_ignores_their_scores() -> None:
    ids = [f"t-{i}" for i in range(20)]
    order = by_draw(ids)
    assert sorted(order) == list(range(20))
    assert order != sorted(order)
    turned = by_draw(ids[::-1])
    assert [ids[i] for i in order] == [ids[::-1][i] for i in turned]


def test_scores_outside_the_unit_interval_are_refused() -> None:
    with pytest.raises(ValueError, match=r"scores must lie in \[0, 1\]"):
        differences([1.2], [1.0], 0.1)
    with pytest.raises(ValueError, match="one entry per trajectory"):
        differences([1.0], [1.0, 1.0], 0.1)
    with pytest.raises(ValueError, match="between 0 and 1"):
        differences([1.0], [1.0], 0.0)
