"""Tests that may be looked at after every trajectory: wealth that a gambler wins against a hypothesis.

A hypothesis says that values have no mean above 0. A gambler who stakes a fixed share of his capital on every next
value cannot expect to grow rich if it is true; that his capital ever reaches 1/α has a chance of at most α (Ville's
inequality), whenever one looks and stops (Waudby-Smith & Ramdas, "Estimating means of bounded random variables by
betting", JRSS-B 2024). The capital is spread over a few shares: large ones win where values hardly vary, small ones
where they vary much.

*Two meanings of the mean, and the test holds under both.* Values drawn independently from what produces trajectories
have a mean of at most 0 each. Values of a fixed set of N trajectories, taken in random order, have after t − 1 draws
with sum G a conditional mean of at most −G/(N − t + 1). The gambler pays the larger of 0 and that for every value.
Families need no turns: in a random order each draw has the mean of the whole set, and one family after the other has
not.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .noninferior import differences

SHARES = (0.1, 0.3, 0.6, 0.95)
TIGHT_AT = 40  # trajectories at which the bound on a mean is tightest


def wealth(values: ArrayLike, least: float, available: int) -> NDArray[np.float64]:
    """Natural log of the capital after each value, against the hypothesis that their mean is at most 0.

    `values`: (…, n) in order of draws, none below −`least`, 0 for a trajectory that has none; `available`: N, how many
    there are to draw in all. ValueError for values below −`least`.
    """
    v = np.asarray(values, dtype=np.float64)
    if v.size and v.min() < -least - 1e-9:
        raise ValueError(f"values below -{least}")
    left = available - np.arange(v.shape[-1])
    before = np.cumsum(v, axis=-1) - v
    price = np.maximum(0.0, -before / left)
    won = (v - price) / (least + price)
    capitals = np.stack([np.cumsum(np.log1p(share * won), axis=-1) for share in SHARES])
    return np.logaddexp.reduce(capitals) - math.log(len(SHARES))


@dataclass(frozen=True, slots=True)
class Proof:
    """What the draws so far say of one policy: log capitals, now and at their best.

    `good` is against "it loses more than the limit", `bad` against "it stays within all limits". The best counts, not
    the last: Ville's inequality is about all times together, so that what was proven once stays proven. `mean` is that
    of the paired differences. `pace` is what a draw adds to the log capital on the side where the mean is, so far.
    """

    good: float
    bad: float
    mean: float
    now: float
    pace: float

    def is_good(self, bar: float) -> bool:
        """Whether the loss is proven to stay within the limit; `bar` is the log of the capital that proves it."""
        return self.good >= bar

    def is_bad(self, bar: float) -> bool:
        """Whether it is proven that some limit is exceeded."""
        return self.bad >= bar

    def more(self, bar: float) -> int | None:
        """*Estimated*: how many draws more until the capital is there, at the pace so far; None if it does not grow."""
        if self.is_good(bar) or self.is_bad(bar):
            return 0
        return max(1, math.ceil((bar - self.now) / self.pace)) if self.pace > 0 else None


def log_capitals(
    scores: ArrayLike,
    full: ArrayLike,
    families: ArrayLike,
    *,
    max_loss: float,
    family_loss: float,
    available: int,
    kinds: int,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Log capitals after each draw against "it loses more than `max_loss`" and against "it stays within all limits".

    Scores in [0, 1] and names of families, (…, n) in order of draws; NaN where a trajectory has no score. Within all
    limits: a loss of at most `max_loss` overall and `family_loss` in each family. Half of the second capital is bet
    overall, half spread evenly over the `kinds` families of the set; that of families not drawn yet lies idle. `kinds`
    is known before the first draw, as N is: a number that follows from later draws would tell of them.

    The claims are about trajectories with both scores, in the proportions in which they are drawn: why a score is
    missing plays no part, and what would have come out without a gap is not known.
    """
    x, f, names = np.asarray(scores, np.float64), np.asarray(full, np.float64), np.asarray(families)
    known = ~(np.isnan(x) | np.isnan(f))
    x, f = np.where(known, x, 0.0), np.where(known, f, 0.0)  # a difference of 0, whatever the limit
    d = differences(x, f, max_loss)
    by_family = max(0.0, 1 - family_loss) * f - x  # a limit of 100 % or more is never exceeded
    drawn = np.unique(names[known])
    lost = [wealth(np.where(names == family, by_family, 0.0), 1.0, available) for family in drawn]
    idle = [np.full(d.shape, math.log(kinds - len(drawn)))] if kinds > len(drawn) else []
    spread = np.logaddexp.reduce([*lost, *idle]) - math.log(max(kinds, len(drawn)))
    bad = np.logaddexp(wealth(-d, 1.0, available), spread) - math.log(2)
    return wealth(d, 1 - max_loss, available), bad


def prove(scores: ArrayLike, full: ArrayLike, families: Sequence[str], max_loss: float, **limits: Any) -> Proof:
    """The proof of one policy from its draws so far (at least one); arguments as of `log_capitals`."""
    good, bad = log_capitals(scores, full, families, max_loss=max_loss, **limits)
    x, f = np.asarray(scores, np.float64), np.asarray(full, np.float64)
    d = np.nan_to_num(x - (1 - max_loss) * f)
    mean = float(d.mean())
    side, least = (d, 1 - max_loss) if mean > 0 else (-d, 1.0)
    pace = max(float(np.log1p(share * side / least).mean()) for share in SHARES)
    now = float(good[-1] if mean > 0 else bad[-1])
    return Proof(max(0.0, float(good.max())), max(0.0, float(bad.max())), mean, now, pace)


def at_most(values: ArrayLike, level: float) -> float:
    """An upper bound of the mean of `values` that holds at all n together with probability 1 − `level`.

    Asymptotic: right in the limit of many draws, for values of any range (Waudby-Smith et al., "Time-uniform central
    limit theory and asymptotic confidence sequences", 2021, theorem 2.2), tightest at 40. Infinite for fewer than two.
    It settles the order of peaks, where an error costs memory, never quality.
    """
    v = np.asarray(values, dtype=np.float64)
    n = len(v)
    if n < 2:
        return math.inf
    square = (-2 * math.log(level) + math.log(1 - 2 * math.log(level))) / TIGHT_AT  # the theorem's ρ²
    grown = n * square + 1
    width = math.sqrt(2 * grown / (n * n * square) * math.log(math.sqrt(grown) / level))
    return float(v.mean() + v.std(ddof=1) * width)


def bar_for(policies: int, confidence: float) -> float:
    """The log capital that proves something: of each policy at most one of the two claims can be false, and that its
    capital ever gets there has a chance of at most (1 − confidence)/policies; of all claims, at most 1 − confidence.
    """
    return math.log(max(1, policies) / (1 - confidence))


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether more draws could change the answer. `policy` is the smallest one proven good, None if none is.

    `open` are the policies that could still take its place; `more` is how many draws settle that at the pace so far
    (*estimated*), 0 when decided, None where nobody can tell.
    """

    decided: bool
    policy: str | None
    open: tuple[str, ...]
    more: int | None


def decide(
    proofs: Mapping[str, Proof],
    peaks: Mapping[str, ArrayLike],
    doubted: Collection[str],
    *,
    bar: float,
    margin: float,
    level: float,
) -> Decision:
    """The answer so far and whether it stands.

    `peaks`: peak KV tokens of each policy on the same trajectories; `doubted`: policies that may not be named yet
    whatever their proof (a family collapsed in what was drawn); `margin`: the difference of mean peaks, in
    tokens, that is worth nothing; `level`: the error rate of each comparison of peaks.

    The answer stands when every other policy is proven bad, or not smaller than the named one by more than the margin.
    """
    size = {name: np.asarray(values, dtype=np.float64) for name, values in peaks.items()}
    order = sorted(proofs, key=lambda name: (size[name].mean() if len(size[name]) else math.inf, name))
    # A loss proven to be within the limit overall and beyond it in a family: both may be true, and nobody wants it.
    fine = [name for name in order if proofs[name].is_good(bar) and not proofs[name].is_bad(bar)]
    named = next((name for name in fine if name not in doubted), None)
    rivals = [name for name in order if name != named and not proofs[name].is_bad(bar)]
    if named is not None:
        rivals = [name for name in rivals if at_most(size[named] - size[name], level) > margin]
    if not rivals:
        return Decision(True, named, (), 0)
    # The likely answer is the smallest policy that looks good; it must be proven, and those below it disproven.
    likely = next((i for i, name in enumerate(order) if proofs[name].mean > 0 and name not in doubted), len(order) - 1)
    ahead = [proofs[name].more(bar) for name in order[: likely + 1]]
    settled = [draws for draws in ahead if draws is not None]
    more = max(settled) if len(settled) == len(ahead) and any(settled) else None
    return Decision(False, named, tuple(rivals), more)
