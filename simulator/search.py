"""How a fleet is sized: an interval per fleet size, and a search that brackets the answer between what fails and what
meets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from .bench import Bench, Variant
from .bounds import least_of, lower_bound, resident_guess
from .outcome import SimResult
from .reach import hopeless, out_of_reach
from .slo import LEAST_S, Slo, geometric_mean

Verdict = Literal["meets", "fails", "undecided"]
PILOT_SEEDS = 4  # two processes take as long for three
WIDEST = 12  # sizes looked at on either side of the pilot's, before the bracket is left open


@dataclass(frozen=True, slots=True)
class Level:
    """One SLO metric at one fleet size, in seconds: geometric mean over replications and its 95 % interval.

    The interval is Student's t on logarithms (near saturation latencies scatter by factors, and none is negative),
    so the mean that belongs to it is the geometric one: it lies inside, always, and what "meets" has a mean that meets.
    """

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Level:
        """An interval of no width for one value; infinite mean and upper end where a value is infinite."""
        mean = geometric_mean(values)
        if not math.isfinite(mean):
            return cls(mean, min(values), mean)
        if len(values) < 2:
            return cls(mean, mean, mean)
        from scipy.special import stdtrit

        spread = float(np.std(np.log(np.maximum(values, LEAST_S)), ddof=1))
        factor = math.exp(float(stdtrit(len(values) - 1, 0.975)) * spread / math.sqrt(len(values)))
        return cls(mean, mean / factor, mean * factor)


def levels(results: Sequence[SimResult], slos: Sequence[Slo]) -> dict[str, Level]:
    """Every SLO metric over the replications of one fleet size."""
    return {slo.key: Level.of([r.values[slo.key] for r in results]) for slo in slos}


def verdict(results: Sequence[SimResult], slos: Sequence[Slo]) -> Verdict:
    """meets: every interval's upper end is within its limit; fails: some lower end is beyond; else undecided."""
    found = levels(results, slos)
    if any(found[slo.key].low > slo.limit_s for slo in slos):
        return "fails"
    if all(found[slo.key].high <= slo.limit_s for slo in slos):
        return "meets"
    return "undecided"


def mean_meets(results: Sequence[SimResult], slos: Sequence[Slo]) -> bool:
    """Whether every metric's geometric mean over the replications is within its limit; implied by "meets"."""
    found = levels(results, slos)
    return all(found[slo.key].mean <= slo.limit_s for slo in slos)


def smallest(meets: Callable[[int], bool], low: int, high: int, start: int, stride: int | None = None) -> int | None:
    """The smallest n in low…high with `meets(n)`, for a monotone `meets`; None when `high` does not meet.

    Gallops from `start` (by `stride` at first, an eighth of it unless given), then bisects.
    """
    n = min(max(start, low), high)
    step = stride or max(1, n // 8)
    if meets(n):
        good = n
        while good > low:
            below = max(low, good - step)
            if not meets(below):
                return _bisect(meets, below, good)
            good, step = below, step * 2
        return good
    bad = n
    while bad < high:
        above = min(high, bad + step)
        if meets(above):
            return _bisect(meets, bad, above)
        bad, step = above, step * 2
    return None


def _bisect(meets: Callable[[int], bool], bad: int, good: int) -> int:
    while good - bad > 1:
        middle = (bad + good) // 2
        if meets(middle):
            good = middle
        else:
            bad = middle
    return good


@dataclass(frozen=True, slots=True)
class Side:
    """One policy's answer in replicas. `results` holds every size of the bracket with all its replications.

    `searched` is the largest size that the answer speaks of. `never` says why no size does, where closed forms know;
    `results` shows one size, in one replication, where they knew without a search.
    """

    variant: Variant
    bound: int
    count: int | None
    low: int | None
    high: int | None
    results: dict[int, list[SimResult]]
    searched: int
    never: str | None = None

    def smallest_in(self, replication: int, slos: tuple[Slo, ...]) -> int:
        """The smallest size that meets in that replication alone; one beyond the bracket when none does."""
        sizes = sorted(self.results)
        return next((n for n in sizes if self.results[n][replication].meets(slos)), sizes[-1] + 1)


def bracket(bench: Bench, variant: Variant, seeds: Sequence[int], most: int) -> Side:
    """Size one scenario: closed forms first, then a pilot on few replications, then every size between *fails* and
    *meets* on all.

    Where the pilot was too hopeful the search goes on upward, so that no answer up to `most` is missed.
    """
    scenario = bench.shelf.get(variant)
    slos, turns = scenario.slos, least_of(scenario)
    bound, few = lower_bound(scenario, turns), seeds[:PILOT_SEEDS]
    never = hopeless(scenario, turns)
    if never is None and bound > most:
        never = f"the turns demand {bound:,} replicas at least, whatever the order they are served in"
    start = min(max(bound, resident_guess(scenario)), most)
    if never is not None:
        return Side(variant, bound, None, None, None, {start: bench.run(variant, start, few[:1])}, most, never)
    # Where the sessions as they are rule every size out, only a lucky draw meets: the largest mostly ends the search.
    late = out_of_reach(scenario, turns)
    start = start if late is None else most
    first = smallest(lambda n: mean_meets(bench.run(variant, n, few), slos), bound, most, start)
    results: dict[int, list[SimResult]] = {}
    while True:
        results |= neighbours(lambda n: bench.run(variant, n, seeds), first or most, bound, most, slos)
        low, count, high = settled(results, slos)
        beyond = max(results) + 1
        if count is not None or beyond > most:
            return Side(variant, bound, count, low, high, results, max(results), late if count is None else None)
        first = smallest(lambda n: mean_meets(bench.run(variant, n, seeds), slos), beyond, most, beyond)


def neighbours(
    run: Callable[[int], list[SimResult]], first: int, bound: int, most: int, slos: Sequence[Slo]
) -> dict[int, list[SimResult]]:
    """The sizes around `first`, up to one that meets and down to one that fails."""
    found = {first: run(first)}
    while verdict(found[max(found)], slos) != "meets" and max(found) < min(most, first + WIDEST):
        found[max(found) + 1] = run(max(found) + 1)
    while verdict(found[min(found)], slos) != "fails" and min(found) > max(bound, first - WIDEST):
        found[min(found) - 1] = run(min(found) - 1)
    return found


def settled(results: dict[int, list[SimResult]], slos: Sequence[Slo]) -> tuple[int | None, int | None, int | None]:
    """(low, count, high): the smallest size above all that fail, the smallest from there whose mean meets, and the
    smallest from there that meets. All None when no mean meets above all that fail.
    """
    failing = [n for n in results if verdict(results[n], slos) == "fails"]
    low = max(failing) + 1 if failing else min(results)
    count = next((n for n in sorted(results) if n >= low and mean_meets(results[n], slos)), None)
    if count is None:
        return None, None, None
    return low, count, next((n for n in sorted(results) if n >= count and verdict(results[n], slos) == "meets"), None)
