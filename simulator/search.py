"""How a fleet is sized: interval per fleet size, bracketed search, a lower bound that no search may undercut."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from .bench import Bench, Variant
from .run import Scenario, SimResult
from .slo import Slo

Verdict = Literal["meets", "fails", "undecided"]
PILOT_SEEDS = 2
WIDEST = 12  # sizes looked at on either side of the pilot's, before the bracket is left open


@dataclass(frozen=True, slots=True)
class Level:
    """One SLO metric at one fleet size, in seconds: mean and 95 % interval over replications.

    The interval is Student's t on logarithms: near saturation latencies scatter by factors, and none is negative.
    """

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Level:
        """An interval of no width for one value; infinite ends where a value is infinite."""
        if not all(map(math.isfinite, values)):
            return cls(math.inf, min(values), math.inf)
        mean = float(np.mean(values))
        if len(values) < 2:
            return cls(mean, mean, mean)
        from scipy.special import stdtrit

        logs = np.log(np.maximum(values, 1e-12))
        half = float(stdtrit(len(values) - 1, 0.975) * np.std(logs, ddof=1) / math.sqrt(len(values)))
        centre = float(np.mean(logs))
        return cls(mean, math.exp(centre - half), math.exp(centre + half))


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
    """Whether every metric's mean over the replications is within its limit."""
    found = levels(results, slos)
    return all(found[slo.key].mean <= slo.limit_s for slo in slos)


def lower_bound(scenario: Scenario) -> int:
    """Replicas below which no fleet can keep its promises: busy seconds demanded per second.

    Every turn takes at least its prefill, its compaction, and its tokens' share of the dense work, the rows they
    read and the host time. Turns come at `rate` times turns per session, or at least at agents / (mean wait +
    TTFT limit + mean output · TPOT limit): a fleet whose mean latencies are within the limits is no slower.
    """
    load, cost = scenario.load, scenario.cost
    busy = waits = outputs = 0.0
    turns = 0
    for index in scenario.positions.usable:
        plan = scenario.plan_of(index)
        for j in range(plan.turns):
            feed = plan.feed[j] if j else plan.feed[0] - plan.shared
            rows = plan.after[j] + plan.out[j] / 2
            busy += max(0, feed) * (cost.token_s + cost.local_s) + plan.pay[j]
            busy += feed * plan.base[j] * cost.pair_s
            busy += plan.out[j] * (cost.token_s + cost.head_s + cost.host_sequence_s + rows * cost.row_s + cost.state_s)
            waits += plan.wait[j]
            outputs += plan.out[j]
            turns += 1
    if load.kind == "open":
        per_second = (load.rate or 0.0) * turns / len(scenario.positions.usable)
    elif load.kind == "closed":
        ttft = next((s.limit_s for s in scenario.slos if s.metric == "ttft"), None)
        tpot = next((s.limit_s for s in scenario.slos if s.metric == "tpot"), None)
        if ttft is None or tpot is None:
            return 1
        per_second = (load.agents or 0) / (waits / turns + ttft + outputs / turns * tpot)
    else:
        per_second = turns / max(1e-9, scenario.horizon_s()[1])
    return max(1, math.ceil(per_second * busy / turns - 1e-9))


def resident_guess(scenario: Scenario) -> int:
    """Replicas whose pools hold every agent's cache at once: where the search starts."""
    positions, deployment = scenario.positions, scenario.deployment
    picks = positions.draw(np.random.default_rng(0), 400)
    blocks = [scenario.plan_of(i).blocks(j, scenario.plan_of(i).rows(j)) for i, j, *_ in picks]
    agents = scenario.load.agents or scenario.load.sessions_per_s * positions.mean_session_s
    return max(1, round(float(np.mean(blocks)) * agents / max(1, deployment.blocks())))


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
    """One policy's answer in replicas. `results` holds every size of the bracket with all its replications."""

    variant: Variant
    bound: int
    count: int | None
    low: int | None
    high: int | None
    results: dict[int, list[SimResult]]

    def smallest_in(self, replication: int, slos: tuple[Slo, ...]) -> int:
        """The smallest size that meets in that replication alone; one beyond the bracket when none does."""
        sizes = sorted(self.results)
        return next((n for n in sizes if self.results[n][replication].meets(slos)), sizes[-1] + 1)


def bracket(bench: Bench, variant: Variant, seeds: Sequence[int], most: int) -> Side:
    """Size one scenario: a pilot on two replications, then every size between *fails* and *meets* on all."""
    scenario = bench.shelf.get(variant)
    slos = scenario.slos
    bound = min(lower_bound(scenario), most)
    pilot = smallest(
        lambda n: mean_meets(bench.run(variant, n, seeds[:PILOT_SEEDS]), slos),
        bound,
        most,
        max(bound, resident_guess(scenario)),
    )
    first = most if pilot is None else pilot
    results = {first: bench.run(variant, first, seeds)}
    while verdict(results[max(results)], slos) != "meets" and max(results) < min(most, first + WIDEST):
        results[max(results) + 1] = bench.run(variant, max(results) + 1, seeds)
    while verdict(results[min(results)], slos) != "fails" and min(results) > max(bound, first - WIDEST):
        results[min(results) - 1] = bench.run(variant, min(results) - 1, seeds)
    failing = [n for n in results if verdict(results[n], slos) == "fails"]
    low = max(failing) + 1 if failing else min(results)
    count = next((n for n in sorted(results) if n >= low and mean_meets(results[n], slos)), None)
    high = next((n for n in sorted(results) if count and n >= count and verdict(results[n], slos) == "meets"), None)
    return Side(variant, bound, count, low if count else None, high, results)
