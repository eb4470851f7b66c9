"""Is a policy's loss within its limit? One-sided tests on paired differences, one per trajectory.

D_i = x_i − (1 − L)·f_i, the policy's score on trajectory i less what a relative loss of L leaves of the uncompacted
one. H0: E[D] ≤ 0, that is, the loss exceeds L. Two tests of it:

`paired` assumes that the trajectories show the spread of those to come: the larger p of Student's t and of the
one-sided sign-flip test. `betting` assumes nothing but trajectories drawn alike and scores in [0, 1]: the capital of a
gambler who bets against H0 (Waudby-Smith & Ramdas, "Estimating means of bounded random variables by betting", JRSS-B
2024, section 4.3; Ville's inequality), a p-value of the kind that learn-then-test asks for (Angelopoulos et al., arXiv
2110.01052).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .statistics import flipped

FLIPS = 10_000
POWER = 0.8
FOUND_FROM = 6
"""Fewer trajectories never reach p = 5 % in a two-sided sign-flip test: its p is at least 2^(1−n)."""


def differences(scores: ArrayLike, full: ArrayLike, max_loss: float) -> NDArray[np.float64]:
    """D_i for scores in [0, 1] of the same trajectories, (…, n). ValueError for scores or limits outside."""
    x, f = np.asarray(scores, dtype=np.float64), np.asarray(full, dtype=np.float64)
    if x.shape != f.shape or x.ndim < 1:
        raise ValueError("scores and full have one entry per trajectory")
    if not 0 < max_loss < 1:
        raise ValueError(f"the largest loss must lie between 0 and 1, not {max_loss}")
    for values in (x, f):
        if not ((values >= 0) & (values <= 1)).all():
            raise ValueError("scores must lie in [0, 1]")
    return x - (1 - max_loss) * f


def paired(values: ArrayLike, *, seed: int = 0) -> float:
    """p of H0 by the spread seen: 1 for fewer than two values."""
    d = np.asarray(values, dtype=np.float64)
    if len(d) < 2:
        return 1.0
    if np.ptp(d) == 0:
        return 1.0 if d[0] <= 0 else 2.0 ** -len(d)
    from scipy.stats import t

    student = float(t.sf(d.mean() / (d.std(ddof=1) / math.sqrt(len(d))), len(d) - 1))
    least = d.sum() - 1e-12 * np.abs(d).sum()
    hits = sum(int((sums >= least).sum()) for sums in flipped(d, FLIPS, seed))
    return max(student, (hits + 1) / (FLIPS + 1))


def betting(values: ArrayLike, max_loss: float, confidence: float) -> float:
    """p of H0 whatever the distribution, for values in the order in which trajectories were drawn.

    Valid at every level; its bets are sized for `confidence`.
    """
    d = np.asarray(values, dtype=np.float64)
    low, high = -(1 - max_loss), 1.0
    x, null = (d - low) / (high - low), -low / (high - low)
    capital = best = 1.0
    total, squares = 0.5, 0.25  # a priori mean 1/2 and variance 1/4, as the paper proposes
    for count, value in enumerate(x, 1):
        variance = squares / count
        bet = min(math.sqrt(2 * math.log(1 / (1 - confidence)) / (len(x) * variance)), 0.5 / null)
        capital *= 1 + bet * (value - null)
        best = max(best, capital)
        total += value
        squares += (value - total / (count + 1)) ** 2
    return min(1.0, 1 / best)


def detectable(values: ArrayLike, confidence: float = 0.95) -> float | None:
    """The smallest mean difference that a two-sided paired test on as many trajectories finds in 80 % of samples.

    (z_{1−α/2} + z_0.8)·s/√n, with the spread s of the values; None where they show no spread, and for fewer than
    `FOUND_FROM`, which find nothing.
    """
    d = np.asarray(values, dtype=np.float64)
    if len(d) < FOUND_FROM or np.ptp(d) == 0:
        return None
    z = NormalDist().inv_cdf(1 - (1 - confidence) / 2) + NormalDist().inv_cdf(POWER)
    return float(z * d.std(ddof=1) / math.sqrt(len(d)))


def needed(values: ArrayLike, confidence: float, tests: int = 1) -> int | None:
    """How many trajectories like these would show E[D] > 0 in 80 % of samples; None where the mean is not above 0.

    `tests` is how many policies are tested together (Bonferroni). By the normal approximation.
    """
    d = np.asarray(values, dtype=np.float64)
    if len(d) < 2 or d.mean() <= 0:
        return None
    z = NormalDist().inv_cdf(1 - (1 - confidence) / tests) + NormalDist().inv_cdf(POWER)
    return max(2, math.ceil((z * d.std(ddof=1) / d.mean()) ** 2))


def unseen(count: int, confidence: float) -> float:
    """The share of trajectories that could fail outright without one of `count` showing it: 1 − α^(1/n)."""
    return 1.0 if count == 0 else 1 - (1 - confidence) ** (1 / count)


def by_draw(ids: Sequence[str], seed: int | None = None) -> list[int]:
    """An order of trajectories that does not depend on their scores: by the hash of their ids, and of a seed.

    The order of two does not depend on which others there are.
    """
    import hashlib

    salt = "" if seed is None else f"{seed}/"
    return sorted(range(len(ids)), key=lambda i: hashlib.sha256(f"{salt}{ids[i]}".encode()).hexdigest())
