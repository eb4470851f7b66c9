"""Intervals and tests with the trajectory as the unit: what comes from one trajectory is resampled together.

Percentile cluster bootstrap (Efron & Tibshirani, An Introduction to the Bootstrap, chapters 8 and 13), paired
sign-flip randomisation test (Fisher), exact McNemar test (binomial), Holm's step-down correction. Only numpy.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

RESAMPLES = 10_000
FEW = 10  # fewer trajectories than this: intervals are shown, but flagged
EXACT_UP_TO = 20  # trajectories for which all 2^n sign flips are enumerated
_BLOCK = 2_000_000  # resampled weights that are drawn as one multinomial, and signs that are drawn at once
_DRAWN = 100_000  # resampled weights drawn one by one at once: as many as the processor's cache holds
_REMEMBERED = 10_000_000  # resampled weights, a byte each, that are kept for the next question
_STRIP = 100  # resamples multiplied at once, for the same reason


_Ratio = tuple[NDArray[np.float64], NDArray[np.float64]]
"""What is divided by what, an entry per trajectory."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A ratio of sums over `n` trajectories, or a paired difference of two, with its percentile interval.

    `low` and `high` are None for n = 1: one trajectory says nothing about the spread. All are None for n = 0.
    """

    value: float | None
    low: float | None
    high: float | None
    n: int

    @property
    def few(self) -> bool:
        """Whether the interval rests on fewer than ten trajectories."""
        return self.n < FEW


def estimate(
    sums: ArrayLike,
    counts: ArrayLike | None = None,
    *,
    seed: int = 0,
    resamples: int = RESAMPLES,
    confidence: float = 0.95,
) -> Estimate:
    """Σ sums / Σ counts over trajectories, and its cluster-bootstrap interval.

    `sums` and `counts` have one entry per trajectory (probes answered right, probes asked); without `counts` it is
    the mean over trajectories. Trajectories with a count of 0 are left out.
    """
    return estimates([(sums, counts)], seed=seed, resamples=resamples, confidence=confidence)[0]


def estimates(
    samples: Sequence[tuple[ArrayLike, ArrayLike | None]],
    *,
    seed: int = 0,
    resamples: int = RESAMPLES,
    confidence: float = 0.95,
) -> list[Estimate]:
    """`estimate` of every pair of `sums` and `counts`: of many, in a third of the time that each alone would take."""
    asked = [_clusters(sums, counts) for sums, counts in samples]
    return _answered([[pair] for pair in asked], seed, resamples, confidence)


def difference(
    sums: ArrayLike,
    other: ArrayLike,
    counts: ArrayLike | None = None,
    other_counts: ArrayLike | None = None,
    *,
    seed: int = 0,
    resamples: int = RESAMPLES,
    confidence: float = 0.95,
) -> Estimate:
    """Ratio of `sums` minus ratio of `other`, paired: entry i of both is the same trajectory, resampled together."""
    return changes([(sums, other, counts, other_counts)], seed=seed, resamples=resamples, confidence=confidence)[0]


def changes(
    samples: Sequence[tuple[ArrayLike, ArrayLike, ArrayLike | None, ArrayLike | None]],
    *,
    seed: int = 0,
    resamples: int = RESAMPLES,
    confidence: float = 0.95,
) -> list[Estimate]:
    """`difference` of each of the samples (`sums`, `other`, `counts`, `other_counts`)."""
    asked: list[list[_Ratio]] = []
    for sums, other, counts, other_counts in samples:
        top, bottom = _clusters(sums, counts, drop=False)
        top2, bottom2 = _clusters(other, other_counts, drop=False)
        if len(top) != len(top2):
            raise ValueError("paired samples have one entry per trajectory in both")
        both = (bottom > 0) & (bottom2 > 0)
        asked.append([(top[both], bottom[both]), (top2[both], bottom2[both])])
    return _answered(asked, seed, resamples, confidence)


def _answered(asked: Sequence[Sequence[_Ratio]], seed: int, resamples: int, confidence: float) -> list[Estimate]:
    """A ratio of sums, or the first minus the second of two, for each that is asked, in the order asked.

    Samples of as many trajectories are resampled alike, so those are multiplied together.
    """
    found: dict[int, Estimate] = {}
    for n in {len(ratios[0][0]) for ratios in asked}:
        places = [place for place, ratios in enumerate(asked) if len(ratios[0][0]) == n]
        if n == 0:
            found |= {place: Estimate(None, None, None, 0) for place in places}
            continue
        drawn = iter(_resampled([c for place in places for ratio in asked[place] for c in ratio], resamples, seed).T)
        for place in places:
            value = _less([(top.sum(), bottom.sum()) for top, bottom in asked[place]])
            spread = _less([(next(drawn), next(drawn)) for _ in asked[place]])
            found[place] = Estimate(float(value), *_interval(spread, confidence, n), n)
    return [found[place] for place in range(len(asked))]


def _less(ratios: Sequence[tuple[Any, Any]]) -> Any:
    """The first ratio, less the second if there is one."""
    first, *others = (top / bottom for top, bottom in ratios)
    return first - others[0] if others else first


def sign_flip(differences: ArrayLike, *, seed: int = 0, flips: int = RESAMPLES) -> float:
    """Two-sided p of the paired sign-flip test on per-trajectory differences.

    The share of sign assignments whose |mean| is at least the observed one: all 2^n of them up to 20 trajectories,
    above that `flips` random ones and the observed one, so that p is never 0.
    """
    return sign_flips([differences], seed=seed, flips=flips)[0]


def sign_flips(samples: Sequence[ArrayLike], *, seed: int = 0, flips: int = RESAMPLES) -> list[float]:
    """`sign_flip` of each of the samples; those of as many differences have the same signs flipped."""
    values = [np.asarray(differences, dtype=np.float64) for differences in samples]
    found = {place: _all_flips(own) for place, own in enumerate(values) if own.size <= EXACT_UP_TO}
    for n in {own.size for own in values if own.size > EXACT_UP_TO}:
        places = [place for place, own in enumerate(values) if own.size == n]
        columns = np.column_stack([values[place] for place in places])
        least = _least(columns)
        hits = np.sum([(np.abs(sums) >= least).sum(axis=0) for sums in flipped(columns, flips, seed)], axis=0)
        found |= {place: (int(own) + 1) / (flips + 1) for place, own in zip(places, hits, strict=True)}
    return [found[place] for place in range(len(values))]


def _all_flips(values: NDArray[np.float64]) -> float:
    """The p over all 2^n assignments; 1 where there is nothing to flip."""
    totals = np.zeros(1)
    for value in values:
        totals = np.concatenate([totals + value, totals - value])
    return float((np.abs(totals) >= _least(values)).mean())


def _least(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """|Σ values|, by column, less what rounding may take from a sum that is equal to it."""
    return np.abs(values.sum(axis=0)) - 1e-9 * np.abs(values).sum(axis=0)


def mcnemar(only_first: int, only_second: int) -> float:
    """Two-sided exact p of McNemar's test: how many trajectories only one of two policies got right.

    For one binary outcome per trajectory only; several probes of one trajectory are not independent.
    """
    discordant = only_first + only_second
    if discordant == 0:
        return 1.0
    tail = sum(math.comb(discordant, k) for k in range(min(only_first, only_second) + 1))
    return min(1.0, 2 * tail / 2**discordant)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm-adjusted p values in the order given: they keep the family-wise error when several policies are tested."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted, worst = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(order):
        worst = max(worst, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = worst
    return adjusted


def _clusters(
    sums: ArrayLike, counts: ArrayLike | None, *, drop: bool = True
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    top = np.asarray(sums, dtype=np.float64).reshape(-1)
    bottom = np.ones_like(top) if counts is None else np.asarray(counts, dtype=np.float64).reshape(-1)
    if len(top) != len(bottom):
        raise ValueError("sums and counts have one entry per trajectory")
    if not np.isfinite(top).all() or not np.isfinite(bottom).all() or (bottom < 0).any():
        raise ValueError("sums must be finite, counts finite and not negative")
    return (top[bottom > 0], bottom[bottom > 0]) if drop else (top, bottom)


def flipped(values: NDArray[np.float64], flips: int, seed: int) -> Iterator[NDArray[np.float64]]:
    """Sums of the values (of each column, if there are some) under random signs, the same for the same seed.

    Blocks of them, `flips` in all.
    """
    if len(values) * flips <= _REMEMBERED:
        yield 2 * times(_coins(len(values), flips, seed), values) - values.sum(axis=0)
        return
    generator = np.random.default_rng(seed)
    block = max(1, _BLOCK // len(values))
    for start in range(0, flips, block):
        coins = generator.integers(0, 2, size=(min(block, flips - start), len(values)), dtype=np.int8)
        yield 2 * times(coins, values) - values.sum(axis=0)


@functools.lru_cache(maxsize=4)
def _coins(size: int, flips: int, seed: int) -> NDArray[np.int8]:
    """Which values keep their sign (1) in each flip, kept: every policy of a run is tested with the same ones."""
    coins = np.random.default_rng(seed).integers(0, 2, size=(flips, size), dtype=np.int8)
    coins.flags.writeable = False
    return coins


def times(small: NDArray[np.integer[Any]], values: NDArray[np.float64]) -> NDArray[np.float64]:
    """A product of small whole numbers, a byte each, with floats: strip by strip, so that no large copy is made."""
    return np.concatenate([small[at : at + _STRIP].astype(np.float64) @ values for at in range(0, len(small), _STRIP)])


def _resampled(columns: Sequence[NDArray[np.float64]], resamples: int, seed: int) -> NDArray[np.float64]:
    """The sums of each column over every resample of its entries: (resamples, columns)."""
    stacked = np.column_stack(columns)
    return np.concatenate([times(drawn, stacked) for drawn in _weights(len(stacked), resamples, seed)])


def _weights(clusters: int, resamples: int, seed: int) -> Iterator[NDArray[np.integer[Any]]]:
    """How often each trajectory is drawn: blocks of (resamples, clusters), the same for the same seed."""
    if clusters * resamples <= _REMEMBERED:
        yield _drawn(clusters, resamples, seed)
        return
    yield from _blocks(clusters, resamples, seed)


@functools.lru_cache(maxsize=8)
def _drawn(clusters: int, resamples: int, seed: int) -> NDArray[np.integer[Any]]:
    """All of them, kept: a table of results asks for the same resamples many times."""
    drawn = np.concatenate(list(_blocks(clusters, resamples, seed)))
    drawn.flags.writeable = False
    return drawn


def _blocks(clusters: int, resamples: int, seed: int) -> Iterator[NDArray[np.integer[Any]]]:
    generator = np.random.default_rng(seed)
    if clusters * resamples <= _BLOCK:
        yield _narrow(generator.multinomial(clusters, [1 / clusters] * clusters, size=resamples))
        return
    block = max(1, _DRAWN // clusters)
    for start in range(0, resamples, block):
        size = min(block, resamples - start)
        # Drawn one by one and counted: the same law, and of many clusters six times as fast.
        draws = generator.integers(0, clusters, size=(size, clusters)) + np.arange(size)[:, None] * clusters
        yield _narrow(np.bincount(draws.ravel(), minlength=size * clusters).reshape(size, clusters))


def _narrow(counts: NDArray[np.integer[Any]]) -> NDArray[np.integer[Any]]:
    return counts.astype(np.uint8) if counts.max() < 256 else counts


def _interval(drawn: NDArray[np.float64], confidence: float, n: int) -> tuple[float | None, float | None]:
    if n < 2:
        return None, None
    tail = (1 - confidence) / 2
    low, high = np.quantile(drawn, [tail, 1 - tail])
    return float(low), float(high)
